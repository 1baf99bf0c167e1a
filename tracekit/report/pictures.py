"""The plots of the report: each drawn for a narrow column, as SVG, or as PNG if it has many marks."""

import base64
import io
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tracekit.plots.kinds import Choices, Kind
from tracekit.plots.style import as_plain_text
from tracekit.trace import Trace, TracekitError

SIZE = (5.2, 3.6)  # inches: the width of the column it stands in, so that its text stays readable
PNG_DPI = 144
MOST_SVG_BYTES = 80_000  # a PNG takes 20 to 60 kB, and drawing both takes twice as long
LEGEND_CHARACTERS = 84  # in one line of the legend


@dataclass(frozen=True)
class Picture:
    """A plot, or the sentence that says why there is none.

    Attributes
    ----------
    title, summary : str
    source : str or None
        The ``data:`` address of the image.
    width, height : int
        In CSS pixels.
    lacks : str or None
        Why this trace has no such picture.
    """

    title: str
    summary: str
    source: str | None = None
    width: int = 0
    height: int = 0
    lacks: str | None = None

    @property
    def alt(self) -> str:
        """What the picture shows, for those who do not see it."""
        return f"Plot: {self.summary}."


def draw(kind: Kind, trace: Trace, choices: Choices, data: pd.DataFrame | None = None) -> Picture:
    """Draw one of the kinds of ``tracekit plot``, from `data` if they were computed already."""
    summary = kind.summary[0].upper() + kind.summary[1:]
    try:
        data = kind.compute(trace, choices) if data is None else data
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = kind.draw(data, ax=figure.subplots())
    except TracekitError as error:
        return Picture(summary, summary, lacks=str(error))
    title = axes.get_title(loc="left")
    axes.set_title("", loc="left")  # the page sets it as a caption
    _lay_legend(figure, axes)
    source, width, height = _encoded(figure)
    return Picture(title, summary, source, width, height)


def _lay_legend(figure: Figure, axes: Axes) -> None:
    """Lay the legend out anew, in as many columns as the narrow figure has room for."""
    legend = axes.get_legend()
    if legend is None:
        return
    # The legend's own handles lack the markers of error bars, and the Axes' some patches.
    labels = [text.get_text() for text in legend.get_texts()]
    handles = dict(zip(labels, legend.legend_handles, strict=True))
    handles |= {str(one.get_label()): one for one in axes.get_legend_handles_labels()[0]}
    legend.remove()
    columns = LEGEND_CHARACTERS // (max(map(len, labels)) + 8)  # 8: the line before a label
    legend = figure.legend(
        [handle for label in labels if (handle := handles[label]) is not None],
        labels,
        loc="outside lower center",
        ncols=min(max(columns, 1), len(labels)),
        frameon=False,
        fontsize="small",
    )
    as_plain_text(legend)


def _encoded(figure: Figure) -> tuple[str, int, int]:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    # The salt makes the same figure the same text.
    with mpl.rc_context({"svg.hashsalt": "tracekit"}):
        kind, data = "svg+xml", _saved(figure, "svg", metadata={"Date": None})
    if len(data) > MOST_SVG_BYTES:
        kind, data = "png", _saved(figure, "png", dpi=PNG_DPI)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}", width, height


def _saved(figure: Figure, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, transparent=True, **options)
    return buffer.getvalue()

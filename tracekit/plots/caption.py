"""What a picture is of: the names that tell pictures of two traces apart."""

from pathlib import Path

from matplotlib.axes import Axes

from tracekit.formats import ExpertCounts, as_trace_or_counts
from tracekit.plots.style import GREY, shortened
from tracekit.trace import Trace


def caption(trace: Trace | ExpertCounts | str | Path) -> str:
    """Return the names of the model and of the trace; of counts, those that they have."""
    trace = as_trace_or_counts(trace)
    model = trace.model or "counts" if isinstance(trace, ExpertCounts) else trace.facts.model.name
    names = (model, Path(trace.name).absolute().name)
    return ", ".join(map(shortened, names))


def add_caption(ax: Axes, text: str) -> None:
    """Write in small type below the figure what it is of.

    Parameters
    ----------
    ax : Axes
        Of a figure that holds nothing else.
    text : str
        Such as what `caption` says.
    """
    # Fonts have no form for a line feed or a byte that is no text: it gets the mark for that.
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    ax.figure.supxlabel(text, x=0.99, ha="right", fontsize="x-small", color=GREY, parse_math=False)

"""Working-set growth: bytes of experts touched by n tokens."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.working_set import START, WINDOW, working_set
from tracekit.figures import MIB, in_mib
from tracekit.plots.kinds import register
from tracekit.plots.series import LINE, marked_if_few
from tracekit.plots.style import (
    BLACK,
    BLUE,
    ORANGE,
    axes_or_new,
    finish,
    grouped_numbers,
    mark_token_cycle,
    whole_numbers,
)

_LINES = {
    START: {"label": "since the start of the trace", "color": BLUE, "linestyle": "-"},
    WINDOW: {"label": "by any n tokens in a row (mean)", "color": ORANGE, "linestyle": "--"},
}


@register(
    "working-set",
    "distinct experts touched, since the start and by any n tokens",
    lambda trace, choices: working_set(trace),
)
def plot_working_set(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how many bytes of experts a run of n tokens touches.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.working_set`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for the line of each span.

    Returns
    -------
    Axes
        Both spans, the token cycle and the whole bank.
    """
    ax = axes_or_new(ax)
    for span, line in _LINES.items():
        rows = data[data["span"] == span]
        look = {**LINE, **marked_if_few(line, len(rows)), **style}
        ax.plot(rows["tokens"], rows["distinct_bytes"] / MIB, **look)
    bank = data["bank_bytes"].iloc[0]
    ax.axhline(bank / MIB, color=BLACK, linewidth=1, label=f"all experts ({in_mib(bank)})")
    mark_token_cycle(ax.axhline, data["token_cycle_bytes"].iloc[0])
    ax.set_ylim(0, bank / MIB * 1.05)
    ax.set_xlim(left=0)
    whole_numbers(ax)
    grouped_numbers(ax, "y")
    return finish(
        ax,
        title="Working set",
        xlabel="decoded tokens (prefills add at their place)",
        ylabel="distinct experts touched (MiB)",
    )

"""Working-set growth: bytes of experts touched by n tokens."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.figures import MIB, in_mib
from tracekit.plots.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    axes_or_new,
    finish,
    grouped_numbers,
    legend_below,
    marked_if_few,
    whole_numbers,
)

_LINES = {
    "since the start": {"color": BLUE, "linestyle": "-"},
    "in a window": {"color": ORANGE, "linestyle": "--"},
}
_LABELS = {
    "since the start": "since the start of the trace",
    "in a window": "by any n tokens in a row (mean)",
}


def plot_working_set(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how many bytes of experts a run of n tokens touches.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.working_set`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for both lines.

    Returns
    -------
    Axes
        Both spans, the token cycle and the whole bank.
    """
    ax = axes_or_new(ax)
    for span, line in _LINES.items():
        rows = data[data["span"] == span]
        drawn = {"linewidth": 1.6, **marked_if_few(line, len(rows)), **style}
        ax.plot(rows["tokens"], rows["distinct_bytes"] / MIB, label=_LABELS[span], **drawn)
    bank, cycle = data["bank_bytes"].iloc[0], data["token_cycle_bytes"].iloc[0]
    ax.axhline(bank / MIB, color=BLACK, linewidth=1, label=f"all experts ({in_mib(bank)})")
    ax.axhline(cycle / MIB, color=GREY, linestyle=":", label=f"one token cycle ({in_mib(cycle)})")
    ax.set_ylim(0, bank / MIB * 1.05)
    ax.set_xlim(left=0)
    whole_numbers(ax)
    grouped_numbers(ax, "y")
    finish(
        ax,
        title="Working set",
        xlabel="decoded tokens (prefills add at their place)",
        ylabel="distinct experts touched (MiB)",
    )
    legend_below(ax)
    return ax

"""How long a token takes: by what it reads, and by cache budget under several policies."""

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.times import POLICIES, time_by_read, time_curves
from tracekit.figures import MIB, in_mib
from tracekit.plots.kinds import register
from tracekit.plots.series import Look, policy_series, sparse_marker, thin_markers
from tracekit.plots.style import (
    BLACK,
    BLUE,
    GREY,
    VERMILION,
    axes_or_new,
    budget_axis,
    draw_band,
    finish,
    grouped_numbers,
)

_DASHED = (0, (3, 2))
# The slowest tokens may take ten times as long as the others: they are marked at the upper edge.
_SHOWN = 0.99  # quantile
_HEADROOM = 1.15
_REFUSAL_CHARACTERS = 76  # in a line
_ROOM_FOR_REFUSAL = 1.4


@register(
    "time",
    "time of each decoded token by what it read, with the fitted line",
    lambda trace, choices: time_by_read(trace),
)
def plot_time(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the time of each decoded token against what it read, with what the fit says of it.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.time_by_read`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for the tokens.

    Returns
    -------
    Axes
        A point for each token; those of the slowest percent, and of the few that read most, may stand
        at an edge as triangles. The line is the typical token, dashed where hardly any token of the
        recording lies; the dark band is its 95 % interval, and nine of ten tokens lie in the pale
        one. Where the fit is refused, the reason stands in place of the line.
    """
    ax = axes_or_new(ax)
    read, wall = data["read_bytes"].to_numpy() / MIB, data["wall_ms"].to_numpy()
    most_read, most_wall = (_HEADROOM * np.quantile(values, _SHOWN) for values in (read, wall))
    beyond = (read > most_read) | (wall > most_wall)
    look: Look = {"linestyle": "none", "marker": ".", "markersize": 4, "color": GREY, "alpha": 0.6}
    look["clip_on"] = False
    ax.plot(read[~beyond], wall[~beyond], **{**look, "label": "a decoded token", **style})
    if beyond.any():
        at_edge = {"marker": "^", "alpha": 1, "markersize": 5}
        edges = np.minimum(read[beyond], most_read), np.minimum(wall[beyond], most_wall)
        n, slowest = int(beyond.sum()), wall[beyond].max()
        label = f"{n} further out (up to {_few_digits(slowest)} ms)"
        ax.plot(*edges, **{**look, **at_edge, "label": label})
    refused = data["refused"].iloc[0]
    if refused is None:
        _draw_fit(ax, data[~beyond].sort_values("read_bytes"))
    ax.set_xlim(0, most_read)
    ax.set_ylim(0, most_wall * (1 if refused is None else _ROOM_FOR_REFUSAL))
    grouped_numbers(ax)
    grouped_numbers(ax, "y")
    if refused is not None:
        _write_refusal(ax, refused)
    line = data.iloc[0]
    fitted = (
        f": {line['a_ms']:.4g} ms + {line['b_ms_per_mib']:.3g} ms a MiB" if refused is None else ""
    )
    return finish(
        ax,
        title=f"Time of a decoded token by what it reads{fitted}",
        xlabel="read by the token (MiB)",
        ylabel="time of the token (ms)",
    )


def _draw_fit(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the typical token, its interval, and where nine of ten tokens lie."""
    read = rows["read_bytes"] / MIB
    ax.fill_between(
        read,
        rows["p5_ms"],
        rows["p95_ms"],
        color=BLUE,
        alpha=0.1,
        linewidth=0,
        label="nine of ten tokens",
    )
    ax.fill_between(
        read,
        rows["low_ms"],
        rows["high_ms"],
        color=BLUE,
        alpha=0.3,
        linewidth=0,
        label="95 % interval of the typical token, in another run",
    )
    usual = read.between(rows["usual_low_mib"].iloc[0], rows["usual_high_mib"].iloc[0])
    line: Look = {"color": BLUE, "linewidth": 1.8}
    ax.plot(read, rows["typical_ms"], **line, linestyle=_DASHED)
    ax.plot(
        read[usual],
        rows["typical_ms"][usual],
        **line,
        label="typical token (dashed: few tokens read so much)",
    )


def _few_digits(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _write_refusal(ax: Axes, sentence: str) -> None:
    """Write at the top of the plot why there is no line in it."""
    ax.text(
        0.5,
        0.95,
        fill(sentence, _REFUSAL_CHARACTERS),
        transform=ax.transAxes,
        ha="center",
        va="top",
        fontsize="small",
        color=VERMILION,
        bbox={"facecolor": "white", "edgecolor": VERMILION, "alpha": 0.9, "pad": 6},
    )


@register(
    "time-curves",
    "tokens a second by cache budget, predicted from the recorded times",
    lambda trace, choices: time_curves(
        trace,
        choices.policies_or(POLICIES),
        choices.cache_bytes,
        bypass=choices.bypass,
        seed=choices.seed,
        jobs=choices.jobs,
    ),
    reads=("policies", "params", "cache_bytes", "bypass"),
)
def plot_time_curves(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how many tokens a second each policy would give, by cache budget.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.time_curves`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for every policy.

    Returns
    -------
    Axes
        One line a policy, if every token were the typical one, with the 95 % interval as a band; dashed
        and without a band where the fitted run read no such bytes. A policy that acts on a prediction is
        an area, from waiting for all that is read ahead to hiding it behind computing. Triangles: at
        most so many, since memory would run short. The dotted level is that of a token that reads
        nothing, and the star the recording itself. Where no time can be said, the reason stands in the
        plot.
    """
    ax = axes_or_new(ax, (7.6, 4.8))
    timed = data[data["mean_ms"].notna() | _any_of(data)].sort_values("cache_bytes", kind="stable")
    drawn = timed[timed["policy"] != "bound"]
    for name, policy_look, rows in policy_series(drawn) if len(drawn) else ():
        look = {**sparse_marker(thin_markers(policy_look, len(rows)), rows), "linestyle": "-"}
        _draw_rates(ax, rows, {**look, **style, "label": name})
    first = data.iloc[0]
    ceiling, recorded = first["ceiling_tok_s"], first["recorded_tok_s"]
    if np.isfinite(ceiling):
        ax.axhline(
            ceiling,
            color=BLACK,
            linestyle=":",
            linewidth=1,
            label=f"a token that reads nothing ({ceiling:.3g} tokens/s)",
        )
    if pd.notna(first["recorded_cache_bytes"]):
        ax.plot(
            first["recorded_cache_bytes"] / MIB,
            recorded,
            linestyle="none",
            marker="*",
            markersize=13,
            color="white",
            markeredgecolor=BLACK,
            zorder=4,
            label=f"recorded at {in_mib(first['recorded_cache_bytes'])} ({recorded:.3g} tokens/s)",
        )
    budget_axis(ax, data["cache_bytes"], first["token_cycle_bytes"])
    highest = np.nanmax([ceiling, recorded])
    ax.set_ylim(0, highest * (_HEADROOM if len(drawn) else _ROOM_FOR_REFUSAL))
    if not len(drawn):
        _write_refusal(ax, first["refused"] or data["time_refusals"].iloc[-1])
    return finish(
        ax,
        title="Tokens a second by cache budget (bands: 95 % intervals; dashed: extrapolated)",
        xlabel="cache budget (MiB)",
        ylabel="tokens/s of the typical token",
    )


def _any_of(data: pd.DataFrame) -> pd.Series:
    """Tell which rows have a time of the typical token, or a limit of one."""
    columns = ["typical_ms", "typical_fastest_ms", "at_least_ms"]
    return data[columns].notna().any(axis="columns")


def _draw_rates(ax: Axes, rows: pd.DataFrame, look: Look) -> None:
    """Draw the line or the area of one policy."""
    x = rows["cache_bytes"] / MIB
    color, label = look["color"], look["label"]
    bare = {**look, "marker": "None", "label": ""}
    if rows["typical_fastest_ms"].notna().any():
        slow, fast = (1000 / rows[f"typical_{end}_ms"] for end in ("slowest", "fastest"))
        ax.fill_between(x, slow, fast, color=color, alpha=0.3, linewidth=0)
        ax.plot(x, fast, **{**bare, "linewidth": 0.8})
        ax.plot(x, slow, **{**look, "label": f"{label}, slowest to fastest"})
        return
    rate = 1000 / rows["typical_ms"]
    draw_band(ax, x, 1000 / rows["typical_high_ms"], 1000 / rows["typical_low_ms"], color)
    outside = rows["is_extrapolated"].astype("boolean").fillna(False).astype(bool)
    ax.plot(x, rate, **{**bare, "linestyle": _DASHED})
    ax.plot(x, rate.mask(outside), **look)
    at_most = 1000 / rows["at_least_ms"]
    if at_most.notna().any():
        limit = {"linestyle": "none", "marker": "v", "markerfacecolor": "white"}
        ax.plot(x, at_most, **{**bare, **limit, "label": f"{label}: at most, memory runs short"})

"""Prediction accuracy: by layer, by horizon, and by how many experts are named."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    GREY,
    axes_or_new,
    error_bars,
    finish,
    layer_range,
    legend_below,
    percent_axis,
    series_styles,
    thin_markers,
    whole_numbers,
)

_DODGE = 0.06  # in layers


def plot_predictability(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw each predictor's slot accuracy, layer by layer.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.accuracy_by_layer`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for every predictor.

    Returns
    -------
    Axes
        Lines with bands of the 95 % confidence interval. Where a predictor has no scored routing
        its line is blank.
    """
    ax = axes_or_new(ax, (7.6, 4.6))
    layers = layer_range(data["layer"].to_numpy())
    for name, look in series_styles(list(data["predictor"].unique())).items():
        rows = data[data["predictor"] == name].set_index("layer").reindex(layers)
        _line(ax, layers, rows, "slot_accuracy", name, look, style)
        ax.fill_between(
            layers,
            rows["ci95_low"],
            rows["ci95_high"],
            color=look["color"],
            alpha=0.15,
            linewidth=0,
        )
    ax.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    return _finish(
        ax,
        "Predictability by layer (bands: 95 % intervals)",
        "layer",
        "slots named, of k",
    )


def plot_horizon(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw each predictor's slot accuracy against the horizon.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.accuracy_by_horizon`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.errorbar`` for every predictor with a horizon.

    Returns
    -------
    Axes
        Lines with bars of the 95 % confidence interval, side by side; a level line for a predictor
        that knows as much at any distance.
    """
    ax = axes_or_new(ax)
    looks = series_styles(list(data["predictor"].unique()))
    for place, (name, look) in enumerate(looks.items()):
        rows = data[data["predictor"] == name].sort_values("horizon")
        if rows["horizon"].isna().all():
            constant = {key: look[key] for key in ("color", "linestyle", "linewidth")}
            ax.axhline(rows["slot_accuracy"].iloc[0], label=f"{name} (at any)", **constant)
            continue
        accuracy = rows["slot_accuracy"]
        ax.errorbar(
            # Variants of one predictor lie close together: side by side they can be told apart.
            rows["horizon"] + _DODGE * (place - (len(looks) - 1) / 2),
            accuracy,
            label=name,
            **{**error_bars(accuracy, rows["ci95_low"], rows["ci95_high"]), **look, **style},
        )
    return _finish(
        ax,
        "Accuracy by horizon (bars: 95 % intervals)",
        "horizon (layers ahead)",
        "slots named, of k",
    )


def plot_recall(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how many of the selected experts a predictor names, against how many it may name.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.recall_by_named`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for every predictor.

    Returns
    -------
    Axes
        One line a predictor, and what naming at random would reach.
    """
    ax = axes_or_new(ax)
    for name, look in series_styles(list(data["predictor"].unique())).items():
        rows = data[data["predictor"] == name].sort_values("named")
        _line(ax, rows["named"], rows, "recall", name, look, style)
    chance = data.drop_duplicates("named").sort_values("named")
    ax.plot(chance["named"], chance["chance"], color=GREY, linestyle=":", label="at random")
    return _finish(
        ax, "Recall by how many experts are named", "experts named", "selected experts named"
    )


def _line(
    ax: Axes,
    x: Any,
    rows: pd.DataFrame,
    column: str,
    name: str,
    look: dict[str, Any],
    style: dict[str, Any],
) -> None:
    # Not a number, as pandas has it for what was not scored, leaves a gap in the line.
    label = f"{name} (nothing scored)" if rows[column].isna().all() else name
    ax.plot(x, rows[column], label=label, **{**thin_markers(look, len(rows)), **style})


def _finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> Axes:
    ax.set_ylim(0, 1.02)
    percent_axis(ax)
    whole_numbers(ax)
    finish(ax, title=title, xlabel=xlabel, ylabel=ylabel)
    legend_below(ax)
    return ax

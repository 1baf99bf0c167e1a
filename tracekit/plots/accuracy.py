"""Prediction accuracy: by layer, by horizon, and by how many experts are named."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    GREY,
    axes_or_new,
    finish,
    layer_range,
    legend_below,
    percent_axis,
    series_styles,
    thin_markers,
    whole_numbers,
)


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
    ax.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    return _finish(ax, "How predictable each layer's routing is", "layer", "slots named, of k")


def plot_horizon(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw each predictor's slot accuracy against the horizon.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.accuracy_by_horizon`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for every predictor.
    """
    ax = axes_or_new(ax)
    for name, look in series_styles(list(data["predictor"].unique())).items():
        rows = data[data["predictor"] == name].sort_values("horizon")
        _line(ax, rows["horizon"], rows, "slot_accuracy", name, look, style)
    _finish(ax, "Accuracy by horizon", "horizon (layers ahead)", "slots named, of k")
    ax.set_ylim(auto=True)  # the variants of one predictor lie close together
    ax.autoscale(axis="y")
    return ax


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
    drawn = {**thin_markers(look, len(rows)), **style}
    ax.plot(x, rows[column], label=name, **drawn)
    if rows["ci95_low"].notna().any():
        ax.fill_between(
            x, rows["ci95_low"], rows["ci95_high"], color=drawn["color"], alpha=0.15, linewidth=0
        )


def _finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> Axes:
    ax.set_ylim(0, 1.02)
    percent_axis(ax)
    whole_numbers(ax)
    finish(ax, title=f"{title} (bands: 95 % intervals)", xlabel=xlabel, ylabel=ylabel)
    legend_below(ax)
    return ax

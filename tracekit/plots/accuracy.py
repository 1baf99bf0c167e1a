"""How much predictors know: by layer, by horizon, and by how many experts are named."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.accuracy import (
    accuracy_by_horizon,
    accuracy_by_layer,
    layers_scored,
    recall_by_named,
)
from tracekit.plots.kinds import register
from tracekit.plots.series import Look, series_styles, thin_markers
from tracekit.plots.style import (
    GREY,
    axes_or_new,
    draw_band,
    error_bars,
    finish,
    layer_range,
    percent_axis,
    whole_numbers,
)
from tracekit.scoring import PredictResult

_DODGE = 0.06  # in layers


@register(
    "predictability",
    "slot accuracy of each predictor, layer by layer",
    lambda trace, choices: accuracy_by_layer(
        trace, choices.predictors, seed=choices.seed, jobs=choices.jobs
    ),
    reads=("predictors",),
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
    for name, look, rows in _by_predictor(data):
        table = rows.set_index("layer").reindex(layers)
        _line(ax, layers, table["slot_accuracy"], name, look | style)
        draw_band(ax, layers, table["ci95_low"], table["ci95_high"], look["color"])
    ax.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    return _finish(
        ax, "Predictability by layer (bands: 95 % intervals)", "layer", "slots named, of k"
    )


def plot_scores(result: PredictResult, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw `plot_predictability` of scored predictors: what ``result.plot()`` calls."""
    return plot_predictability(layers_scored(result), ax=ax, **style)


@register(
    "horizon",
    "slot accuracy by how many layers ahead is predicted",
    lambda trace, choices: accuracy_by_horizon(
        trace, choices.predictors, choices.horizon, seed=choices.seed, jobs=choices.jobs
    ),
    reads=("predictors", "horizon"),
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
        bars = error_bars(accuracy, rows["ci95_low"], rows["ci95_high"])
        # Variants of one predictor lie close together: side by side they can be told apart.
        horizon = rows["horizon"] + _DODGE * (place - (len(looks) - 1) / 2)
        ax.errorbar(horizon, accuracy, **{**bars, **look, "label": name, **style})
    return _finish(
        ax,
        "Accuracy by horizon (bars: 95 % intervals)",
        "horizon (layers ahead)",
        "slots named, of k",
    )


@register(
    "recall",
    "selected experts that are named, by how many are named",
    lambda trace, choices: recall_by_named(
        trace, choices.predictors, choices.named, seed=choices.seed, jobs=choices.jobs
    ),
    reads=("predictors", "named"),
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
    for name, look, rows in _by_predictor(data.sort_values("named", kind="stable")):
        _line(ax, rows["named"], rows["recall"], name, look | style)
    chance = data.drop_duplicates("named").sort_values("named")
    ax.plot(chance["named"], chance["chance"], color=GREY, linestyle=":", label="at random")
    return _finish(
        ax, "Recall by how many experts are named", "experts named", "selected experts named"
    )


def _by_predictor(data: pd.DataFrame) -> list[tuple[str, Look, pd.DataFrame]]:
    """Part `data` by predictor and horizon: the name, look and rows of each, in their order."""
    names = pd.Series(
        [
            predictor if pd.isna(horizon) or horizon == 1 else f"{predictor} at horizon {horizon:g}"
            for predictor, horizon in zip(data["predictor"], data["horizon"], strict=True)
        ],
        index=data.index,
    )
    predictors = dict(zip(names, data["predictor"], strict=True))
    looks = series_styles(list(predictors), list(predictors.values()))
    return [(name, look, data[names == name]) for name, look in looks.items()]


def _line(ax: Axes, x: Any, y: pd.Series, name: str, look: Look) -> None:
    # Not a number, as pandas has it for what was not scored, leaves a gap in the line.
    label = f"{name} (nothing scored)" if y.isna().all() else name
    ax.plot(x, y, **{**thin_markers(look, len(y)), "label": label})


def _finish(ax: Axes, title: str, xlabel: str, ylabel: str) -> Axes:
    percent_axis(ax, top=1.02)
    whole_numbers(ax)
    return finish(ax, title=title, xlabel=xlabel, ylabel=ylabel)

"""Which lookups would hit if the most used experts stayed in memory for good."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.analysis.popularity import expert_popularity
from tracekit.formats import ExpertCounts, as_trace_or_counts
from tracekit.trace import Trace, UsageError

ESTIMATE = (
    "an estimate: as if each token selected by these frequencies, whatever was selected before it"
)


def hottest_experts(
    trace: Trace | ExpertCounts | str | Path,
    expert_bytes: int | Mapping[int, int] | None = None,
) -> pd.DataFrame:
    """List all experts in the order in which they are worth pinning.

    The estimate takes the selections for independent draws: an expert has the same probability at
    every token, its share of the layer's selections. It counts a lookup for each selection, so it
    is of decode, where tokens do not share a batch, and it knows nothing of an engine's cache.

    Parameters
    ----------
    trace : Trace, ExpertCounts, str or Path
    expert_bytes : int or mapping of int to int, optional
        Bytes of one expert, the same in all layers or layer by layer. Default: those of the trace.

    Returns
    -------
    DataFrame
        One row per (layer, expert): ``layer``, ``expert``, ``selections``, ``share`` (of the layer's
        selections), ``expert_bytes`` (NaN: unknown; experts are then taken for equally large),
        ``pinned`` (experts up to this row), ``pinned_bytes`` (NaN: unknown), ``hit_rate`` (share of
        the lookups that would hit if the experts up to this row were pinned: an estimate). The most
        hits per byte come first; ties to the lower layer, then to the lower expert id.

    Raises
    ------
    UsageError
        `expert_bytes` lacks a layer.
    TraceError
        As for `expert_popularity`.
    """
    trace = as_trace_or_counts(trace)
    frame = expert_popularity(trace)[["layer", "expert", "selections", "share"]]
    sizes = _sizes(trace, frame["layer"].to_numpy(), expert_bytes)
    worth = frame["share"].to_numpy() / np.where(np.isnan(sizes), 1.0, sizes)
    order = np.argsort(-worth, kind="stable")
    frame = frame.assign(expert_bytes=sizes).iloc[order].reset_index(drop=True)
    return frame.assign(
        pinned=np.arange(1, len(frame) + 1),
        pinned_bytes=frame["expert_bytes"].cumsum(),
        hit_rate=np.minimum(frame["share"].cumsum() / frame["layer"].nunique(), 1.0),
    )


def that_fit(
    hottest: pd.DataFrame, cache_slots: int | None = None, cache_bytes: int | None = None
) -> pd.DataFrame:
    """Return those of the hottest experts that a budget holds.

    Parameters
    ----------
    hottest : DataFrame
        From `hottest_experts`.
    cache_slots : int, optional
        A budget in experts of every MoE layer, as of `tracekit.replay`.
    cache_bytes : int, optional
        A budget in bytes.

    Returns
    -------
    DataFrame
        Rows of `hottest`, with ``pinned``, ``pinned_bytes`` and ``hit_rate`` of these rows.

    Raises
    ------
    UsageError
        The budget is in bytes, and the size of an expert is not known; or a layer has not so many
        experts.
    """
    fits = hottest
    if cache_slots is not None:
        n_expert = int(hottest["layer"].value_counts().max())
        if not 0 <= cache_slots <= n_expert:
            raise UsageError(
                f"A budget in slots takes experts of every layer, from 0 to all {n_expert}, not "
                f"{cache_slots}."
            )
        fits = hottest.groupby("layer").head(cache_slots)
    if cache_bytes is not None:
        sizes = fits["expert_bytes"].to_numpy()
        if np.isnan(sizes).any():
            raise UsageError(
                "The size of an expert is not known; give it with --expert-mib or --model, or give "
                "the budget in experts of every layer with --cache-slots."
            )
        left, taken = cache_bytes, []
        for size in sizes.tolist():
            taken.append(size <= left)
            left -= size if taken[-1] else 0
        fits = fits[taken]
    return fits.assign(
        pinned=np.arange(1, len(fits) + 1),
        pinned_bytes=fits["expert_bytes"].cumsum(),
        hit_rate=np.minimum(fits["share"].cumsum() / hottest["layer"].nunique(), 1.0),
    ).reset_index(drop=True)


def _sizes(
    trace: Trace | ExpertCounts, layers: np.ndarray, given: int | Mapping[int, int] | None
) -> np.ndarray:
    """Return the bytes of an expert of each of `layers`; NaN: unknown."""
    if isinstance(given, Mapping):
        missing = sorted(set(layers.tolist()) - given.keys())
        if missing:
            raise UsageError(f"expert_bytes has no size of layer {missing[0]}; add it.")
        return np.array([given[layer] for layer in layers.tolist()], float)
    if given is not None:
        return np.full(len(layers), float(given))
    if isinstance(trace, Trace):
        columns = trace.layer_columns
        known = dict(zip(columns["layer"].tolist(), columns["expert_bytes"].tolist(), strict=True))
        sizes = np.array([known.get(layer, -1) for layer in layers.tolist()], float)
        if (sizes > 0).all():
            return sizes
    return np.full(len(layers), np.nan)

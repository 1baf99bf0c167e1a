"""How much of a routing repeats an earlier one, by how far apart the two are."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.formats import as_trace
from tracekit.routing.grid import DecodeGrid, decode_grid
from tracekit.trace import Trace, TraceError, UsageError


def overlap_by_lag(trace: Trace | str | Path, max_lag: int = 16) -> pd.DataFrame:
    """Overlap of two routings a lag apart, along the tokens and along the layers.

    *Token to token*: layer l of token t against layer l of token t − lag of the same turn.
    *Layer to layer*: layer l of token t against the MoE layer lag places before it, same token.
    Expert ids of different layers have no common meaning by themselves, so that overlap is
    expected at chance; where it is not, layers were once copies of each other (Qwen3-30B-A3B as
    recorded on a phone: 45 % at a lag of 12 layers, where chance is 4.7 %). Decode only.

    Parameters
    ----------
    trace : Trace, str or Path
    max_lag : int
        Largest lag, in tokens and in MoE layers.

    Returns
    -------
    DataFrame
        One row per (direction, lag) that the trace has pairs for: ``direction`` (``"token"`` or
        ``"layer"``), ``lag``, ``overlap`` (share of the k experts that both routings selected, 0
        to 1, mean over all pairs), ``overlap_p10`` and ``overlap_p90`` (the 10th and 90th
        percentile of the layers' own means), ``pairs``, ``chance`` (k / n_expert: what two
        independent even routings share).

    Raises
    ------
    UsageError
        `max_lag` is below 1.
    TraceError
        The trace holds no decoded token, or no two of them to compare.
    """
    if max_lag < 1:
        raise UsageError(f"The largest lag must be 1 or more, not {max_lag}.")
    trace = as_trace(trace)
    grid = decode_grid(trace, kept_only=True)
    sets = _bit_sets(grid, trace.n_expert)
    rows = []

    def add(direction: str, lag: int, common: np.ndarray) -> None:
        if common.size:
            rows.append(_row(direction, lag, common, grid.top_k, trace.n_expert))

    for lag in range(1, min(max_lag, grid.n_tokens - 1) + 1):
        same_turn = grid.turn[lag:] == grid.turn[:-lag]
        add("token", lag, _common(sets[lag:], sets[:-lag])[same_turn])
    for lag in range(1, min(max_lag, grid.n_layers - 1) + 1):
        add("layer", lag, _common(sets[:, lag:], sets[:, :-lag]))
    if not rows:
        raise TraceError(
            f"{trace.name} has no two routings to compare: it holds one decoded token a turn, of "
            "one MoE layer; record with -n 2 or more."
        )
    return pd.DataFrame(rows)


def _row(
    direction: str, lag: int, common: np.ndarray, top_k: int, n_expert: int
) -> dict[str, str | float]:
    """Summarise how many experts pairs of routings have in common, uint16 [pairs, layers]."""
    by_layer = common.sum(axis=0, dtype=np.int64) / len(common)
    return {
        "direction": direction,
        "lag": lag,
        "overlap": by_layer.mean() / top_k,
        "overlap_p10": np.percentile(by_layer, 10) / top_k,
        "overlap_p90": np.percentile(by_layer, 90) / top_k,
        "pairs": common.size,
        "chance": top_k / n_expert,
    }


def _bit_sets(grid: DecodeGrid, n_expert: int) -> np.ndarray:
    """Return each routing as a set of bits: uint64 [T, L, words]."""
    # Of tens of thousands of experts few may occur; only those have a bit.
    occurs = np.zeros(n_expert, np.bool_)
    occurs[grid.experts] = True
    place = (np.cumsum(occurs) - 1).astype(np.uint16)
    experts = place[grid.experts].reshape(grid.n_tokens * grid.n_layers, -1)
    words = -(-int(np.count_nonzero(occurs)) // 64)
    sets = np.zeros((len(experts), words), np.uint64)
    row = np.arange(len(sets))
    for slot in range(grid.top_k):  # one expert a row at a time, so no two writes meet
        expert = experts[:, slot]
        sets[row, expert >> 6] |= np.uint64(1) << (expert & 63).astype(np.uint64)
    return sets.reshape(grid.n_tokens, grid.n_layers, words)


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count the experts that two grids of sets share, routing by routing."""
    common = np.zeros(a.shape[:2], np.uint16)
    for word in range(a.shape[2]):
        common += np.bitwise_count(a[:, :, word] & b[:, :, word])
    return common

"""How much of a routing repeats an earlier one, by how far apart the two are."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.formats import as_trace
from tracekit.routing.blocks import decode_blocks
from tracekit.routing.grid import no_decoded_token, with_decoded
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.schema import DECODE


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
    n_layers = len(trace.moe_layers)
    most = min(max_lag, trace.n_decoded - 1)
    token_lags = {lag: _Pairs(n_layers) for lag in range(1, most + 1)}
    layer_lags = {lag: _Pairs(n_layers - lag) for lag in range(1, min(max_lag, n_layers - 1) + 1)}
    place = _places(trace)
    turn: int | None = None
    before: np.ndarray | None = None  # the last tokens of the turn, as many as the largest lag
    for block in decode_blocks(trace):
        sets = _bit_sets(block.experts[block.kept], place)
        known = sets if before is None or block.turn != turn else np.concatenate([before, sets])
        for lag, pairs in token_lags.items():
            if len(known) > lag:
                first = max(lag, len(known) - len(sets))  # of the later tokens
                pairs.add(_common(known[first:], known[first - lag : -lag]))
        for lag, pairs in layer_lags.items():
            pairs.add(_common(sets[:, lag:], sets[:, :-lag]))
        turn, before = block.turn, known[-max_lag:].copy()
    if turn is None:
        raise no_decoded_token(trace)
    rows = [
        pairs.row(direction, lag, trace.top_k, trace.n_expert)
        for direction, lags in (("token", token_lags), ("layer", layer_lags))
        for lag, pairs in lags.items()
        if pairs.number
    ]
    if not rows:
        raise TraceError(
            f"{trace.name} has no two routings to compare: it holds one decoded token a turn, of "
            f"one MoE layer; {with_decoded(trace, 2)}."
        )
    return pd.DataFrame(rows)


class _Pairs:
    """How many experts the routings have in common that stand one lag apart.

    Parameters
    ----------
    n_layers : int
    """

    def __init__(self, n_layers: int):
        self.number = 0  # at each layer
        self._common = np.zeros(n_layers, np.int64)

    def add(self, common: np.ndarray) -> None:
        """Add what further pairs have in common, uint16 [pairs, layers]."""
        self.number += len(common)
        self._common += common.sum(axis=0, dtype=np.int64)

    def row(self, direction: str, lag: int, top_k: int, n_expert: int) -> dict[str, str | float]:
        """Return the row of the table."""
        by_layer = self._common / self.number
        return {
            "direction": direction,
            "lag": lag,
            "overlap": by_layer.mean() / top_k,
            "overlap_p10": np.percentile(by_layer, 10) / top_k,
            "overlap_p90": np.percentile(by_layer, 90) / top_k,
            "pairs": self.number * len(by_layer),
            "chance": top_k / n_expert,
        }


def _places(trace: Trace) -> np.ndarray:
    """Return the bit of each expert id, uint16 [n_expert].

    Of tens of thousands of experts few may occur; only those have a bit of their own.
    """
    occurs = np.zeros(trace.n_expert, np.bool_)
    for rows in trace.iter_routing(["experts"], phase=DECODE):
        occurs[rows["experts"]] = True
    place: np.ndarray = np.maximum(np.cumsum(occurs) - 1, 0)
    return place.astype(np.uint16)


def _bit_sets(experts: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return each routing [T, L, k] as a set of bits: uint64 [T, L, words]."""
    n_tokens, n_layers, top_k = experts.shape
    bits = place[experts].reshape(n_tokens * n_layers, top_k)
    sets = np.zeros((len(bits), (int(place[-1]) >> 6) + 1), np.uint64)
    row = np.arange(len(sets))
    for slot in range(top_k):  # one expert a row at a time, so no two writes meet
        bit = bits[:, slot]
        sets[row, bit >> 6] |= np.uint64(1) << (bit & 63).astype(np.uint64)
    return sets.reshape(n_tokens, n_layers, -1)


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Count the experts that two grids of sets share, routing by routing."""
    common = np.zeros(a.shape[:2], np.uint16)
    for word in range(a.shape[2]):
        common += np.bitwise_count(a[:, :, word] & b[:, :, word])
    return common

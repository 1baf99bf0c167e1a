"""Reuse distance: how much is touched, or how many tokens pass, before an expert is needed again."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.analysis.budget import budget_of
from tracekit.analysis.gaps import TokenGaps
from tracekit.formats import as_trace
from tracekit.policies import LRU
from tracekit.policies.model import Model
from tracekit.replaying.batches import batches_of, columns_for, model_of
from tracekit.replaying.counting import without_first
from tracekit.replaying.from_disk import rows_from_disk
from tracekit.replaying.memory import is_large
from tracekit.replaying.pieces import Pieces
from tracekit.routing.blocks import decode_blocks
from tracekit.routing.grid import no_decoded_token
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE

BINS = 48


def reuse_distance(
    trace: Trace | str | Path, unit: str = "bytes", cache_bytes: int | None = None
) -> pd.DataFrame:
    """Distribution of the reuse distances of decode lookups.

    Parameters
    ----------
    trace : Trace, str or Path
    unit : {"bytes", "tokens"}
        *Bytes*: the distinct bytes that were touched since the expert's last use, its own
        included (the byte depth of an LRU stack), over all layers and turns; a cache of that many
        bytes is just enough for LRU to hit. *Tokens*: decoded tokens since its last use.
    cache_bytes : int, optional
        Budget to stand beside the distances; the recorded one by default, or a quarter of the
        bank.

    Returns
    -------
    DataFrame
        One row per bin, bins growing geometrically: ``unit``, ``low`` and ``high`` (of distances
        above `low` and up to `high`), ``lookups``, ``share`` (of all decode lookups),
        ``cumulative`` (share of this and all nearer bins; in bytes, LRU's decode hit rate at a
        budget of `high`). The last row, with an infinite `high`, counts first uses: in bytes those
        of the whole trace, in tokens those of its decoding, as prefill has no distance in tokens.
        In bytes also ``token_cycle_bytes``, ``budget_bytes`` and ``budget_source``: ``"given"``,
        ``"recorded"``, or ``"default"`` for the quarter of the bank.

    Raises
    ------
    UsageError
        An unknown unit, or a budget that is not a size in bytes.
    TraceError
        The trace holds no decoded token; in bytes, a layer's expert size is missing.
    """
    trace = as_trace(trace)
    if unit == "tokens":
        return _in_tokens(trace)
    if unit != "bytes":
        raise UsageError(f"Reuse distance is in 'bytes' or 'tokens', not {unit!r}.")
    model = model_of(trace)
    edges = np.unique(
        np.geomspace(model.expert_bytes.min(), model.bank_bytes, BINS + 1).astype(np.int64)
    )
    edges[-1] = model.bank_bytes
    # LRU hits a lookup iff its distance is within the budget, so the distribution is the
    # difference of LRU's hits from one budget to the next.
    within, lookups = (_from_disk if is_large(trace) else _in_memory)(trace, model, edges)
    if not lookups:
        raise no_decoded_token(trace)
    budget, source = budget_of(trace, cache_bytes), "given"
    if cache_bytes is None:
        source = "default" if trace.budget_bytes is None else "recorded"
    return _bins(unit, edges, within, lookups).assign(
        token_cycle_bytes=model.token_cycle_bytes, budget_bytes=budget, budget_source=source
    )


def _in_memory(trace: Trace, model: Model, edges: np.ndarray) -> tuple[np.ndarray, int]:
    """Return LRU's hits of decoded tokens at each of `edges`, and the lookups of those tokens."""
    batches = batches_of(model, trace.routing(columns_for(trace)))
    hits = [int(at.hits_decode.sum()) for at in LRU().totals(batches, edges)]
    return np.array(hits), int(batches.lookups[batches.phase == DECODE].sum())


def _from_disk(trace: Trace, model: Model, edges: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the same in memory that does not grow with the trace."""
    pieces = Pieces(trace, model, without_first(trace, 0))
    ((rows,), _) = rows_from_disk(pieces, [LRU()], edges, len(edges), False, 1, lambda share: None)
    return np.array([row.hits_decode for row in rows]), rows[0].lookups_decode


def _in_tokens(trace: Trace) -> pd.DataFrame:
    gaps = TokenGaps(np.zeros(len(trace.moe_layers), np.int64), trace.n_expert)
    for block in decode_blocks(trace):
        gaps.add(block.experts[block.kept])
    if not gaps.n_tokens:
        raise no_decoded_token(trace)
    edges = np.unique(np.geomspace(1, max(2, gaps.n_tokens), BINS + 1).round().astype(np.int64))
    within = np.cumsum(gaps.counts[0])[np.minimum(edges, gaps.n_tokens - 1)]
    lookups = gaps.n_tokens * len(trace.moe_layers) * trace.top_k
    return _bins("tokens", edges, within, lookups)


def _bins(unit: str, edges: np.ndarray, within: np.ndarray, lookups: int) -> pd.DataFrame:
    """Make the rows of bins that end at `edges`, with so many lookups `within` each edge."""
    counts = np.diff(within, prepend=0, append=lookups)
    return pd.DataFrame(
        {
            "unit": unit,
            "low": np.concatenate([[0], edges]).astype(np.float64),
            "high": np.concatenate([edges, [np.inf]]),
            "lookups": counts,
            "share": counts / lookups,
            "cumulative": np.cumsum(counts) / lookups,
        }
    )

"""How evenly a layer spreads its tokens over its experts, and a token its weight."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.analysis.popularity import expert_popularity
from tracekit.formats import ExpertCounts, as_trace_or_counts
from tracekit.routing.blocks import decode_blocks
from tracekit.routing.grid import no_decoded_token
from tracekit.trace import Trace

_UNKNOWN = dict.fromkeys(("weight_entropy_bits", "weight_entropy", "top1_share"), np.nan)


def routing_concentration(trace: Trace | ExpertCounts | str | Path) -> pd.DataFrame:
    """Entropies and the top expert's share, layer by layer. Decode only; of counts, all tokens.

    Two questions that are easily confused: *load* is about all tokens together (does the layer
    have favourites?), *weight* about one token (does its first expert dominate the others?).

    Returns
    -------
    DataFrame
        One row per MoE layer: ``layer``, ``routings``; ``load_entropy_bits`` (Shannon entropy of
        the layer's selection frequencies), ``load_entropy`` (the same over log2(n_expert): 1 is
        perfectly even), ``effective_experts`` (2 to the power of that entropy), ``top_load_share``
        (share of the selections that the most popular expert gets, at most 1 / k);
        ``weight_entropy_bits`` (of the k weights of a routing, normalised to sum 1, mean over the
        routings), ``weight_entropy`` (over log2(k)), ``top1_share`` (weight of the heaviest expert
        over the sum, mean). The three weight columns are NaN where no weight is known, as of
        counts, and ``weight_entropy`` where k is 1. ``routings`` is NaN if counts do not say how
        many experts a token uses.

    Raises
    ------
    TraceError
        The trace holds no decoded token.
    """
    trace = as_trace_or_counts(trace)
    if isinstance(trace, ExpertCounts):
        routings = trace.counts.sum(axis=1) / (trace.top_k or np.nan)
        load = _load(expert_popularity(trace), len(trace.layers), trace.n_expert)
        return pd.DataFrame({"layer": trace.layers, "routings": routings, **load, **_UNKNOWN})
    n_tokens, weight_bits, top_share = _of_weights(trace)
    if not n_tokens:
        raise no_decoded_token(trace)
    return pd.DataFrame(
        {
            "layer": trace.moe_layers,
            "routings": n_tokens,
            **_load(expert_popularity(trace, "decode"), len(trace.moe_layers), trace.n_expert),
            "weight_entropy_bits": weight_bits,
            "weight_entropy": _over(weight_bits, np.log2(trace.top_k)),
            "top1_share": top_share,
        }
    )


def _of_weights(trace: Trace) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the decoded tokens, and of each layer the mean entropy and largest share of weights.

    The means are over the routings whose weights are known; NaN: there are none.
    """
    n_layers = len(trace.moe_layers)
    n_tokens, n_known = 0, np.zeros(n_layers, np.int64)
    bits, top = np.zeros(n_layers), np.zeros(n_layers)
    for block in decode_blocks(trace, ["weights"] if trace.has("weights") else []):
        n_tokens += len(block)
        if block.weights is None:
            continue
        weights = block.weights.astype(np.float64)
        total = weights.sum(axis=2, keepdims=True)
        share = np.divide(weights, total, out=np.full_like(weights, np.nan), where=total > 0)
        known = ~np.isnan(share).any(axis=2)
        n_known += known.sum(axis=0)
        bits = _added(bits, np.where(known, _entropy_bits(share), 0.0))
        top = _added(top, np.where(known, share.max(axis=2), 0.0))
    bits, top = (
        np.divide(each, n_known, out=np.full(n_layers, np.nan), where=n_known > 0)
        for each in (bits, top)
    )
    return n_tokens, bits, top


def _added(total: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Add rows one after the other, so that the sum is the same however they come in blocks."""
    sums: np.ndarray = np.add.accumulate(np.vstack([total, values]), axis=0)[-1]
    return sums


def _load(popularity: pd.DataFrame, n_layers: int, n_expert: int) -> dict[str, np.ndarray]:
    """Return the columns about the load of each layer."""
    load = popularity["share"].to_numpy().reshape(n_layers, n_expert)
    bits = _entropy_bits(load)
    return {
        "load_entropy_bits": bits,
        "load_entropy": _over(bits, np.log2(n_expert)),
        "effective_experts": 2.0**bits,
        "top_load_share": load.max(axis=1),
    }


def _entropy_bits(shares: np.ndarray) -> np.ndarray:
    """Return Shannon's entropy along the last axis; 0 log 0 is 0, NaN stays NaN."""
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy: np.ndarray = -(shares * logs).sum(axis=-1)
    return entropy


def _over(values: np.ndarray, limit: float) -> np.ndarray:
    return values / limit if limit > 0 else np.full_like(values, np.nan)

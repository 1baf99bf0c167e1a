"""From a cell to the figures of a result: totals, rates, peaks, layers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracekit.policies.base import Batches, Cell, Limit, Policy
from tracekit.replay.budgets import MIB
from tracekit.trace.errors import UsageError
from tracekit.trace.schema import DECODE

# How much higher the bound's hit rates are, each with the rate it is of.
GAPS = {"gap_to_bound": "hit_rate_cumulative", "gap_to_bound_decode": "hit_rate_decode"}


@dataclass(frozen=True)
class Outcome:
    """One policy at one budget, reduced to figures.

    Attributes
    ----------
    record : dict
        The figures, by the names of the columns of a result; None where there is none.
    layers : list of dict or None
        The same for each MoE layer, if asked for.
    kept : bool
        No batch left more resident than the budget, or than itself alone where that is larger.
    """

    record: dict[str, Any]
    layers: list[dict[str, Any]] | None
    kept: bool


def outcome(policy: Policy, batches: Batches, cell: Cell | Limit, per_layer: bool) -> Outcome:
    """Reduce `cell`, which `policy` gave for `batches`."""
    if isinstance(cell, Limit):
        return _of_limit(policy, batches, cell, per_layer)
    lookups = batches.lookups if cell.lookups is None else cell.lookups
    read_bytes = cell.read_bytes
    if read_bytes is None:
        read_bytes = (lookups - cell.hits) * batches.expert_bytes[batches.layer]
    decode = batches.phase == DECODE
    settled = cell.resident_bytes[batches.settled]
    peak = int(cell.resident_bytes.max(initial=0))
    peak_decode = int(settled.max()) if len(settled) else None
    record = {
        **_identity(policy, batches, cell.budget_bytes),
        **_figures(
            int(lookups.sum()),
            int(cell.hits.sum()),
            int(lookups[decode].sum()),
            int(cell.hits[decode].sum()),
            int(read_bytes.sum()),
            int(read_bytes[decode].sum()),
        ),
        **dict.fromkeys(GAPS),  # filled in where the bound holds
        "peak_resident_bytes": peak,
        "peak_resident_bytes_decode": peak_decode,
        "over_budget": peak > cell.budget_bytes,
        "over_budget_decode": None if peak_decode is None else peak_decode > cell.budget_bytes,
    }
    record |= _counters(policy, cell, record)
    if policy.speculative:
        misses = (lookups - cell.hits) * batches.expert_bytes[batches.layer]
        record["demand_bytes_decode"] = int(misses[decode].sum())
    batch_bytes = batches.lookups * batches.expert_bytes[batches.layer]
    kept = (cell.resident_bytes <= np.maximum(batch_bytes, cell.budget_bytes)).all()
    return Outcome(
        record,
        _by_layer(batches, lookups, cell.hits, read_bytes) if per_layer else None,
        bool(kept),
    )


def _of_limit(policy: Policy, batches: Batches, limit: Limit, per_layer: bool) -> Outcome:
    decode = batches.phase == DECODE
    record = {
        **_identity(policy, batches, limit.budget_bytes),
        **_figures(
            int(batches.lookups.sum()),
            limit.hits,
            int(batches.lookups[decode].sum()),
            limit.hits_decode,
            limit.read_bytes,
            limit.read_bytes_decode,
        ),
        **dict.fromkeys(GAPS),
        "peak_resident_bytes": None,
        "peak_resident_bytes_decode": None,
        "over_budget": None,
        "over_budget_decode": None,
    }
    layers = _by_layer(batches, batches.lookups, None, None) if per_layer else None
    return Outcome(record, layers, True)


def _counters(policy: Policy, cell: Cell, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's own totals as plain numbers, None for NaN."""
    taken = set(cell.counters) & set(record)
    if taken:
        raise UsageError(
            f"Policy {policy.name!r} has a counter {min(taken)!r}, as every result has; give it "
            "another name."
        )
    plain = {name: np.asarray(value).item() for name, value in cell.counters.items()}
    return {name: None if value != value else value for name, value in plain.items()}


def _identity(policy: Policy, batches: Batches, budget: int) -> dict[str, Any]:
    return {
        "policy": policy.name,
        "params": asdict(policy.params),
        "cache_bytes": budget,
        "cache_mib": budget / MIB,
        "under_token_cycle": budget < batches.token_cycle_bytes,
    }


def _figures(
    lookups: int,
    hits: int | None,
    lookups_decode: int,
    hits_decode: int | None,
    read_bytes: int | None,
    read_bytes_decode: int | None,
) -> dict[str, Any]:
    return {
        "lookups": lookups,
        "hits": hits,
        "hit_rate_cumulative": _rate(hits, lookups),
        "lookups_decode": lookups_decode,
        "hits_decode": hits_decode,
        "hit_rate_decode": _rate(hits_decode, lookups_decode),
        "read_bytes": read_bytes,
        "read_bytes_decode": read_bytes_decode,
    }


def _rate(part: int | None, whole: int) -> float | None:
    return None if part is None or whole == 0 else part / whole


def _by_layer(
    batches: Batches, lookups: np.ndarray, hits: np.ndarray | None, read_bytes: np.ndarray | None
) -> list[dict[str, Any]]:
    decode = batches.phase == DECODE

    def sums(per_batch: np.ndarray | None, which: np.ndarray | slice) -> list[int | None]:
        n_layers = len(batches.expert_bytes)
        if per_batch is None:
            return [None] * n_layers
        # Sums in float64 are exact below 2^53, which is 9 PB.
        sums = np.bincount(batches.layer[which], per_batch[which], n_layers)
        return sums.astype(np.int64).tolist()

    everything = slice(None)
    columns = (
        sums(per_batch, which)
        for per_batch in (lookups, hits, read_bytes)
        for which in (everything, decode)
    )
    return [
        {"layer": layer, **_figures(n, hit, n_decode, hit_decode, read, read_decode)}
        for layer, n, n_decode, hit, hit_decode, read, read_decode in zip(
            batches.layer_ids.tolist(), *columns, strict=True
        )
    ]

"""How much better a policy hits than another, with an interval."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd

from tracekit.arguments import names_in
from tracekit.policies import Batches, Cell, Policy, load_policy
from tracekit.replaying import build_batches, inputs_of, simulate
from tracekit.replaying.budgets import budgets_in_bytes
from tracekit.routing.turns import DecodedTurns
from tracekit.stats.bootstrap import Bootstrap
from tracekit.stats.units import Units
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE


def hit_rate_gains(
    trace: Trace,
    policies: str | Policy | Sequence[str | Policy] = ("retention",),
    cache_fraction: float | Sequence[float] = (0.1, 0.25, 0.5, 0.75),
    baseline: str | Policy = "lru",
    *,
    cache_bytes: int | Sequence[int] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Say how many more decode lookups hit than under `baseline`, at several budgets.

    Parameters
    ----------
    trace : Trace
    policies : str, Policy, or several of them
        That look up what the model selects, as those do that are not lossy.
    cache_fraction : float or sequence of float
        Budgets as fractions of the expert bank.
    baseline : str or Policy
    cache_bytes : int or sequence of int, optional
        Budgets in bytes, instead of the fractions.
    seed : int
        Of the intervals' bootstrap, which draws turns, or stretches of tokens, in pairs.

    Returns
    -------
    DataFrame
        One row per (policy, budget): ``policy``, ``params`` (a mapping), ``baseline`` (its name),
        ``cache_bytes``, ``cache_fraction``, ``token_cycle_bytes``, ``hit_rate_decode`` of the
        policy, ``baseline_hit_rate_decode``, ``gain`` (their difference, a fraction), ``ci95_low``,
        ``ci95_high`` (NaN where there is too little to draw from), ``demand_bytes_decode`` (read
        for lookups that missed: what a decoded token waits for), ``speculative_bytes_decode`` (read
        ahead).

    Raises
    ------
    UsageError
        An unknown policy, a lossy one, or one that has totals only (`bound`); a size that is
        none.
    TraceError
        No decoded token, or a policy's predictor lacks a column.
    """
    turns = DecodedTurns.of(trace)
    units = Units.of(turns.turn, turns.tokens)
    batches = build_batches(trace)
    fractions = cache_fraction if cache_bytes is None else None
    budgets = budgets_in_bytes(batches, None, None, fractions, cache_bytes)
    decode = batches.phase == DECODE
    unit = np.repeat(units.of_tokens(turns.tokens), len(batches.expert_bytes))

    def by_unit(per_batch: np.ndarray) -> np.ndarray:
        sums = np.bincount(unit, per_batch[decode], len(units))
        return sums.astype(np.int64)[:, None]

    shared: dict[tuple[str, int], Batches] = {}

    def cells(chosen: str | Policy) -> tuple[Policy, list[Cell]]:
        policy = load_policy(chosen) if isinstance(chosen, str) else chosen
        inputs = inputs_of(policy, trace, batches, shared=shared)
        found = [] if policy.lossy else simulate(policy, inputs, budgets)
        if not all(isinstance(cell, Cell) for cell in found) or not found:
            raise UsageError(
                f"{policy.name} cannot be compared lookup by lookup; take a policy that looks up "
                "every expert and has hits of its own."
            )
        return policy, found

    slots = by_unit(batches.lookups)
    bootstrap = Bootstrap(units.turn, seed)
    reference, plain = cells(baseline)
    rows = []
    for chosen in names_in(policies):
        policy, found = cells(chosen)
        for cell, base in zip(found, plain, strict=True):
            hits, against = by_unit(cell.hits), by_unit(base.hits)
            low, high = bootstrap.interval(hits, slots, against=against)
            rate, base_rate = hits.sum() / slots.sum(), against.sum() / slots.sum()
            demand, speculative = _decode_reads(batches, cell)
            rows.append(
                {
                    "policy": policy.name,
                    "params": asdict(policy.params),
                    "baseline": reference.name,
                    "cache_bytes": cell.budget_bytes,
                    "cache_fraction": cell.budget_bytes / batches.bank_bytes,
                    "token_cycle_bytes": batches.token_cycle_bytes,
                    "hit_rate_decode": rate,
                    "baseline_hit_rate_decode": base_rate,
                    "gain": rate - base_rate,
                    "ci95_low": low[0],
                    "ci95_high": high[0],
                    "demand_bytes_decode": demand,
                    "speculative_bytes_decode": speculative,
                }
            )
    return pd.DataFrame(rows)


def _decode_reads(batches: Batches, cell: Cell) -> tuple[int, int]:
    """Return the bytes read in decode batches for lookups that missed, and those read ahead."""
    decode = batches.phase == DECODE
    demand = (batches.lookups - cell.hits) * batches.expert_bytes[batches.layer]
    read = demand if cell.read_bytes is None else cell.read_bytes
    return int(demand[decode].sum()), int((read - demand)[decode].sum())

"""How much better a policy hits than another, with an interval."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from tracekit.analysis.paired import PairedRuns
from tracekit.arguments import names_in
from tracekit.figures import Declared, Unit
from tracekit.formats import as_trace
from tracekit.policies import Policy
from tracekit.replaying.budgets import budgets_in_bytes
from tracekit.replaying.inputs import Kept
from tracekit.replaying.reads import reads_of
from tracekit.trace import Trace

FRACTIONS = (0.1, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Gain:
    """How one policy compares with the baseline at one budget."""

    policy: Annotated[str, Declared(Unit.NAME, "the policy's name")]
    params: Annotated[Mapping[str, Any], Declared(Unit.MAPPING, "the policy's parameters, by name")]
    baseline: Annotated[str, Declared(Unit.NAME, "the policy that it is compared with")]
    cache_bytes: Annotated[int, Declared(Unit.BYTES, "the cache budget")]
    cache_fraction: Annotated[float, Declared(Unit.FRACTION, "the budget, of the expert bank")]
    bypass: Annotated[
        bool, Declared(Unit.FLAG, "the engine may drop at once what it has just used")
    ]
    token_cycle_bytes: Annotated[int, Declared(Unit.BYTES, "what one token touches")]
    hit_rate_decode: Annotated[
        float, Declared(Unit.FRACTION, "hits of the lookups of decoded tokens")
    ]
    baseline_hit_rate_decode: Annotated[
        float, Declared(Unit.FRACTION, "the same under the baseline")
    ]
    gain: Annotated[float, Declared(Unit.FRACTION, "how much higher the policy's hit rate is")]
    ci95_low: Annotated[
        float,
        Declared(Unit.FRACTION, "low end of the gain's 95 % interval, NaN with too few tokens"),
    ]
    ci95_high: Annotated[float, Declared(Unit.FRACTION, "high end of that interval")]
    demand_bytes_decode: Annotated[
        int, Declared(Unit.BYTES, "read for decode lookups that missed: what tokens wait for")
    ]
    speculative_bytes_decode: Annotated[
        int, Declared(Unit.BYTES, "read ahead for decoded tokens, useful or not")
    ]


def hit_rate_gains(
    trace: Trace | str | Path,
    policies: str | Policy | Sequence[str | Policy] = ("retention",),
    cache_fraction: float | Sequence[float] = FRACTIONS,
    baseline: str | Policy = "lru",
    *,
    cache_bytes: int | Sequence[int] | None = None,
    bypass: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """Say how many more decode lookups hit than under `baseline`, at several budgets.

    Parameters
    ----------
    trace : Trace, str or Path
    policies : str, Policy, or several of them
        That look up what the model selects, as those do that are not lossy.
    cache_fraction : float or sequence of float
        Budgets as fractions of the expert bank.
    baseline : str or Policy
    cache_bytes : int or sequence of int, optional
        Budgets in bytes, instead of the fractions.
    bypass : bool
        As for `tracekit.replay`, of the policies and of the baseline.
    seed : int
        Of the intervals' bootstrap, which draws turns, or stretches of tokens, in pairs.

    Returns
    -------
    DataFrame
        One row per (policy, budget), with the columns that `Gain` declares; the ends of the
        interval are NaN where there is too little to draw from.

    Raises
    ------
    UsageError
        An unknown policy, a lossy one, one that has totals only (`bound`) or no meaning with
        `bypass`; a size that is not from 0 on.
    TraceError
        No decoded token, or a policy's predictor lacks a column.
    """
    found = gains_over(
        trace, policies, cache_fraction, baseline, cache_bytes=cache_bytes, bypass=bypass, seed=seed
    )
    return pd.DataFrame([asdict(gain) for gain in found])


def gains_over(
    trace: Trace | str | Path,
    policies: str | Policy | Sequence[str | Policy],
    cache_fraction: float | Sequence[float] = FRACTIONS,
    baseline: str | Policy = "lru",
    *,
    cache_bytes: int | Sequence[int] | None = None,
    bypass: bool = False,
    seed: int = 0,
    kept: Kept | None = None,
) -> list[Gain]:
    """Return the rows of `hit_rate_gains`; guesses are taken from `kept`, and left there."""
    trace = as_trace(trace)
    runs = PairedRuns.of(trace, bypass, seed)
    runs.prepare(names_in(policies), kept)
    batches = runs.batches
    fractions = cache_fraction if cache_bytes is None else None
    budgets = budgets_in_bytes(batches, None, None, fractions, cache_bytes)
    slots = runs.by_unit(batches.lookups)[:, None]
    reference, reference_cells = runs.cells(baseline, budgets)
    gains = []
    for chosen in names_in(policies):
        policy, cells = runs.cells(chosen, budgets)
        for cell, base in zip(cells, reference_cells, strict=True):
            hits, base_hits = (runs.by_unit(c.hits)[:, None] for c in (cell, base))
            low, high = runs.bootstrap.interval(hits, slots, against=base_hits)
            rate, base_rate = hits.sum() / slots.sum(), base_hits.sum() / slots.sum()
            reads = reads_of(batches, cell)
            ahead = reads.read_bytes - reads.demand_bytes
            gains.append(
                Gain(
                    policy=policy.name,
                    params=asdict(policy.params),
                    baseline=reference.name,
                    cache_bytes=cell.budget_bytes,
                    cache_fraction=cell.budget_bytes / batches.bank_bytes,
                    bypass=bypass,
                    token_cycle_bytes=batches.token_cycle_bytes,
                    hit_rate_decode=float(rate),
                    baseline_hit_rate_decode=float(base_rate),
                    gain=float(rate - base_rate),
                    ci95_low=float(low[0]),
                    ci95_high=float(high[0]),
                    demand_bytes_decode=int(reads.demand_bytes[runs.decode].sum()),
                    speculative_bytes_decode=int(ahead[runs.decode].sum()),
                )
            )
    return gains

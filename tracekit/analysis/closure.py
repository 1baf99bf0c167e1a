"""How much of the way from LRU to Belady a policy closes: the ranking of policies."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from tracekit.analysis.paired import PairedRuns
from tracekit.arguments import names_in
from tracekit.figures import MIB, Declared, Unit
from tracekit.formats import as_trace
from tracekit.policies import POLICIES, Cell, Policy
from tracekit.replaying.budgets import Sizes, budgets_in_bytes
from tracekit.replaying.inputs import NoMeaningError
from tracekit.replaying.kept import kept_to_budget
from tracekit.replaying.reads import reads_of
from tracekit.trace import Trace
from tracekit.trace.errors import MissingDataError

FRACTIONS = (0.05, 0.1, 0.2, 0.35, 0.5)
BASELINE, IDEAL = "lru", "belady"


@dataclass(frozen=True)
class Closure:
    """How far one policy comes from LRU towards Belady at one budget, and on average over all."""

    policy: Annotated[str, Declared(Unit.NAME, "the policy's name")]
    params: Annotated[Mapping[str, Any], Declared(Unit.MAPPING, "the policy's parameters, by name")]
    requires: Annotated[
        str, Declared(Unit.NAME, "what an engine has to know besides what its cache has seen")
    ]
    state_bytes: Annotated[
        int, Declared(Unit.BYTES, "what it keeps in memory besides the list of residents")
    ]
    cache_bytes: Annotated[
        int | None,
        Declared(Unit.BYTES, "the cache budget; null where sizes of experts are not known"),
    ]
    cache_mib: Annotated[float | None, Declared(Unit.MIB, "the cache budget")]
    cache_fraction: Annotated[float, Declared(Unit.FRACTION, "the budget, of the expert bank")]
    hit_rate_decode: Annotated[
        float, Declared(Unit.FRACTION, "hits of the lookups of decoded tokens")
    ]
    read_bytes_decode: Annotated[int | None, Declared(Unit.BYTES, "bytes read for decoded tokens")]
    closure: Annotated[
        float | None,
        Declared(Unit.FRACTION, "(its hits − those of LRU) / (hits of Belady − those of LRU)"),
    ]
    closure_low: Annotated[
        float | None, Declared(Unit.FRACTION, "low end of the closure's 95 % interval")
    ]
    closure_high: Annotated[float | None, Declared(Unit.FRACTION, "high end of that interval")]
    mean_closure: Annotated[
        float | None, Declared(Unit.FRACTION, "the mean of its closures over the budgets")
    ]
    mean_closure_low: Annotated[
        float | None, Declared(Unit.FRACTION, "low end of the mean's 95 % interval")
    ]
    mean_closure_high: Annotated[float | None, Declared(Unit.FRACTION, "high end of that interval")]


def demand_policies() -> list[str]:
    """Return the policies that the ranking is of: an engine can run them, without a predictor.

    They look up all that the model selects and read only what is asked for.
    """
    return [
        cls.name
        for cls in POLICIES
        if not (cls.offline or cls.lossy or cls.speculative or cls.needs_predictor)
    ]


def closures(
    trace: Trace | str | Path,
    policies: str | Policy | Sequence[str | Policy] | None = None,
    *,
    cache_mib: Sizes = None,
    cache_fraction: Sizes = None,
    cache_bytes: int | Sequence[int] | None = None,
    bypass: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """Say how much of the way from LRU to Belady each policy closes, in decode hits.

    The closure is ``(policy − LRU) / (Belady − LRU)``. Its intervals come from draws of turns, or of
    stretches of tokens: the same draws for every policy, and for LRU and Belady.

    Parameters
    ----------
    trace : Trace, str or Path
    policies : str, Policy, or several of them, optional
        All that `demand_policies` names, where the trace has what they need.
    cache_mib, cache_fraction, cache_bytes : number or sequence of numbers, optional
        Budgets; 5, 10, 20, 35 and 50 % of the expert bank by default.
    bypass : bool
        As for `tracekit.replay`; policies that have no meaning under it are left out.
    seed : int
        Of the draws.

    Returns
    -------
    DataFrame
        One row per policy and budget, with the columns that `Closure` declares, LRU (0) and Belady
        (1) too; the highest mean first. ``attrs["notes"]`` says which policies were left out. A policy
        that keeps more than its budget while decoding has no closure there, and no mean.

    Raises
    ------
    UsageError
        An unknown policy, or one whose hits are not of the same lookups.
    TraceError
        There is no decoded token.
    """
    trace = as_trace(trace)
    runs = PairedRuns.of(trace, bypass, seed)
    if cache_mib is None and cache_fraction is None and cache_bytes is None:
        cache_fraction = FRACTIONS
    budgets = budgets_in_bytes(runs.batches, None, cache_mib, cache_fraction, cache_bytes)
    chosen = demand_policies() if policies is None else names_in(policies)
    names = [_name(each) for each in chosen]
    chosen = [*chosen, *(name for name in (BASELINE, IDEAL) if name not in names)]
    base, ideal = (_hits(runs, runs.cells(name, budgets)[1]) for name in (BASELINE, IDEAL))
    found: list[Closure] = []
    notes: list[str] = []
    for each in chosen:
        try:
            policy, cells = runs.cells(each, budgets)
        except (MissingDataError, NoMeaningError) as error:
            notes.append(f"Left out: {_name(each)}, because {error}")
            continue
        found += _rows(runs, policy, cells, base, ideal)
    frame = pd.DataFrame([asdict(row) for row in found])
    frame = frame.sort_values("mean_closure", ascending=False, kind="stable", ignore_index=True)
    frame.attrs["notes"] = notes
    return frame


def _name(policy: str | Policy) -> str:
    return policy.name if isinstance(policy, Policy) else policy


def _rows(
    runs: PairedRuns, policy: Policy, cells: Sequence[Cell], base: np.ndarray, ideal: np.ndarray
) -> list[Closure]:
    """Return the rows of a policy; `base` and `ideal` are the hits of LRU and Belady, [U, C]."""
    batches = runs.batches
    lookups = runs.by_unit(batches.lookups)
    hits = _hits(runs, cells)
    gained, gap = hits - base, ideal - base
    closure = _ratio(gained.sum(axis=0), gap.sum(axis=0))
    low, high = runs.bootstrap.intervals_of_ratios(gained, gap, lookups > 0)
    later = batches.after_first_decode
    overran = [not kept_to_budget(batches, cell)[later].all() for cell in cells]
    for figures in (closure, low[:-1], high[:-1]):
        figures[overran] = np.nan  # more room than the others have
    if any(overran):
        low[-1] = high[-1] = np.nan
    state = policy.state(len(batches.expert_bytes), batches.n_expert, batches.top_k)
    return [
        Closure(
            policy=policy.name,
            params=asdict(policy.params),
            requires=policy.requires,
            state_bytes=sum(array.size_bytes for array in state),
            cache_bytes=cell.budget_bytes if batches.sized else None,
            cache_mib=cell.budget_bytes / MIB if batches.sized else None,
            cache_fraction=cell.budget_bytes / batches.bank_bytes,
            hit_rate_decode=float(hits[:, c].sum() / lookups.sum()),
            read_bytes_decode=(
                int(reads_of(batches, cell).read_bytes[runs.decode].sum())
                if batches.sized
                else None
            ),
            closure=float(closure[c]),
            closure_low=float(low[c]),
            closure_high=float(high[c]),
            mean_closure=float(closure.mean()),
            mean_closure_low=float(low[-1]),
            mean_closure_high=float(high[-1]),
        )
        for c, cell in enumerate(cells)
    ]


def _hits(runs: PairedRuns, cells: Sequence[Cell]) -> np.ndarray:
    """Return the decode hits of each unit at each budget, int64 [U, C]."""
    return np.column_stack([runs.by_unit(cell.hits) for cell in cells])


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole; NaN where Belady has no more hits than LRU."""
    ratio = np.full(part.shape, np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio

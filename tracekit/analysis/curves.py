"""Hit rate by cache budget, with everything that limits it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.formats import as_trace
from tracekit.policies import Batches, Policy
from tracekit.policies.model import Model
from tracekit.replaying import ReplayResult, build_batches, replay
from tracekit.timing import Fit
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE

POLICIES = ("bound", "belady", "follow", "lru", "lfu", "layer-lru")


def hit_rate_curves(
    trace: Trace | str | Path,
    policies: str | Policy | Sequence[str | Policy] = POLICIES,
    cache_bytes: int | Sequence[int] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    bypass: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    time: bool | Fit = False,
) -> pd.DataFrame:
    """Replay policies over a range of budgets.

    Parameters
    ----------
    trace : Trace, str or Path
    policies : str, Policy, or several of them
    cache_bytes : int or sequence of int, optional
        Budgets; by default a grid from nothing to all that the trace touches (more changes
        nothing), finer up to two token cycles, with a point at the token cycle and one at k
        experts under it, where LRU's cliff stands.
    params, bypass, seed, jobs, time
        As for `tracekit.replay`.

    Returns
    -------
    DataFrame
        The rows of `tracekit.replay`, one per policy and budget, and on each of them
        ``token_cycle_bytes``, ``bank_bytes``, ``ceiling_decode`` and ``ceiling_cumulative``: the
        hit rate of a cache that holds everything, which misses first uses only. What cannot run on
        the trace is left out: ``attrs["notes"]`` of the frame says so.

    Raises
    ------
    TraceError
        A layer's expert size is missing.
    UsageError
        An unknown policy.
    """
    trace = as_trace(trace)
    batches = build_batches(trace)
    if cache_bytes is None:
        cache_bytes = budget_grid(batches)
    result = replay(
        trace,
        policies,
        cache_bytes=cache_bytes,
        params=params,
        bypass=bypass,
        seed=seed,
        jobs=jobs,
        time=time,
    )
    return _with_limits(result, batches)


def curves_replayed(result: ReplayResult) -> pd.DataFrame:
    """Return the rows of `hit_rate_curves` from a replay that was run already."""
    return _with_limits(result, build_batches(result.trace))


def _with_limits(result: ReplayResult, batches: Batches) -> pd.DataFrame:
    decode, cumulative = _ceilings(batches)
    frame = result.frame.assign(
        token_cycle_bytes=batches.token_cycle_bytes,
        bank_bytes=batches.bank_bytes,
        ceiling_decode=decode,
        ceiling_cumulative=cumulative,
    )
    frame.attrs["notes"] = [note for note in result.notes if note.startswith("Left out: ")]
    return frame


def budget_grid(batches: Batches) -> list[int]:
    """Return budgets that show a curve whole and its cliff exactly, in bytes."""
    touched = int(batches.key_bytes[batches.first_use < len(batches.keys)].sum())
    return budgets_of_curves(batches, touched)


def budgets_of_curves(model: Model, touched: int) -> list[int]:
    """Return the same of a run of `model` that touches `touched` bytes."""
    cycle = model.token_cycle_bytes
    cliff = cycle - model.top_k * int(model.expert_bytes.max())
    grid = {0, cliff, cycle, touched}
    grid |= {int(size) for size in np.linspace(0, touched, 25)}
    grid |= {int(size) for size in np.linspace(0, min(2 * cycle, touched), 9)}
    return sorted(grid)


def _ceilings(batches: Batches) -> tuple[float, float]:
    """Return the hit rates with every expert resident, of decode lookups and of all."""
    first, decode = batches.first_lookups, batches.phase == DECODE
    of_decode, of_all = (
        _share(int((batches.lookups - first)[which].sum()), int(batches.lookups[which].sum()))
        for which in (decode, slice(None))
    )
    return of_decode, of_all


def _share(part: int, whole: int) -> float:
    return part / whole if whole else np.nan

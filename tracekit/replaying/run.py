"""`replay`: policies × budgets over one trace."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.formats import ExpertCounts
from tracekit.policies import Policy
from tracekit.replaying.budgets import Sizes
from tracekit.replaying.inputs import Kept
from tracekit.replaying.prepare import DEFAULT_POLICIES, Prepared, prepare
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.rows import Row
from tracekit.replaying.threads import on_threads, threads_of
from tracekit.timing import Fit
from tracekit.trace import Trace

# Cells in flight hold 12 bytes a batch each; budgets in one task share a pass where a policy can.
_CELLS_IN_FLIGHT = 8
_MOST_BUDGETS_A_TASK = 4


def replay(
    trace: Trace,
    policies: str | Policy | Iterable[str | Policy] = DEFAULT_POLICIES,
    *,
    cache_mib: Sizes = None,
    cache_fraction: Sizes = None,
    cache_bytes: int | Sequence[int] | None = None,
    cache_slots: int | Sequence[int] | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    bypass: bool = False,
    per_layer: bool = False,
    validate: bool = False,
    flash_mib_s: float | None = None,
    time: bool | Fit = False,
    train: Trace | None = None,
    skip: int = 0,
    warm: Trace | None = None,
    pin_from: ExpertCounts | Trace | str | Path | None = None,
    from_disk: bool | None = None,
    kept: Kept | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayResult:
    """Replay a trace under cache policies at several budgets.

    The accounting is that of a real engine: each distinct expert of a layer load is looked up once,
    a miss is read whole, and after the load entries that it did not touch are evicted until the
    rest fits the budget. The cache persists across turns. With `bypass`, entries that the load touched
    may go too.

    Parameters
    ----------
    trace : Trace
        From ``tracekit.open_trace``.
    policies : str, Policy, or several of them
        Names (``tracekit policies`` lists them), ``module:Class`` for one of your own, classes or
        instances. A policy is left out if its predictor cannot run on this trace; a note says so.
    cache_mib, cache_fraction, cache_bytes : number or sequence of numbers, optional
        Budgets in MiB, as fractions of the expert bank, in bytes; 0 is legal. By default the budget
        the engine ran with, or 10, 25 and 50 % of the bank if the trace does not carry it. Of a
        trace that gives no size of experts all are taken for equal, only fractions can be given,
        and no figure is in bytes.
    cache_slots : int or sequence of int, optional
        Budgets in experts of every MoE layer, instead of those sizes. A policy with a share for each
        layer holds exactly so many of each; any other has as many bytes as they take in all.
    params : mapping, optional
        ``{"random.seed": 3}`` or, for a result at each, ``{"random.seed": [1, 2, 3]}``.
    seed : int
        Seed of every policy that draws random numbers and is given no other.
    jobs : int, optional
        Threads; as many as there are processor cores by default.
    bypass : bool
        The engine may drop at once what it has just used: it stages what it reads in a scratch
        buffer, which is not charged to the cache, and it keeps to the budget after every load. A
        policy that has no meaning under this is left out; a note says so.
    per_layer : bool
        Figures of each layer too.
    validate : bool
        Compare every decode lookup with the residency that the engine recorded, at the budget it
        had.
    flash_mib_s : float, optional
        Reading rate of flash in MiB a second: rows then say how many milliseconds it is busy
        for a decoded token, ``flash_ms_per_token_decode``. With `time`, by default the rate that
        the fit gives, 1000 / b.
    time : bool or Fit
        Say how long decoded tokens would take: by a fit to the times that `trace` itself carries
        (True), or by one to another recording of the model on the device, from
        ``tracekit.timing.fit``.
    train : Trace, optional
        A trace of the same model, on which what a policy acts on is learned. By default it is learned
        on the turns of `trace` that are not being replayed.
    skip : int
        The first so many decoded tokens of each turn are replayed, and not counted in figures of
        decoded tokens.
    warm : Trace, optional
        A trace of the same model that is replayed first, under the same policy and budget, and
        counts in no figure: it fills the cache. A policy that acts on a prediction does so there
        too.
    pin_from : ExpertCounts, Trace, str or Path, optional
        How often each expert was used, another trace of the same model, or a file of either: policies
        such as `pin` go by these counts and not by what they would learn.
    from_disk : bool, optional
        Read the trace piece by piece and hold none of it, for policies that can be fed so. By
        default only where it would take a quarter of the memory of this machine or more. Figures are
        the same. A policy that cannot holds it in memory, and a note says so.
    kept : dict, optional
        What predictors guess, where the replay leaves it, for other replays of the same trace with the
        same `seed` and `train`.
    progress : callable, optional
        Called with (done, total) as cells get done.

    Returns
    -------
    ReplayResult
        One row per policy, parameters and budget, in the order given.

    Raises
    ------
    UsageError
        A policy or parameter is unknown, a number is out of its range, there is nothing to validate
        against, no policy goes by `pin_from` or it holds the routings of `trace`, `time` is no fit,
        `skip` leaves nothing to count, or `from_disk` is asked for with what needs the whole run:
        `validate`, `time` or `warm`.
    TraceError
        The sizes of only some layers' experts are known, or `warm`, `pin_from` or the fit is of
        another model.
    MissingDataError
        No policy can run on this trace. Or a size in MiB or bytes, or a rate of flash, is given, or
        times are asked for, and the sizes of experts are not known. Or `trace` has no times.
    """
    threads = threads_of(jobs)
    work = prepare(
        trace,
        policies,
        cache_mib=cache_mib,
        cache_fraction=cache_fraction,
        cache_bytes=cache_bytes,
        cache_slots=cache_slots,
        params=params,
        seed=seed,
        bypass=bypass,
        per_layer=per_layer,
        validate=validate,
        flash_mib_s=flash_mib_s,
        time=time,
        train=train,
        skip=skip,
        warm=warm,
        pin_from=pin_from,
        from_disk=from_disk,
        kept=kept,
        jobs=threads,
    )
    return work.result(rows_of_all(work, threads, progress))


def rows_of_all(
    work: Prepared,
    jobs: int,
    progress: Callable[[int, int], None] | None = None,
    budgets_of: Callable[[Policy], Sequence[int]] | None = None,
) -> list[list[Row]]:
    """Run the cells of `work`; return the rows by run and budget.

    Parameters
    ----------
    work : Prepared
    jobs : int
        Threads.
    progress : callable, optional
        Called with (done, total) cells.
    budgets_of : callable, optional
        Which of the budgets a policy is replayed at; all by default. Bounds are replayed where they are
        needed.
    """
    asked = _asked(work, budgets_of)
    size = budgets_a_task(jobs)
    by_run: list[list[Row]] = [[] for _ in work.policies]
    total, done = sum(map(len, asked)), 0

    def tell(cells: int) -> None:
        if progress is not None:
            progress(cells, total)

    for budgets, runs in _alike(asked, work.from_pieces):
        n_fed = len(runs) * len(budgets)

        def tell_share(share: float, n: int = n_fed, before: int = done) -> None:
            tell(before + int(share * n))

        fed = work.fed_rows(runs, budgets, size, jobs, tell_share)
        for run, rows in zip(runs, fed, strict=True):
            by_run[run] = rows
        done += n_fed
    in_memory = [run for run in range(len(by_run)) if run not in work.from_pieces]
    at_once = {run: len(asked[run]) if run in work.in_one_pass else size for run in in_memory}
    tasks = [
        (run, asked[run][start : start + n])
        for run, n in at_once.items()
        for start in range(0, len(asked[run]), max(n, 1))
    ]
    by_task: dict[int, list[Row]] = {}
    for index, rows in on_threads(lambda task: work.rows_of(*task), tasks, jobs):
        by_task[index] = rows
        done += len(rows)
        tell(done)
    for index, (run, _) in enumerate(tasks):
        by_run[run] += by_task[index]
    return by_run


def _asked(
    work: Prepared, budgets_of: Callable[[Policy], Sequence[int]] | None
) -> list[np.ndarray]:
    """Return the budgets that each run is replayed at, in the order of those of `work`."""
    if budgets_of is None:
        return [work.budgets] * len(work.policies)
    wanted: list[set[int]] = [set() for _ in work.policies]
    for run, bound in enumerate(work.bound_of):
        wanted[run] |= set(budgets_of(work.policies[run]))
        if bound is not None:
            wanted[bound] |= wanted[run]
    return [work.budgets[np.isin(work.budgets, sorted(of_run))] for of_run in wanted]


def _alike(
    asked: Sequence[np.ndarray], runs: Sequence[int]
) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Give the runs that are asked for at the same budgets together, with these budgets."""
    together: dict[bytes, list[int]] = {}
    for run in runs:
        if len(asked[run]):
            together.setdefault(asked[run].tobytes(), []).append(run)
    for of_same in together.values():
        yield asked[of_same[0]], of_same


def budgets_a_task(jobs: int) -> int:
    """Return how many budgets one task has where `jobs` of them run at once in a process."""
    return max(1, min(_MOST_BUDGETS_A_TASK, _CELLS_IN_FLIGHT // jobs))

"""`replay`: policies × budgets over one trace."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.arguments import names_in, whole
from tracekit.figures import MIB
from tracekit.formats import ExpertCounts
from tracekit.policies import Bound, Cell, Policy, load_policies
from tracekit.policies.bound import bound_of
from tracekit.replaying.agreement import verified
from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.batches import build_batches
from tracekit.replaying.budgets import Sizes, budgets_in_bytes
from tracekit.replaying.counting import Counted, without_first
from tracekit.replaying.inputs import Runnable, runnable
from tracekit.replaying.notes import notes, other_cache_than_recorded, unranked
from tracekit.replaying.popularity import counts_for
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.rows import Row, row_of
from tracekit.replaying.threads import on_threads
from tracekit.replaying.timed import against_lru, time_notes
from tracekit.replaying.times import calibration_of, summary, time_of
from tracekit.replaying.validate import recorded_residency
from tracekit.replaying.warming import Warm
from tracekit.timing import Fit
from tracekit.trace import Trace, UsageError
from tracekit.trace.errors import MissingDataError

DEFAULT_POLICIES = ("lru", "belady", "bound")
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
    pin_from: ExpertCounts | str | Path | None = None,
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
    pin_from : ExpertCounts, str or Path, optional
        How often each expert was used, or a file that says so: policies such as `pin` go by these
        counts and not by what they would learn.
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
        against, no policy goes by `pin_from`, `time` is no fit, or `skip` leaves nothing to count.
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
    )
    return work.result(_on_threads(work, threads, progress))


@dataclass(frozen=True, eq=False)
class Prepared:
    """A replay of which nothing has run yet; whoever holds it may run its cells in any order.

    Attributes
    ----------
    policies : list of Policy
        What is replayed: the policies asked for, then the bounds that they are compared with.
    budgets : int64 [C]
    rows_of : callable
        ``rows_of(run, some of the budgets)`` replays ``policies[run]`` and gives a row for each.
    result : callable
        Takes the rows of every run, in the order of `budgets`, and gives the result.
    """

    policies: list[Policy]
    budgets: np.ndarray
    rows_of: Callable[[int, np.ndarray], list[Row]]
    result: Callable[[list[list[Row]]], ReplayResult]


def prepare(
    trace: Trace,
    policies: str | Policy | Iterable[str | Policy] = DEFAULT_POLICIES,
    *,
    cache_mib: Sizes = None,
    cache_fraction: Sizes = None,
    cache_bytes: int | Sequence[int] | None = None,
    cache_slots: int | Sequence[int] | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    bypass: bool = False,
    per_layer: bool = False,
    validate: bool = False,
    flash_mib_s: float | None = None,
    time: bool | Fit = False,
    train: Trace | None = None,
    skip: int = 0,
    warm: Trace | None = None,
    pin_from: ExpertCounts | str | Path | None = None,
) -> Prepared:
    """Do all of a replay that comes before its cells; arguments and errors are those of `replay`."""
    seed = whole("seed", seed, 0)
    if flash_mib_s is not None and not 0 < flash_mib_s < math.inf:
        raise UsageError(f"flash_mib_s takes a rate above 0, not {flash_mib_s!r}.")
    skip = whole("skip", skip, 0, "a number of tokens")
    if validate and warm is not None:
        raise UsageError(
            "A recording began with an empty cache, and with warm a replay does not; leave out warm or "
            "validate."
        )
    loaded, demand = _with_bound(policies, params, seed)
    trace = verified(trace)
    if train is not None:
        from tracekit.scoring.usable import check_training  # it loads all predictors

        check_training(trace, train)
    counts = counts_for(pin_from, trace, loaded)
    lossy = any(policy.lossy for policy in loaded)
    batches = build_batches(trace, lossy, bool(bypass), equal_sizes=True)
    if (flash_mib_s is not None or time) and not batches.sized:
        what = "How long a token takes" if time else "How long flash is busy"
        raise MissingDataError(
            f"{what} cannot be said, since the trace does not say how many bytes an "
            "expert has; `tracekit import` takes --model PATH or --expert-mib M."
        )
    calibration = calibration_of(time, trace)
    if flash_mib_s is None and calibration is not None and calibration.refusal is None:
        flash_mib_s = calibration.flash_mib_s
    batches = replace(batches, in_slots=cache_slots is not None)
    batches, counted = without_first(trace, batches, skip)
    first = None if warm is None else Warm.of(verified(warm), trace, batches)
    recorded = recorded_residency(trace, batches) if validate else None
    sizes = (cache_mib, cache_fraction, cache_bytes, cache_slots)
    no_budget_given = all(size is None for size in sizes)
    if validate and no_budget_given and trace.budget_bytes is None:
        raise UsageError(
            f"{trace.name} does not say how large its engine's cache was, and lookups differ at "
            "another size; give that size with --cache-mib."
        )
    budgets = budgets_in_bytes(batches, trace.budget_bytes, *sizes)
    chosen, left_out = runnable(loaded, trace, batches, seed, train, counts, first)
    if validate:
        left_out += other_cache_than_recorded(trace, [run.policy.name for run in chosen], budgets)
    # The distance to its bound is part of every row, so the bounds are always replayed.
    bounds = [bound_of(run.policy, demand) for run in chosen]
    whole_run = next(each.batches for each in chosen)
    replayed = [*chosen]
    place = {}
    for bound in filter(None, bounds):
        asked = [i for i, run in enumerate(replayed) if run.policy == bound]
        place[bound] = asked[0] if asked else len(replayed)
        if not asked:
            replayed.append(Runnable(bound, whole_run))

    def rows_of(run: int, part: np.ndarray) -> list[Row]:
        policy, given = replayed[run].policy, replayed[run].batches
        cells = simulate(policy, given, part, per_lookup=validate)
        rows = []
        for cell in cells:
            row = row_of(policy, given, cell, per_layer)
            if calibration is not None:
                row = replace(row, time=time_of(calibration, policy, given, cell))
            if recorded is not None and isinstance(cell, Cell):
                row = replace(row, validation=recorded.compare(policy, cell))
            rows.append(row)
        return rows

    _ = whole_run.next_use  # found once, before threads would each do it
    if calibration is not None and calibration.refusal is None:
        _ = calibration.draws

    def result(by_run: list[list[Row]]) -> ReplayResult:
        rows = [
            row.under(bound, limit)
            for bound, of_run in zip(bounds, by_run, strict=False)
            for row, limit in zip(of_run, by_run[place[bound]] if bound else of_run, strict=True)
        ]
        if calibration is not None:
            rows = against_lru(rows, calibration.spread)
        if flash_mib_s is not None:
            rows = [_with_flash_time(row, counted, flash_mib_s) for row in rows]
        if not batches.sized:
            rows = [row.without_bytes() for row in rows]
        config = {
            "policies": list(dict.fromkeys(run.policy.name for run in chosen)),
            "bank_bytes": batches.bank_bytes if batches.sized else None,
            "token_cycle_bytes": batches.token_cycle_bytes if batches.sized else None,
            "tokens_decode": counted.tokens,
            "passes_decode": counted.passes,
            "cache_bytes": budgets.tolist() if batches.sized else None,
            "cache_slots": [batches.slots(int(b)) for b in budgets] if batches.in_slots else None,
            "cache_fraction": [float(budget) / max(1, batches.bank_bytes) for budget in budgets],
            "seed": seed,
            "bypass": batches.bypass,
            "per_layer": per_layer,
            "validate": validate,
            "flash_mib_s": flash_mib_s,
            "time": None if calibration is None else summary(calibration, trace),
            "train": None if train is None else train.name,
            "skip": skip,
            "warm": None if warm is None else warm.name,
            "pin_from": None if counts is None else counts.name,
        }
        return ReplayResult(
            rows=rows,
            config=config,
            notes=[
                *trace.warnings,
                *left_out,
                *notes(batches, rows),
                *unranked(trace),
                *(time_notes(rows, calibration) if calibration is not None else ()),
            ],
            trace=trace,
        )

    return Prepared([run.policy for run in replayed], budgets, rows_of, result)


def _with_bound(
    policies: str | Policy | Iterable[str | Policy], params: Mapping[str, Any] | None, seed: int
) -> tuple[list[Policy], Bound]:
    """Load the policies, and the bound that they are compared with.

    That is the tightest that was asked for. ``bound.prices`` may be given without naming `bound`.
    """
    named = names_in(policies)
    given = dict(params or {})
    is_named = any(isinstance(each, Bound) or each == Bound.name for each in named)
    if is_named or not any(name.startswith(f"{Bound.name}.") for name in given):
        loaded = load_policies(named, given, seed)
        bounds = [policy for policy in loaded if isinstance(policy, Bound)]
    else:
        of_bound = {name: given.pop(name) for name in [*given] if name.startswith(f"{Bound.name}.")}
        bounds = [each for each in load_policies(Bound.name, of_bound) if isinstance(each, Bound)]
        loaded = load_policies(named, given, seed)
    return loaded, max(bounds, key=lambda each: each.params.prices, default=Bound())


def _on_threads(
    work: Prepared, jobs: int, progress: Callable[[int, int], None] | None
) -> list[list[Row]]:
    """Run all cells of `work`; return the rows by run and budget."""
    n_runs, budgets = len(work.policies), work.budgets
    size = budgets_a_task(jobs)
    tasks = [(run, start) for run in range(n_runs) for start in range(0, len(budgets), size)]
    by_task: dict[tuple[int, int], list[Row]] = {}
    done = 0
    for index, rows in on_threads(
        lambda task: work.rows_of(task[0], budgets[task[1] : task[1] + size]), tasks, jobs
    ):
        by_task[tasks[index]] = rows
        done += len(rows)
        if progress is not None:
            progress(done, n_runs * len(budgets))
    by_run: list[list[Row]] = [[] for _ in range(n_runs)]
    for run, start in tasks:
        by_run[run] += by_task[run, start]
    return by_run


def threads_of(jobs: int | None) -> int:
    """Return how many threads the argument `jobs` asks for; errors are those of `replay`."""
    return os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")


def budgets_a_task(jobs: int) -> int:
    """Return how many budgets one task has where `jobs` of them run at once in a process."""
    return max(1, min(_MOST_BUDGETS_A_TASK, _CELLS_IN_FLIGHT // jobs))


def _with_flash_time(row: Row, counted: Counted, flash_mib_s: float) -> Row:
    if row.read_bytes_decode is None or not counted.tokens:
        return row
    busy_ms = 1e3 * row.read_bytes_decode / MIB / flash_mib_s
    return replace(
        row,
        flash_ms_per_token_decode=busy_ms / counted.tokens,
        flash_ms_per_pass_decode=busy_ms / counted.passes,
    )

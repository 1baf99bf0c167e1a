"""`replay`: policies × budgets over one trace."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.arguments import names_in, whole
from tracekit.figures import MIB
from tracekit.formats import ExpertCounts
from tracekit.policies import Bound, Cell, Limit, Policy, load_policies
from tracekit.policies.bound import bound_of
from tracekit.policies.totals import Totals
from tracekit.replaying.agreement import verified
from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.batches import batches_of, columns_for, model_of, no_batches
from tracekit.replaying.budgets import Sizes, budgets_in_bytes
from tracekit.replaying.counting import Counted, without_first
from tracekit.replaying.from_disk import can_be_fed, rows_from_disk
from tracekit.replaying.inputs import Runnable, runnable
from tracekit.replaying.loads import Loads
from tracekit.replaying.memory import is_large
from tracekit.replaying.notes import (
    held_in_memory,
    notes,
    other_cache_than_recorded,
    unranked,
)
from tracekit.replaying.pieces import Pieces
from tracekit.replaying.popularity import counts_for
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.rows import Row
from tracekit.replaying.tally import row_of
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
    pin_from: ExpertCounts | Trace | str | Path | None = None,
    from_disk: bool | None = None,
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
    seed = whole("seed", seed, 0)
    jobs = os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")
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
    on_disk = _is_from_disk(from_disk, trace, validate=validate, time=time, warm=warm)
    fed = [policy for policy in loaded if on_disk and can_be_fed(policy)]
    model = replace(
        model_of(trace, bool(bypass), equal_sizes=True), in_slots=cache_slots is not None
    )
    if (flash_mib_s is not None or time) and not model.sized:
        what = "How long a token takes" if time else "How long flash is busy"
        raise MissingDataError(
            f"{what} cannot be said, since the trace does not say how many bytes an "
            "expert has; `tracekit import` takes --model PATH or --expert-mib M."
        )
    calibration = calibration_of(time, trace)
    if flash_mib_s is None and calibration is not None and calibration.refusal is None:
        flash_mib_s = calibration.flash_mib_s
    counted = without_first(trace, skip)
    lossy = any(policy.lossy for policy in loaded)
    if len(fed) == len(loaded):
        batches = no_batches(model)
    else:
        batches = counted.marked(batches_of(model, trace.routing(columns_for(trace, lossy))))
    first = None if warm is None else Warm.of(verified(warm), trace, batches)
    recorded = recorded_residency(trace, batches) if validate else None
    sizes = (cache_mib, cache_fraction, cache_bytes, cache_slots)
    no_budget_given = all(size is None for size in sizes)
    if validate and no_budget_given and trace.budget_bytes is None:
        raise UsageError(
            f"{trace.name} does not say how large its engine's cache was, and lookups differ at "
            "another size; give that size with --cache-mib."
        )
    budgets = budgets_in_bytes(model, trace.budget_bytes, *sizes)
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
        cells: Sequence[Cell | Limit | Totals] = (
            policy.totals(given, part)
            if run in in_totals
            else simulate(policy, given, part, per_lookup=validate)
        )
        rows = []
        for cell in cells:
            row = row_of(policy, given, cell, per_layer)
            if calibration is not None and not isinstance(cell, Totals):
                row = replace(row, time=time_of(calibration, policy, given, cell))
            if recorded is not None and isinstance(cell, Cell):
                row = replace(row, validation=recorded.compare(policy, cell))
            rows.append(row)
        return rows

    budgets_a_task = max(1, min(_MOST_BUDGETS_A_TASK, _CELLS_IN_FLIGHT // jobs))
    from_pieces = [i for i, run in enumerate(replayed) if on_disk and can_be_fed(run.policy)]
    in_memory = [i for i in range(len(replayed)) if i not in from_pieces]
    needs_batches = validate or calibration is not None
    in_totals = [
        i for i in in_memory if not needs_batches and _has_totals(replayed[i], len(budgets))
    ]
    done = _Done(len(replayed) * len(budgets), progress)
    by_run: dict[int, list[Row]] = {}
    loads = Loads().with_those_of(batches)
    if from_pieces:
        fed_rows, loads = rows_from_disk(
            Pieces(trace, model, counted),
            [policy for i in from_pieces if can_be_fed(policy := replayed[i].policy)],
            budgets,
            budgets_a_task,
            per_layer,
            jobs,
            lambda share: done.so_far(int(share * len(from_pieces) * len(budgets))),
        )
        by_run |= zip(from_pieces, fed_rows, strict=True)
        done.base = len(from_pieces) * len(budgets)
    if in_memory:
        _ = whole_run.next_use  # found once, before threads would each do it
        if calibration is not None and calibration.refusal is None:
            _ = calibration.draws
        at_once = {run: len(budgets) if run in in_totals else budgets_a_task for run in in_memory}
        by_run |= _on_threads(rows_of, at_once, budgets, jobs, done.so_far)
    rows = [
        row.under(bound, limit)
        for i, bound in enumerate(bounds)
        for row, limit in zip(by_run[i], by_run[place[bound]] if bound else by_run[i], strict=True)
    ]
    if calibration is not None:
        rows = against_lru(rows, calibration.spread)
    if flash_mib_s is not None:
        rows = [_with_flash_time(row, counted, flash_mib_s) for row in rows]
    if not model.sized:
        rows = [row.without_bytes() for row in rows]
    config = {
        "policies": list(dict.fromkeys(run.policy.name for run in chosen)),
        "bank_bytes": model.bank_bytes if model.sized else None,
        "token_cycle_bytes": model.token_cycle_bytes if model.sized else None,
        "tokens_decode": counted.tokens,
        "passes_decode": counted.passes,
        "cache_bytes": budgets.tolist() if model.sized else None,
        "cache_slots": [model.slots(int(b)) for b in budgets] if model.in_slots else None,
        "cache_fraction": [float(budget) / max(1, model.bank_bytes) for budget in budgets],
        "seed": seed,
        "bypass": model.bypass,
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
            *held_in_memory(trace, _held(chosen) if on_disk else []),
            *notes(model, rows, loads),
            *unranked(trace),
            *(time_notes(rows, calibration) if calibration is not None else ()),
        ],
        trace=trace,
    )


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


def _has_totals(run: Runnable, n_budgets: int) -> bool:
    """Say whether a policy of tracekit's own gives totals; a class derived from it does as it likes."""
    is_own = type(run.policy).__module__.startswith("tracekit.policies.")
    return is_own and run.policy.gives_totals(run.batches, n_budgets)


class _Done:
    """Reports how many cells are done of all, whoever counts them."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None):
        self.base = 0
        self._total = total
        self._progress = progress

    def so_far(self, cells: int) -> None:
        if self._progress is not None:
            self._progress(self.base + cells, self._total)


def _is_from_disk(asked: bool | None, trace: Trace, **needs_all: object) -> bool:
    """Say whether policies that can be fed are replayed from disk.

    Raises
    ------
    UsageError
        That is asked for, and so is something that needs the whole run.
    """
    needing = next((name for name, value in needs_all.items() if value not in (None, False)), None)
    if needing is None:
        return is_large(trace) if asked is None else asked
    if asked:
        raise UsageError(
            f"{needing} needs the whole run in memory; leave out {needing} or from_disk."
        )
    return False


def _held(runs: Iterable[Runnable]) -> list[str]:
    return list(dict.fromkeys(run.policy.name for run in runs if not can_be_fed(run.policy)))


def _on_threads(
    rows_of: Callable[[int, np.ndarray], list[Row]],
    at_once: Mapping[int, int],
    budgets: np.ndarray,
    jobs: int,
    progress: Callable[[int], None],
) -> dict[int, list[Row]]:
    """Call ``rows_of(run, some of the budgets)`` for all; return the rows of each run by budget.

    `at_once` says of each run how many budgets go together.
    """
    tasks = [(run, start) for run, n in at_once.items() for start in range(0, len(budgets), n)]
    by_task: dict[tuple[int, int], list[Row]] = {}
    done = 0
    for index, rows in on_threads(
        lambda task: rows_of(task[0], budgets[task[1] : task[1] + at_once[task[0]]]), tasks, jobs
    ):
        by_task[tasks[index]] = rows
        done += len(rows)
        progress(done)
    by_run: dict[int, list[Row]] = {run: [] for run in at_once}
    for run, start in tasks:
        by_run[run] += by_task[run, start]
    return by_run


def _with_flash_time(row: Row, counted: Counted, flash_mib_s: float) -> Row:
    if row.read_bytes_decode is None or not counted.tokens:
        return row
    busy_ms = 1e3 * row.read_bytes_decode / MIB / flash_mib_s
    return replace(
        row,
        flash_ms_per_token_decode=busy_ms / counted.tokens,
        flash_ms_per_pass_decode=busy_ms / counted.passes,
    )

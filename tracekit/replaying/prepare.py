"""All of a replay that comes before its cells, and all that comes after them.

In: a trace, policies, budgets. Out: functions that run any of the cells, and one that makes the result
of all of them. Where and in which order cells run is not decided here.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
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
from tracekit.replaying.inputs import Kept, Runnable, runnable
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
from tracekit.replaying.timed import against_lru, time_notes
from tracekit.replaying.times import calibration_of, summary, time_of
from tracekit.replaying.validate import recorded_residency
from tracekit.replaying.warming import Warm
from tracekit.timing import Fit
from tracekit.trace import Trace, UsageError
from tracekit.trace.errors import MissingDataError

DEFAULT_POLICIES = ("lru", "belady", "bound")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A replay of which nothing has run yet; whoever holds it may run its cells in any order.

    Attributes
    ----------
    policies : list of Policy
        What is replayed: the policies asked for, then the bounds that they are compared with.
    bound_of : list of int or None
        Of each policy asked for, which of `policies` is its bound.
    budgets : int64 [C]
    from_pieces : list of int
        Which of `policies` are fed from disk.
    in_one_pass : list of int
        Which take one pass for all budgets: those are best asked for together.
    rows_of : callable
        ``rows_of(run, some of the budgets)`` replays ``policies[run]`` and gives a row for each. Of one
        that is fed from disk it reads the whole trace.
    fed_rows : callable
        ``fed_rows(runs, some of the budgets, budgets_a_task, jobs, progress)`` gives the rows of several
        that are fed from disk by reading it once.
    result : callable
        Takes the rows of every run and gives the result. Where a run has some of the budgets only, its
        bound has those too.
    """

    policies: list[Policy]
    bound_of: list[int | None]
    budgets: np.ndarray
    from_pieces: list[int]
    in_one_pass: list[int]
    rows_of: Callable[[int, np.ndarray], list[Row]]
    fed_rows: Callable[
        [Sequence[int], np.ndarray, int, int, Callable[[float], None]], list[list[Row]]
    ]
    result: Callable[[Sequence[Sequence[Row]]], ReplayResult]


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
    pin_from: ExpertCounts | Trace | str | Path | None = None,
    from_disk: bool | None = None,
    kept: Kept | None = None,
    jobs: int | None = None,
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
    on_disk = _is_from_disk(from_disk, trace, validate=validate, time=time, warm=warm)
    fed = [policy for policy in loaded if on_disk and can_be_fed(policy)]
    model = replace(
        model_of(trace, bool(bypass), equal_sizes=True), in_slots=cache_slots is not None
    )
    if (flash_mib_s is not None or time) and not model.sized:
        what = "How long a token takes" if time else "How long flash is busy"
        raise MissingDataError(
            f"{what} cannot be said, since {trace.name} does not say how many bytes an "
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
    budgets = budgets_in_bytes(model, trace.budget_bytes, *sizes, name=trace.name)
    chosen, left_out = runnable(loaded, trace, batches, seed, train, counts, first, kept, jobs)
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

    from_pieces = [i for i, run in enumerate(replayed) if on_disk and can_be_fed(run.policy)]
    pieces = Pieces(trace, model, counted)
    needs_batches = validate or calibration is not None
    in_one_pass = [
        i
        for i, run in enumerate(replayed)
        if not (i in from_pieces or needs_batches) and _has_totals(run, len(budgets))
    ]
    is_held = len(fed) < len(loaded)
    known = [Loads().with_those_of(batches)] if is_held else []

    def rows_of(run: int, part: np.ndarray) -> list[Row]:
        policy, given = replayed[run].policy, replayed[run].batches
        if run in from_pieces:
            (rows,) = fed_rows([run], part, len(part), 1, lambda share: None)
            return rows
        rows = []
        cells: Sequence[Cell | Limit | Totals] = (
            policy.totals(given, part)
            if run in in_one_pass
            else simulate(policy, given, part, per_lookup=validate)
        )
        for cell in cells:
            row = row_of(policy, given, cell, per_layer)
            if calibration is not None and not isinstance(cell, Totals):
                row = replace(row, time=time_of(calibration, policy, given, cell))
            if recorded is not None and isinstance(cell, Cell):
                row = replace(row, validation=recorded.compare(policy, cell))
            rows.append(row)
        return rows

    def fed_rows(
        runs: Sequence[int],
        part: np.ndarray,
        budgets_a_task: int,
        jobs: int,
        progress: Callable[[float], None],
    ) -> list[list[Row]]:
        policies = [policy for i in runs if can_be_fed(policy := replayed[i].policy)]
        rows, loads = rows_from_disk(
            pieces, policies, part, budgets_a_task, per_layer, jobs, progress
        )
        known.append(loads)
        return rows

    def largest_loads() -> Loads:
        if not known and model.bypass:  # the sentence about the scratch buffer says them
            known.append(reduce(Loads.with_those_of, pieces, Loads()))
        return known[0] if known else Loads()

    if is_held:
        _ = whole_run.next_use  # found once, before threads would each do it
        if calibration is not None and calibration.refusal is None:
            _ = calibration.draws

    def result(by_run: Sequence[Sequence[Row]]) -> ReplayResult:
        rows = []
        for i, bound in enumerate(bounds):
            limits = {row.budget: row for row in by_run[place[bound] if bound else i]}
            rows += [row.under(bound, limits[row.budget]) for row in by_run[i]]
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
                *notes(model, rows, largest_loads()),
                *unranked(trace),
                *(time_notes(rows, calibration) if calibration is not None else ()),
            ],
            trace=trace,
        )

    return Prepared(
        [run.policy for run in replayed],
        [place[bound] if bound else None for bound in bounds],
        budgets,
        from_pieces,
        in_one_pass,
        rows_of,
        fed_rows,
        result,
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
            f"--{needing} needs the whole run in memory; leave out --{needing} or --from-disk."
        )
    return False


def _has_totals(run: Runnable, n_budgets: int) -> bool:
    """Say whether a policy of tracekit's own gives totals; a class derived from it does as it likes."""
    is_own = type(run.policy).__module__.startswith("tracekit.policies.")
    return is_own and run.policy.gives_totals(run.batches, n_budgets)


def _held(runs: Iterable[Runnable]) -> list[str]:
    return list(dict.fromkeys(run.policy.name for run in runs if not can_be_fed(run.policy)))


def _with_flash_time(row: Row, counted: Counted, flash_mib_s: float) -> Row:
    if row.read_bytes_decode is None or not counted.tokens:
        return row
    busy_ms = 1e3 * row.read_bytes_decode / MIB / flash_mib_s
    return replace(
        row,
        flash_ms_per_token_decode=busy_ms / counted.tokens,
        flash_ms_per_pass_decode=busy_ms / counted.passes,
    )

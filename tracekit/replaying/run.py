"""`replay`: policies × budgets over one trace."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.arguments import whole
from tracekit.figures import MIB
from tracekit.formats import ExpertCounts
from tracekit.policies import Bound, Cell, Policy, load_policies
from tracekit.replaying.agreement import verified
from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.batches import build_batches
from tracekit.replaying.budgets import Sizes, budgets_in_bytes
from tracekit.replaying.inputs import Runnable, runnable
from tracekit.replaying.notes import notes, other_cache_than_recorded, unranked
from tracekit.replaying.popularity import counts_for
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.rows import Row, row_of
from tracekit.replaying.threads import on_threads
from tracekit.replaying.validate import recorded_residency
from tracekit.routing.turns import n_decode_passes
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
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    bypass: bool = False,
    per_layer: bool = False,
    validate: bool = False,
    flash_mib_s: float | None = None,
    train: Trace | None = None,
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
        for a decoded token, ``flash_ms_per_token_decode``.
    train : Trace, optional
        A trace of the same model, on which what a policy acts on is learned. By default it is learned
        on the turns of `trace` that are not being replayed.
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
        against, or no policy goes by `pin_from`.
    TraceError
        The sizes of only some layers' experts are known, or `pin_from` is of another model.
    MissingDataError
        No policy can run on this trace. Or a size in MiB or bytes, or a rate of flash, is given, and
        the sizes of experts are not known.
    """
    seed = whole("seed", seed, 0)
    jobs = os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")
    if flash_mib_s is not None and not 0 < flash_mib_s < math.inf:
        raise UsageError(f"flash_mib_s takes a rate above 0, not {flash_mib_s!r}.")
    loaded = load_policies(policies, params, seed)
    trace = verified(trace)
    if train is not None:
        from tracekit.scoring.usable import check_training  # it loads all predictors

        check_training(trace, train)
    counts = counts_for(pin_from, trace, loaded)
    lossy = any(policy.lossy for policy in loaded)
    batches = build_batches(trace, lossy, bool(bypass), equal_sizes=True)
    if flash_mib_s is not None and not batches.sized:
        raise MissingDataError(
            "How long flash is busy cannot be said, since the trace does not say how many bytes an "
            "expert has; `tracekit import` takes --model PATH or --expert-mib M."
        )
    recorded = recorded_residency(trace, batches) if validate else None
    no_budget_given = cache_mib is None and cache_fraction is None and cache_bytes is None
    if validate and no_budget_given and trace.budget_bytes is None:
        raise UsageError(
            f"{trace.name} does not say how large its engine's cache was, and lookups differ at "
            "another size; give that size with --cache-mib."
        )
    budgets = budgets_in_bytes(batches, trace.budget_bytes, cache_mib, cache_fraction, cache_bytes)
    chosen, left_out = runnable(loaded, trace, batches, seed, train, counts)
    if validate:
        left_out += other_cache_than_recorded(trace, [run.policy.name for run in chosen], budgets)
    # The distance to the bound is part of every result, so the bound is always replayed.
    bounds = [i for i, run in enumerate(chosen) if isinstance(run.policy, Bound)]
    replayed = chosen if bounds else [*chosen, Runnable(Bound(), batches)]
    bound = bounds[0] if bounds else len(chosen)

    def rows_of(run: int, part: np.ndarray) -> list[Row]:
        policy, given = replayed[run].policy, replayed[run].batches
        cells = simulate(policy, given, part, per_lookup=validate)
        rows = []
        for cell in cells:
            row = row_of(policy, given, cell, per_layer)
            if recorded is not None and isinstance(cell, Cell):
                row = replace(row, validation=recorded.compare(policy, cell))
            rows.append(row)
        return rows

    _ = batches.next_use  # found once, before threads would each do it
    by_run = _on_threads(rows_of, len(replayed), budgets, jobs, progress)
    rows = [
        row.under(limit)
        for of_run in by_run[: len(chosen)]
        for row, limit in zip(of_run, by_run[bound], strict=True)
    ]
    n_passes = n_decode_passes(trace)
    if flash_mib_s is not None:
        rows = [_with_flash_time(row, trace.n_decoded, n_passes, flash_mib_s) for row in rows]
    if not batches.sized:
        rows = [row.without_bytes() for row in rows]
    config = {
        "policies": list(dict.fromkeys(run.policy.name for run in chosen)),
        "bank_bytes": batches.bank_bytes if batches.sized else None,
        "token_cycle_bytes": batches.token_cycle_bytes if batches.sized else None,
        "tokens_decode": trace.n_decoded,
        "passes_decode": n_passes,
        "cache_bytes": budgets.tolist() if batches.sized else None,
        "cache_fraction": [float(budget) / max(1, batches.bank_bytes) for budget in budgets],
        "seed": seed,
        "bypass": batches.bypass,
        "per_layer": per_layer,
        "validate": validate,
        "flash_mib_s": flash_mib_s,
        "train": None if train is None else train.name,
        "pin_from": None if counts is None else counts.name,
    }
    return ReplayResult(
        rows=rows,
        config=config,
        notes=[*trace.warnings, *left_out, *notes(batches, rows), *unranked(trace)],
        trace=trace,
    )


def _on_threads(
    rows_of: Callable[[int, np.ndarray], list[Row]],
    n_runs: int,
    budgets: np.ndarray,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> list[list[Row]]:
    """Call ``rows_of(run, some of the budgets)`` for all; return the rows by run and budget."""
    size = max(1, min(_MOST_BUDGETS_A_TASK, _CELLS_IN_FLIGHT // jobs))
    tasks = [(run, start) for run in range(n_runs) for start in range(0, len(budgets), size)]
    by_task: dict[tuple[int, int], list[Row]] = {}
    done = 0
    for index, rows in on_threads(
        lambda task: rows_of(task[0], budgets[task[1] : task[1] + size]), tasks, jobs
    ):
        by_task[tasks[index]] = rows
        done += len(rows)
        if progress is not None:
            progress(done, n_runs * len(budgets))
    by_run: list[list[Row]] = [[] for _ in range(n_runs)]
    for run, start in tasks:
        by_run[run] += by_task[run, start]
    return by_run


def _with_flash_time(row: Row, n_tokens: int, n_passes: int, flash_mib_s: float) -> Row:
    if row.read_bytes_decode is None or not n_tokens:
        return row
    busy_ms = 1e3 * row.read_bytes_decode / MIB / flash_mib_s
    return replace(
        row,
        flash_ms_per_token_decode=busy_ms / n_tokens,
        flash_ms_per_pass_decode=busy_ms / n_passes,
    )

"""`replay`: policies × budgets over one trace."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.arguments import whole
from tracekit.figures import MIB
from tracekit.policies import Batches, Bound, Policy, load_policies
from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.batches import build_batches
from tracekit.replaying.budgets import Sizes, budgets_in_bytes
from tracekit.replaying.notes import notes
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.rows import Row, row_of
from tracekit.replaying.threads import on_threads
from tracekit.replaying.validate import recorded_residency
from tracekit.trace import Trace, UsageError
from tracekit.trace.errors import MissingDataError
from tracekit.trace.schema import DECODE

DEFAULT_POLICIES = ("lru", "belady", "bound")
# Cells in flight hold 12 bytes a batch each; budgets in one task share a pass where a policy can.
_CELLS_IN_FLIGHT = 8
_MOST_BUDGETS_A_TASK = 4
# Below this share of tokens with a guess a reader must know; prev-token has none for a turn's first.
_LEAST_GUESSED = 0.75


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
    per_layer: bool = False,
    validate: bool = False,
    flash_mib_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayResult:
    """Replay a trace under cache policies at several budgets.

    The accounting is that of a real engine: each distinct expert of a layer load is looked up once,
    a miss is read whole, and after the load entries that it did not touch are evicted until the
    rest fits the budget. The cache persists across turns.

    Parameters
    ----------
    trace : Trace
        From ``tracekit.open_trace``.
    policies : str, Policy, or several of them
        Names (``tracekit policies`` lists them), ``module:Class`` for one of your own, classes or
        instances. What acts on a predictor that cannot run on this trace is left out, and a note
        says so.
    cache_mib, cache_fraction, cache_bytes : number or sequence of numbers, optional
        Budgets in MiB, as fractions of the expert bank, in bytes; 0 is legal. By default the budget
        the engine ran with, or 10, 25 and 50 % of the bank if the trace does not carry it.
    params : mapping, optional
        ``{"random.seed": 3}`` or, for a result at each, ``{"random.seed": [1, 2, 3]}``.
    seed : int
        Seed of every policy that draws random numbers and is given no other.
    jobs : int, optional
        Threads; as many as there are processor cores by default.
    per_layer : bool
        Figures of each layer too.
    validate : bool
        Compare every decode lookup with the residency that the engine recorded, at the budget it
        had.
    flash_mib_s : float, optional
        Reading rate of flash in MiB a second: records then say how many milliseconds it is busy
        for a decoded token, ``flash_ms_per_token_decode``.
    progress : callable, optional
        Called with (done, total) as cells get done.

    Returns
    -------
    ReplayResult
        One row per policy, parameters and budget, in the order given.

    Raises
    ------
    UsageError
        An unknown policy or parameter, a size that is none, or nothing to validate against.
    TraceError
        The size of a layer's experts is not known.
    MissingDataError
        The trace lacks what the only policy needs.
    """
    seed = whole("seed", seed, 0)
    jobs = os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")
    if flash_mib_s is not None and not 0 < flash_mib_s < math.inf:
        raise UsageError(f"flash_mib_s takes a rate above 0, not {flash_mib_s!r}.")
    chosen = load_policies(policies, params, seed)
    batches = build_batches(trace, weights=any(policy.lossy for policy in chosen))
    recorded = recorded_residency(trace, batches) if validate else None
    no_budget_given = cache_mib is None and cache_fraction is None and cache_bytes is None
    if validate and no_budget_given and trace.budget_bytes is None:
        raise UsageError(
            f"{trace.name} does not say how large its engine's cache was, and at another size "
            "lookups differ; give that size with --cache-mib."
        )
    budgets = budgets_in_bytes(batches, trace.budget_bytes, cache_mib, cache_fraction, cache_bytes)
    chosen, said = _able(chosen, trace, batches, seed)
    if validate:
        said += _other_than_recorded(trace, [policy.name for policy, _ in chosen], budgets)
    # The distance to the bound is part of every result, so the bound is always replayed.
    asked_for_bound = any(isinstance(policy, Bound) for policy, _ in chosen)
    replayed = chosen if asked_for_bound else [*chosen, (Bound(), batches)]
    bound = next(i for i, (policy, _) in enumerate(replayed) if isinstance(policy, Bound))

    def rows_of(policy: int, part: np.ndarray) -> list[Row]:
        simulated, given = replayed[policy]
        cells = simulate(simulated, given, part, per_lookup=validate)
        rows = [row_of(simulated, given, cell, per_layer) for cell in cells]
        if recorded is None or policy == bound:
            return rows
        return [
            replace(row, validation=recorded.compare(simulated, cell))
            for row, cell in zip(rows, cells, strict=True)
        ]

    _ = batches.next_use  # found once, before threads would each do it
    by_policy = _on_threads(rows_of, len(replayed), budgets, jobs, progress)
    rows = [
        row.under(limit)
        for of_policy in by_policy[: len(chosen)]
        for row, limit in zip(of_policy, by_policy[bound], strict=True)
    ]
    if flash_mib_s is not None:
        rows = [
            replace(
                row,
                flash_ms_per_token_decode=_busy_ms(
                    row.read_bytes_decode, trace.n_decoded, flash_mib_s
                ),
            )
            for row in rows
        ]
    config = {
        "policies": list(dict.fromkeys(policy.name for policy, _ in chosen)),
        "bank_bytes": batches.bank_bytes,
        "token_cycle_bytes": batches.token_cycle_bytes,
        "cache_bytes": budgets.tolist(),
        "seed": seed,
        "per_layer": per_layer,
        "validate": validate,
        "flash_mib_s": flash_mib_s,
    }
    return ReplayResult(
        rows=rows,
        config=config,
        notes=[*trace.warnings, *said, *notes(batches, rows)],
        trace=trace,
    )


def _on_threads(
    rows_of: Callable[[int, np.ndarray], list[Row]],
    n_policies: int,
    budgets: np.ndarray,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> list[list[Row]]:
    """Call ``rows_of(policy, some of the budgets)`` for all; return the rows by policy and budget."""
    size = max(1, min(_MOST_BUDGETS_A_TASK, _CELLS_IN_FLIGHT // jobs))
    tasks = [
        (policy, slice(start, start + size))
        for policy in range(n_policies)
        for start in range(0, len(budgets), size)
    ]
    rows: list[list[Any]] = [[None] * len(budgets) for _ in range(n_policies)]
    done = 0
    work = ((policy, budgets[part]) for policy, part in tasks)
    for index, of_task in on_threads(lambda task: rows_of(*task), list(work), jobs):
        policy, part = tasks[index]
        rows[policy][part] = of_task
        done += len(of_task)
        if progress is not None:
            progress(done, n_policies * len(budgets))
    return rows


def _able(
    policies: Sequence[Policy], trace: Trace, batches: Batches, seed: int
) -> tuple[list[tuple[Policy, Batches]], list[str]]:
    """Return the policies that can run, with their inputs, and what to say of them and the others.

    Raises
    ------
    MissingDataError
        None can.
    """
    able, said, failed = [], [], None
    shared: dict[tuple[str, int], Batches] = {}
    for policy in policies:
        try:
            given = inputs_of(policy, trace, batches, seed, shared)
        except MissingDataError as error:
            failed = failed or error
            said.append(f"Left out: {policy.name}, because {error}")
            continue
        able.append((policy, given))
        if given.guesses is not None and (share := _guessed(given)) < _LEAST_GUESSED:
            said.append(
                f"{policy.name} acts on {policy.params.predictor} for {100 * share:.0f} % of the "
                "decoded tokens only: of a single turn a learned predictor takes the first half to "
                "learn from."
            )
    if not able and failed:
        raise failed
    return able, list(dict.fromkeys(said))


def _guessed(batches: Batches) -> float:
    """Return for which share of the decoded tokens there is a guess at some layer."""
    keys = batches.guesses.keys[batches.phase == DECODE]
    of_tokens = (keys >= 0).reshape(-1, len(batches.expert_bytes) * keys.shape[1])
    return float(of_tokens.any(axis=1).mean()) if len(of_tokens) else 1.0


def _other_than_recorded(
    trace: Trace, policies: Sequence[str], budgets: np.ndarray
) -> Iterator[str]:
    """Say that lookups must differ where another cache is replayed than the recording had."""
    engine = trace.facts.engine
    if engine is None or engine.cache_bytes is None:
        return
    had = engine.cache_policy or policies[0]
    if any(name != had for name in policies) or any(b != engine.cache_bytes for b in budgets):
        yield (
            f"The recording had {engine.cache_policy or 'a cache'} of "
            f"{engine.cache_bytes / MIB:.12g} MiB; of another policy or size lookups differ."
        )


def _busy_ms(read_bytes: int | None, n_tokens: int, flash_mib_s: float) -> float | None:
    if read_bytes is None or not n_tokens:
        return None
    return 1e3 * read_bytes / n_tokens / MIB / flash_mib_s


def inputs_of(
    policy: Policy,
    trace: Trace,
    batches: Batches,
    seed: int = 0,
    shared: dict[tuple[str, int], Batches] | None = None,
) -> Batches:
    """Return `batches` with what `policy` asks for: the guesses of its predictor.

    Policies that act on the same guesses take them from `shared`, where the first leaves them.
    """
    if not policy.needs_predictor:
        return batches
    if not (hasattr(policy.params, "predictor") and hasattr(policy.params, "horizon")):
        raise UsageError(
            f"Policy {policy.name!r} needs a predictor, so its Params need fields predictor and "
            "horizon; add them."
        )
    from tracekit.replaying.guesses import guesses

    source = policy.params.predictor, policy.params.horizon
    shared = {} if shared is None else shared
    if source not in shared:
        shared[source] = replace(batches, guesses=guesses(trace, batches, policy.params, seed))
    return shared[source]

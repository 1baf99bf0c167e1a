"""Why a replay differs from the recording: other policies, budgets, passes, and bypass are tried.

In: a trace whose recording a replay does not give. Out: a clause that names what does give it, or
comes close; None if nothing that was tried does. Nothing is named that was not tried.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracekit.figures import MIB, exact_mib
from tracekit.policies import POLICIES, Batches, Policy, load_policy
from tracekit.replaying.batches import build_batches
from tracekit.replaying.comparison import (
    Compared,
    Recorded,
    compare,
    is_own,
    is_plain,
    recorded_of,
    run,
)
from tracekit.trace import Trace
from tracekit.trace.agreement import RECORDER_AT_FAULT
from tracekit.trace.columns import to_table
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE, LAYERS_FILE, PREFILL, routing_schema

# Of a longer trace the first passes are tried, which takes a second or two.
MOST_SLOTS = 300_000
# What leaves a tenth of the differences comes close.
CLOSE = 10
# llama.cpp evaluates a prompt in passes of so many tokens by default.
CHUNK = 512

_AT_A_TIME = 8  # budgets
_PLACE = ("turn", "pass", "phase", "step", "layer")

Columns = Mapping[str, np.ndarray]


def likely_reason(trace: Trace, policy: Policy) -> str | None:
    """Return why a replay of `policy` at the budget of `trace` differs from its recording.

    Parameters
    ----------
    trace : Trace
        With a budget, sizes of experts, and residency or counts.
    policy : Policy
    """
    if trace.missing_rows() is not None:
        return "rows of the trace are missing, and what the cache read for them with them"
    own = [RECORDER_AT_FAULT] if is_own(trace) else []
    return "; ".join([*filter(None, [_tried(trace, policy)]), *own]) or None


def fitting_budget(trace: Trace) -> int | None:
    """Return a budget at which LRU gives what the engine of `trace` recorded, or None.

    Parameters
    ----------
    trace : Trace
        With sizes of experts and residency.
    """
    rows = _beginning(trace)
    as_it_is, lru = _Run.of(trace, rows, rows["pass"]), load_policy("lru")
    budget = _other_budget(as_it_is, lru) if as_it_is.recorded.hits else None
    fits = budget is not None and not len(as_it_is.compared(lru, budget))
    return budget if fits else None


def _tried(trace: Trace, policy: Policy) -> str | None:
    budget = trace.budget_bytes or 0
    rows = _beginning(trace)
    as_it_is = _Run.of(trace, rows, rows["pass"])
    n_before = len(as_it_is.compared(policy, budget))
    if n_before == 0:  # a long trace that differs only later
        return None
    if as_it_is.recorded.hits == 0:
        return "it has nothing but misses, as of an engine that does not record hits"
    tried = [
        (len(_Run.of(trace, rows, passes).compared(policy, budget)), name)
        for name, passes in _other_passes(rows)
    ]
    for cls in POLICIES:
        if is_plain(cls) and cls.name != policy.name:
            n_differ = len(as_it_is.compared(load_policy(cls.name), budget))
            tried.append((n_differ, f"the policy {cls.name}"))
    if policy.can_bypass:
        bypass = replace(as_it_is, batches=replace(as_it_is.batches, bypass=True))
        n_differ = len(bypass.compared(policy, budget))
        tried.append((n_differ, "dropping at once what a load has used (--bypass)"))
    other = _other_budget(as_it_is, policy)
    if other is not None:
        n_differ = len(as_it_is.compared(policy, other))
        tried.append((n_differ, f"a budget of {exact_mib(other)} MiB"))
    exact = [name for n_differ, name in tried if n_differ == 0]
    if exact:
        part = " at its beginning" if trace.n_rows * trace.top_k > MOST_SLOTS else ""
        return f"{' or '.join(exact)} gives what was recorded{part}"
    if as_it_is.lacks_prompts(policy, budget):
        return (
            "its prompts have nothing but misses, as of an engine that does not record them there"
        )
    n_differ, name = min(tried, default=(n_before, ""))
    return f"{name} comes close: {n_differ} differ" if n_differ * CLOSE <= n_before else None


def _beginning(trace: Trace) -> Columns:
    """Return the place, the experts and what was recorded of the first `MOST_SLOTS`."""
    lists = ["experts", *(name for name in ("residency", "dropped") if trace.has(name))]
    columns = trace.routing([*_PLACE, *lists])
    passes, n_rows = columns["pass"], max(1, MOST_SLOTS // trace.top_k)
    if n_rows >= len(passes):
        if trace.complete:
            return columns
        n_rows = len(passes) - 1  # the last pass may be cut off
    whole = int(np.searchsorted(passes, passes[n_rows], side="left"))
    return {name: values[: whole or n_rows] for name, values in columns.items()}


@dataclass(frozen=True, eq=False)
class _Run:
    """A run to try, what was recorded of it, and the recorded pass of each batch."""

    batches: Batches
    recorded: Recorded
    origin: np.ndarray

    @classmethod
    def of(cls, trace: Trace, rows: Columns, passes: np.ndarray) -> "_Run":
        """Return the run of `rows`, routings of `trace`, if their passes had been `passes` [n]."""
        order = np.lexsort((rows["step"], rows["layer"], passes))
        sorted_rows = {name: values[order] for name, values in rows.items()}
        origin, passes = sorted_rows["pass"], passes[order]
        starts = pass_starts(passes)
        sorted_rows["pass"] = np.cumsum(np.diff(passes, prepend=passes[:1]) != 0).astype(np.int32)
        table = to_table(sorted_rows, routing_schema(trace.top_k), len(order), {})
        layers = trace.rows(LAYERS_FILE).read(["layer", "expert_bytes", "dense_bytes"])
        renumbered = Trace.from_tables(replace(trace.facts, complete=True), layers, table)
        batches = build_batches(renumbered)
        recorded = recorded_of(renumbered, batches, counted=trace)
        within = recorded.passes <= rows["pass"][-1]
        recorded = replace(
            recorded,
            passes=recorded.passes[within],
            counts={name: values[within] for name, values in recorded.counts.items()},
        )
        return cls(batches, recorded, origin[starts][batches.pass_id])

    def compared(self, policy: Policy, budget: int) -> Compared:
        """Replay, and compare with what was recorded."""
        return self.at_each(policy, [budget])[0]

    def at_each(self, policy: Policy, budgets: list[int]) -> list[Compared]:
        """Replay at each of `budgets`, and compare with what was recorded."""
        cells = run(policy, self.batches, budgets)
        return [compare(self.recorded, self.batches, cell, self.origin) for cell in cells]

    def lacks_prompts(self, policy: Policy, budget: int) -> bool:
        """Say whether nothing but prompts differs, and no hit is recorded in any."""
        found = self.compared(policy, budget)
        in_decode = np.repeat(self.batches.phase == DECODE, self.batches.lookups)
        in_decode = in_decode[self.recorded.lookups]
        differs_there = len(found.passes) or in_decode[found.lookups].any()
        return not differs_there and not self.recorded.resident[~in_decode].any()


# ---- budgets ----------------------------------------------------------------------------------


def _other_budget(of: _Run, policy: Policy) -> int | None:
    """Return a budget at which `policy` hits as often as was recorded, in round numbers.

    LRU hits at least as often at a larger budget, so that the search finds it.
    """
    wanted = of.recorded.hits
    if wanted is None:
        return None
    top = of.batches.bank_bytes
    low = _least_budget(of, policy, top, lambda hits: hits >= wanted)
    if low > top:
        return None
    return _roundest(low, max(low, _least_budget(of, policy, top, lambda hits: hits > wanted) - 1))


def _least_budget(of: _Run, policy: Policy, top: int, is_enough: Callable[[int], bool]) -> int:
    """Return the least budget whose hits are enough, ``top + 1`` if none is."""
    low, high = 0, top + 1
    while low < high:
        step = max(1, (high - low) // (_AT_A_TIME + 1))
        budgets = list(range(low, high, step))[:_AT_A_TIME]
        for budget, found in zip(budgets, of.at_each(policy, budgets), strict=True):
            if is_enough(found.hits):
                high = budget
                break
            low = budget + 1
    return high


def _roundest(low: int, high: int) -> int:
    """Return the number of bytes from `low` to `high` that is written shortest in MiB."""
    for unit in (1000, 100, 10, 1, 0.1, 0.01, 0.001):
        size = round(unit * math.ceil(low / MIB / unit) * MIB)
        if low <= size <= high:
            return size
    return low


# ---- passes -----------------------------------------------------------------------------------


def _other_passes(rows: Columns) -> Iterator[tuple[str, np.ndarray]]:
    """Yield other passes that the routings may have had, and what they are called."""
    passes, step = rows["pass"].astype(np.int64), rows["step"].astype(np.int64)
    starts = pass_starts(rows["pass"])
    first, last = np.minimum.reduceat(step, starts), np.maximum.reduceat(step, starts)
    n_tokens, phase = last - first + 1, rows["phase"][starts]
    place = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(step))))
    inside = step - first[place]
    room = 1 << 32
    if (n_tokens[phase == DECODE] > 1).any():
        alone = np.where(rows["phase"] == DECODE, inside, 0)
        yield "one token a pass while decoding", passes * room + alone
    prompts = n_tokens[phase == PREFILL]
    if (prompts > 1).any():
        alone = np.where(rows["phase"] == PREFILL, inside, 0)
        yield "one token a pass in prompts", passes * room + alone
    if (prompts > CHUNK).any():
        chunk = np.where(rows["phase"] == PREFILL, inside // CHUNK, 0)
        yield f"prompts in passes of {CHUNK} tokens", passes * room + chunk
    turn = rows["turn"][starts]
    goes_on = (turn[1:] == turn[:-1]) & (first[1:] == last[:-1] + 1)
    goes_on &= (phase[1:] == PREFILL) & (phase[:-1] == PREFILL)
    if goes_on.any():
        yield "prompts in one pass", np.append(0, np.cumsum(~goes_on))[place]

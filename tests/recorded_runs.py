"""Traces that carry what a cache found, as another engine than they say might have written them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from tracekit.policies import load_policy
from tracekit.replaying import build_batches, simulate
from tracekit.replaying.slots import DROPPED, lookup_of_slots
from tracekit.trace import EngineFacts, Trace, synthesize
from tracekit.trace.columns import from_numpy
from tracekit.trace.schema import DECODE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE

BUDGET = 20 << 20
SIZES = (3 << 18, 1 << 20, 5 << 18)


def plain(n_tokens: int = 80, seed: int = 1, prefill: int = 6) -> Trace:
    """Return two turns over three layers of 24 experts, without residency."""
    return synthesize(3, 24, 3, n_tokens, n_turns=2, prefill=prefill, seed=seed, expert_bytes=SIZES)


def drafted(n_tokens: int = 80, together: int = 4, seed: int = 1) -> Trace:
    """Return the trace of `plain`, its decoded tokens evaluated several in a pass."""
    trace = plain(n_tokens, seed)
    numbers = _several_in_a_pass(trace, together)
    tables = {}
    for file in (ROUTING_FILE, STEPS_FILE):
        table = trace.table(file)
        passes = numbers[np.asarray(table["pass"])]
        keys = [np.asarray(table["step"]), passes]
        if file == ROUTING_FILE:
            keys.insert(1, np.asarray(table["layer"]))
        at = table.schema.get_field_index("pass")
        table = table.set_column(at, table.schema.field("pass"), pa.array(passes, pa.int32()))
        tables[file] = table.take(pa.array(np.lexsort(keys)))
    return Trace.from_tables(
        trace.facts, trace.table(LAYERS_FILE), tables[ROUTING_FILE], tables[STEPS_FILE]
    )


def rejecting(trace: Trace) -> Trace:
    """Return `trace` with every fifth decoded token rejected, and 8 ms for each pass."""
    steps = trace.table("steps.parquet")
    decode = np.flatnonzero(np.asarray(steps["phase"]) == DECODE)
    kept = np.ones(len(steps), np.bool_)
    kept[decode[4::5]] = False
    wall = np.full(len(steps), np.nan)
    wall[np.append(np.diff(np.asarray(steps["pass"])) != 0, True)] = 8.0
    for name, values in (("kept", pa.array(kept)), ("wall_ms", pa.array(wall, from_pandas=True))):
        at = steps.schema.get_field_index(name)
        steps = steps.set_column(at, steps.schema.field(name), values)
    tables = (trace.table(f"{file}.parquet") for file in ("layers", "routing"))
    return Trace.from_tables(trace.facts, *tables, steps, name="drafted")


def _several_in_a_pass(trace: Trace, together: int) -> np.ndarray:
    steps = trace.steps(["turn", "pass", "phase"])
    new, count, before = [], 0, None
    for turn, phase in zip(*_of_passes(steps, "turn", "phase"), strict=True):
        count = 1 if before != (turn, phase) or phase == 0 or count == together else count + 1
        before = (turn, phase)
        new.append(count == 1)
    return np.cumsum(new) - 1


def _of_passes(steps, *names):
    first = np.unique(steps["pass"], return_index=True)[1]
    return [steps[name][first].tolist() for name in names]


def residency_of(trace: Trace, policy: str, budget: int) -> np.ndarray:
    """Return what `policy` finds for each slot at `budget` bytes, uint8 [rows, k]."""
    batches = build_batches(trace)
    (cell,) = simulate(load_policy(policy), batches, np.array([budget]), per_lookup=True)
    lookups = lookup_of_slots(trace, batches)
    found = cell.hit.astype(np.uint8)[np.maximum(lookups, 0)]
    return np.where(lookups == DROPPED, 255, found).astype(np.uint8)


def with_residency(
    trace: Trace,
    residency: np.ndarray | None,
    budget: int | None,
    policy: str | None = None,
    source: str = "imported",
    engine: str = "other",
    counts: dict[str, np.ndarray] | None = None,
) -> Trace:
    """Return `trace` with this residency, of an engine with this cache; `counts` are of its steps."""
    routing, steps = trace.table(ROUTING_FILE), trace.table(STEPS_FILE)
    if residency is not None:
        at = routing.schema.get_field_index("residency")
        field = routing.schema.field("residency")
        column = from_numpy(residency, field.type, len(residency), residency != 255)
        routing = routing.set_column(at, field, column)
    for name, values in (counts or {}).items():
        at = steps.schema.get_field_index(name)
        field = steps.schema.field(name)
        column = from_numpy(values.astype(np.int64), pa.int64(), len(values), values >= 0)
        steps = steps.set_column(at, field, column.cast(field.type))
    facts = replace(
        trace.facts,
        source=source,
        engine=EngineFacts(name=engine, cache_policy=policy, cache_bytes=budget),
        agreement=None,
    )
    return Trace.from_tables(facts, trace.table(LAYERS_FILE), routing, steps, name="run")


def recorded(
    trace: Trace, policy: str = "lru", ran: int = BUDGET, says: int = BUDGET, **facts
) -> Trace:
    """Return `trace` as an engine of that policy records it that ran with a budget and says another."""
    return with_residency(trace, residency_of(trace, policy, ran), says, **facts)


def counts_of(trace: Trace, budget: int) -> dict[str, np.ndarray]:
    """Return lookups, hits and bytes of each pass, on its last step."""
    steps = trace.steps(["pass"])["pass"]
    last = np.append(np.diff(steps) != 0, True)
    batches = build_batches(trace)
    (cell,) = simulate(load_policy("lru"), batches, np.array([budget]))
    of_batch = {"lookups": batches.lookups, "hits": cell.hits}
    of_batch["read_bytes"] = (batches.lookups - cell.hits) * batches.expert_bytes[batches.layer]
    found = {}
    for name, values in of_batch.items():
        found[name] = np.full(len(steps), -1, np.int64)
        found[name][last] = np.bincount(batches.pass_id, values, steps[-1] + 1)
    return found

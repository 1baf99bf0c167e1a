"""A replay against what the engine recorded: what differs, and why."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
from exact_engine import session
from families import slow_if_rare, slow_unless
from recorded_runs import BUDGET, counts_of, drafted, plain, recorded, residency_of, with_residency

from tracekit.formats import open_any
from tracekit.policies import POLICIES, load_policy
from tracekit.replaying import agreement as agreements
from tracekit.replaying import build_batches, reasons, replay, simulate
from tracekit.replaying.agreement import is_plain, verify
from tracekit.replaying.slots import DROPPED, lookup_of_slots
from tracekit.trace import ModelFacts, Trace, TraceFacts, synthesize
from tracekit.trace.agreement import Agreement
from tracekit.trace.columns import from_numpy, to_table
from tracekit.trace.layers import layers_table
from tracekit.trace.schema import DECODE, routing_schema

PLAIN = [cls.name for cls in POLICIES if is_plain(cls)]

# ---- what agrees --------------------------------------------------------------------------------


def test_the_recording_of_the_budget_that_it_names_agrees():
    trace = recorded(plain())
    found = verify(trace)
    assert found == Agreement(
        "lru",
        BUDGET,
        n_lookups=found.n_lookups,
        hits_recorded=found.hits_recorded,
        hits_replayed=found.hits_recorded,
    )
    assert found.holds
    (row,) = replay(trace, "lru").rows
    assert (found.n_lookups, found.hits_recorded) == (row.lookups, row.hits)
    assert trace.warnings == []


@pytest.mark.parametrize("policy", slow_if_rare(PLAIN))
def test_the_policy_that_the_trace_names_is_replayed(policy):
    trace = plain()
    found = verify(with_residency(trace, residency_of(trace, policy, BUDGET), BUDGET, policy))
    assert found.policy == policy
    assert found.holds


@pytest.mark.parametrize("seed", range(30))
def test_sessions_of_an_exact_engine_agree(seed, tmp_path):
    written = session(seed)
    path = tmp_path / "run.csv"
    path.write_text(written.text)
    found = verify(open_any(path))
    assert found.holds
    assert found.n_lookups == sum(written.lookups)
    assert found.hits_recorded == found.hits_replayed == sum(written.hits)


def test_unknown_residency_is_not_compared():
    trace = plain()
    residency = residency_of(trace, "lru", BUDGET)
    residency[::2] = 255
    found = verify(with_residency(trace, residency, BUDGET))
    assert found.holds
    assert 0 < found.n_lookups < replay(trace, "lru", cache_bytes=BUDGET).rows[0].lookups


def test_what_was_dropped_was_not_looked_up():
    """Another token of its batch may have looked the same expert up."""
    trace = plain()
    routing = trace.table("routing.parquet")
    dropped = (np.random.default_rng(2).random((trace.n_rows, 3)) < 0.3).astype(np.uint8)
    at, field = routing.schema.get_field_index("dropped"), routing.schema.field("dropped")
    column = from_numpy(dropped, field.type, len(dropped))
    trace = Trace.from_tables(trace.facts, trace.layers, routing.set_column(at, field, column))
    found = verify(recorded(trace))
    assert found.holds
    assert found.n_lookups == replay(trace, "lru", cache_bytes=BUDGET).rows[0].lookups


def test_a_prefetched_expert_is_resident():
    trace = plain()
    residency = residency_of(trace, "lru", BUDGET)
    residency[residency == 1] = 2
    assert verify(with_residency(trace, residency, BUDGET)).holds


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"budget": None}, "the size of the engine's cache is not known"),
        ({"residency": None}, "the trace carries neither residency nor counts"),
    ],
)
def test_there_may_be_nothing_to_compare(change, why):
    trace = plain()
    given = {"residency": residency_of(trace, "lru", BUDGET), "budget": BUDGET}
    trace = with_residency(trace, **{**given, **change})
    assert verify(trace) is None
    assert agreements.why_unverified(trace) == why


def test_the_samples_agree(phone_traces):
    for name, mib in (
        ("traces/qwen.route.csv", 4000),
        ("traces/gptoss.route.csv", 3000),
        ("cases/spec.route.csv.gz", 96),
        ("cases/cancel.route.csv", 96),
        ("cases/spec_min.route.csv", 8),
    ):
        trace = open_any(phone_traces / name)
        trace.facts = trace.facts.with_budget(mib << 20)
        assert verify(trace).holds, name
    found = verify(open_any(phone_traces / "traces" / "bundled-2026-11.trace"))
    assert found.holds
    assert (found.n_lookups, found.n_passes) == (58441, 1130)


# ---- what differs, and why ----------------------------------------------------------------------


def test_another_budget_is_found():
    found = verify(recorded(plain(), ran=30 << 20))
    assert not found.holds
    assert found.hits_recorded > found.hits_replayed
    assert found.likely_reason == "a budget of 30 MiB gives what was recorded"


def test_a_budget_that_is_no_round_number_is_found():
    """Any number of bytes between which nothing changes is right; the shortest in MiB is named."""
    ran = (30 << 20) - 12345
    found = verify(recorded(plain(), ran=ran))
    name = found.likely_reason.removeprefix("a budget of ").removesuffix(
        " MiB gives what was recorded"
    )
    assert verify(recorded(plain(), ran=ran, says=round(float(name) * 2**20))).holds
    assert len(name) <= 5


@pytest.mark.parametrize("policy", slow_if_rare(name for name in PLAIN if name != "lru"))
def test_another_policy_is_found(policy):
    found = verify(recorded(plain(200), policy))
    assert found.policy == "lru"
    assert found.n_mismatched > 20
    assert f"the policy {policy} " in found.likely_reason
    assert found.likely_reason.endswith(" gives what was recorded")


def test_an_engine_that_drops_at_once_is_found():
    """Its budget is less than one token's experts; another one keeps them until the next token."""
    trace, budget = synthesize(1, 24, 3, 60, expert_bytes=1 << 20), 2 << 20
    batches = replace(build_batches(trace), bypass=True)
    (cell,) = simulate(load_policy("lru"), batches, np.array([budget]), per_lookup=True)
    residency = cell.hit.astype(np.uint8)[lookup_of_slots(trace, batches)]
    found = verify(with_residency(trace, residency, budget))
    assert found.n_mismatched > 0
    assert "dropping at once what a load has used (--bypass) gives" in found.likely_reason


def test_one_token_a_pass_is_found():
    """The file gives four tokens a pass, and the engine evaluated one at a time."""
    alone, together = plain(), drafted()
    residency = _same_slots(alone, residency_of(alone, "lru", BUDGET), together)
    found = verify(with_residency(together, residency, BUDGET))
    assert not found.holds
    assert found.likely_reason == "one token a pass while decoding gives what was recorded"


def _same_slots(trace: Trace, values: np.ndarray, other: Trace) -> np.ndarray:
    """Return `values` of the routings of `trace` in the order of `other`, which has the same ones."""
    orders = []
    for each in (trace, other):
        rows = each.routing(["turn", "step", "layer"])
        orders.append(np.lexsort((rows["layer"], rows["step"], rows["turn"])))
    result = np.empty_like(values)
    result[orders[1]] = values[orders[0]]
    return result


@pytest.mark.parametrize(
    ("written", "ran", "reason"),
    slow_unless(
        [
            (1000, 1, "one token a pass in prompts"),
            (100, 1000, "prompts in one pass"),
            (1000, 512, "prompts in passes of 512 tokens"),
        ],
        (1000, 512, "prompts in passes of 512 tokens"),
    ),
)
def test_other_passes_of_prompts_are_found(written, ran, reason):
    """The engine evaluated a prompt of 700 tokens in passes of another size than the file has."""
    budget = 5_000_000
    files = {size: _prompt(size) for size in (written, ran)}
    residency = _same_slots(files[ran], residency_of(files[ran], "lru", budget), files[written])
    found = verify(with_residency(files[written], residency, budget))
    assert found.likely_reason == f"{reason} gives what was recorded"


def _prompt(size: int) -> Trace:
    """Return a prompt of 700 tokens in passes of `size`, and 20 decoded tokens."""
    rng = np.random.default_rng(0)
    step = np.arange(720)
    number = np.minimum(step // size, -(-700 // size)) + np.maximum(step - 699, 0)
    rows = [(number[s], layer, s) for s in step for layer in range(2)]
    share = 0.85 ** np.arange(40)
    chosen = {
        (s, layer): rng.choice(40, 2, replace=False, p=share / share.sum()) for _, layer, s in rows
    }
    rows.sort()
    passes, layer, step = (np.array(values) for values in zip(*rows, strict=True))
    columns = {
        "turn": np.zeros(len(rows), np.int32),
        "pass": np.unique(passes, return_inverse=True)[1],
        "phase": step >= 700,
        "step": step,
        "layer": layer,
        "experts": np.array([chosen[s, layer] for _, layer, s in rows]),
    }
    facts = TraceFacts(ModelFacts("m", "a", 2, 40, 2), source="imported", complete=True)
    layers = layers_table([{"layer": n, "expert_bytes": 100_000} for n in range(2)])
    return Trace.from_tables(facts, layers, to_table(columns, routing_schema(2), len(rows)))


def test_prompts_of_nothing_but_misses_are_called_that():
    """The engine writes 0 while it evaluates a prompt; its second prompt would hit."""
    trace = plain()
    residency = residency_of(trace, "lru", BUDGET)
    decode = trace.routing(["phase"])["phase"] == DECODE
    assert residency[~decode].any()
    residency[~decode] = 0
    found = verify(with_residency(trace, residency, BUDGET))
    assert found.likely_reason == (
        "its prompts have nothing but misses, as of an engine that does not record them there"
    )
    residency[np.flatnonzero(decode)[5]] ^= 1  # and now a decoded token differs too
    assert verify(with_residency(trace, residency, BUDGET)).likely_reason is None


def test_a_recording_of_nothing_but_misses_is_called_that():
    trace = plain()
    found = verify(with_residency(trace, np.zeros((trace.n_rows, 3), np.uint8), BUDGET))
    assert found.likely_reason == (
        "it has nothing but misses, as of an engine that does not record hits"
    )


@pytest.mark.parametrize("with_slots", [True, False])
def test_the_beginning_of_a_long_trace_is_tried(monkeypatch, with_slots):
    monkeypatch.setattr(reasons, "MOST_SLOTS", 300)
    if with_slots:
        trace = recorded(plain(), ran=30 << 20)
    else:
        trace = with_residency(plain(), None, BUDGET, counts=counts_of(plain(), 30 << 20))
    reason = verify(trace).likely_reason
    assert reason.startswith("a budget of ")
    assert reason.endswith(" MiB gives what was recorded at its beginning")


def test_what_comes_close_is_called_that():
    trace = plain(400)
    residency = residency_of(trace, "lru", 30 << 20)
    wrong = np.flatnonzero(trace.routing(["phase"])["phase"] == DECODE)[::100]
    residency[wrong, 0] ^= 1
    found = verify(with_residency(trace, residency, BUDGET))
    assert "comes close: " in found.likely_reason
    assert found.likely_reason.endswith(" differ")


def test_no_reason_is_named_that_does_not_hold():
    trace = plain(400)
    residency = residency_of(trace, "lru", BUDGET)
    rng = np.random.default_rng(3)
    residency ^= (rng.random(residency.shape) < 0.3).astype(np.uint8)
    trace = with_residency(trace, residency, BUDGET)
    found = verify(trace)
    assert found.likely_reason is None
    assert found.sentence("x").endswith(
        "; no other policy, budget or number of tokens a pass that was tried gives what was recorded."
    )


def test_a_recording_of_our_own_is_the_recorders_fault():
    trace = recorded(plain(), ran=30 << 20, source="recorded", engine="tracekit")
    found = verify(trace)
    assert found.likely_reason == (
        "a budget of 30 MiB gives what was recorded; tracekit recorded it itself, so its recorder is "
        "at fault or the trace was changed since"
    )


@pytest.mark.slow  # cut at each of many lines
def test_a_file_that_is_cut_in_a_pass_is_compared(tmp_path):
    lines = session(5).text.replace(f"cache_bytes={session(5).budget}", "cache_bytes=5000")
    path = tmp_path / "run.csv"
    whole = lines.splitlines(keepends=True)
    for n_lines in range(len(whole) - 40, len(whole), 3):
        path.write_text("".join(whole[:n_lines]))
        found = verify(open_any(path))
        assert found.n_mismatched > 0
        assert "gives what was recorded" in found.likely_reason


def test_missing_rows_are_the_reason():
    """Without its first pass the cache of the rest is another one."""
    whole = recorded(plain())
    tables = [whole.table(file) for file in ("routing.parquet", "steps.parquet")]
    cut = [table.filter(pc.greater(table["pass"], 0)) for table in tables]
    trace = Trace.from_tables(whole.facts, whole.layers, *cut)
    assert len(trace.warnings) == 1
    found = verify(trace)
    assert found.n_mismatched > 0
    assert found.likely_reason.startswith("rows of the trace are missing")


def test_the_first_that_differs_is_named():
    trace = plain()
    residency = residency_of(trace, "lru", BUDGET)
    rows = trace.routing(["turn", "pass", "step", "layer", "experts", "phase"])
    row = int(np.flatnonzero(rows["phase"] == DECODE)[40])
    was = int(residency[row, 1])
    residency[row, 1] = 1 - was
    found = verify(with_residency(trace, residency, BUDGET))
    assert found.n_mismatched == 1
    assert found.first_mismatch == {
        **{name: int(rows[name][row]) for name in ("turn", "pass", "step", "layer")},
        "expert": int(rows["experts"][row, 1]),
        "recorded": ["hit", "miss"][was],
        "replayed": ["miss", "hit"][was],
    }


# ---- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_slots", [True, False])
def test_the_counts_of_passes_are_compared(with_slots):
    trace = plain()
    residency = residency_of(trace, "lru", BUDGET) if with_slots else None
    own = {"source": "recorded", "engine": "tracekit"}
    counts = counts_of(trace, BUDGET)
    found = verify(with_residency(trace, residency, BUDGET, counts=counts, **own))
    assert (found.holds, found.n_passes) == (True, 82)
    assert (found.n_lookups > 0) == with_slots
    assert found.hits_recorded == counts["hits"][counts["hits"] >= 0].sum()
    for name in counts:
        changed = {n: values.copy() for n, values in counts.items()}
        row = int(np.flatnonzero(changed[name] >= 0)[7])
        changed[name][row] += 1
        found = verify(with_residency(trace, residency, BUDGET, counts=changed, **own))
        assert (found.n_mismatched, found.n_passes_mismatched) == (0, 1)
        assert found.first_mismatch["pass"] == 7
        assert found.first_mismatch["recorded"][name] == found.first_mismatch["replayed"][name] + 1


def test_bytes_of_other_engines_are_not_compared():
    """They count the pages that were read."""
    trace = plain()
    counts = counts_of(trace, BUDGET)
    counts["read_bytes"][counts["read_bytes"] > 0] += 4096
    assert verify(with_residency(trace, None, BUDGET, counts=counts)).holds


def test_another_budget_is_found_by_counts_alone():
    counts = counts_of(plain(), 30 << 20)
    found = verify(with_residency(plain(), None, BUDGET, counts=counts))
    assert found.n_passes_mismatched > 5
    assert found.likely_reason == "a budget of 30 MiB gives what was recorded"


def test_a_slot_that_was_not_looked_up_has_no_lookup():
    trace = synthesize(2, 6, 3, 12)
    batches = build_batches(trace)
    kept = np.arange(len(batches.keys)) % 3 > 0  # the first expert of each batch is left out
    fewer = replace(
        batches,
        keys=batches.keys[kept],
        admit_rank=np.tile(np.arange(2, dtype=np.int32), len(batches)),
        batch_start=2 * np.arange(len(batches) + 1),
    )
    found = lookup_of_slots(trace, fewer)
    rows = trace.routing(["experts", "layer"])
    keys = np.searchsorted(trace.moe_layers, rows["layer"])[:, None] * 6 + rows["experts"]
    assert (found == DROPPED).sum(axis=1).tolist() == [1] * len(found)
    assert (fewer.keys[found[found != DROPPED]] == keys[found != DROPPED]).all()
    assert (found[found != DROPPED].reshape(-1, 2) // 2 == np.arange(len(batches))[:, None]).all()

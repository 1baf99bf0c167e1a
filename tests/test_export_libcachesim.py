"""Files for libCacheSim: their bytes, and that libcachesim itself replays them as tracekit does."""

import os
import struct

import libcachesim
import numpy as np
import pytest
from cache_runs import EXAMPLES, Run, runs
from hypothesis import given, settings
from routing_traces import make_trace

import tracekit
from tracekit.exports import lookups
from tracekit.exports.libcachesim import RECORD
from tracekit.replaying import build_batches
from tracekit.trace import Trace, TraceError, rows, synthesize
from tracekit.trace.schema import ROUTING_FILE
from tracekit.trace.writer import layers_table

FRACTIONS = (0.05, 0.1, 0.25, 0.5, 0.8)

RUN = Run(
    sizes={1: 10, 3: 20},
    n_expert=5,
    top_k=2,
    passes=(
        (0, False, 0, {1: [(4, 0), (0, 2)], 3: [(1, 3)]}),
        (0, True, 2, {1: [(2, 1)], 3: [(3, 0)]}),
    ),
)
# Pass, layer × 5 + expert, size, the 1-based place of the next record of that object. In the first
# batch expert 0 is touched twice, the second time after 4 and before 2.
RECORDS = [
    (0, 5 + 4, 10, -1),
    (0, 5 + 0, 10, -1),
    (0, 5 + 2, 10, 6),
    (0, 15 + 1, 20, -1),
    (0, 15 + 3, 20, 8),
    (1, 5 + 2, 10, -1),
    (1, 5 + 1, 10, -1),
    (1, 15 + 3, 20, -1),
    (1, 15 + 0, 20, -1),
]


def theirs(path, policy, budget) -> int:
    """Return the misses that libcachesim counts."""
    kind = libcachesim.TraceType.ORACLE_GENERAL_TRACE
    reader = libcachesim.TraceReader(str(path), kind, libcachesim.ReaderInitParam())
    cache = getattr(libcachesim, policy)(cache_size=budget)
    ratio, _ = cache.process_trace(reader)
    return round(ratio * reader.get_num_of_req())


def records(path):
    return np.fromfile(path, RECORD).tolist()


def test_the_bytes_of_a_file(tmp_path):
    path = tmp_path / "x.oracleGeneral.bin"
    tracekit.export(RUN.trace(), path)
    assert path.read_bytes() == b"".join(struct.pack("<IQIq", *record) for record in RECORDS)


def test_the_lines_of_a_csv(tmp_path):
    done = tracekit.export(RUN.trace(), tmp_path / "x.csv", "libcachesim-csv")
    lines = ["time,obj_id,obj_size", *(f"{t},{key},{size}" for t, key, size, _ in RECORDS)]
    assert (tmp_path / "x.csv").read_text() == "".join(f"{line}\n" for line in lines)
    assert "use oracleGeneral for Belady" in done.notes[-1]
    assert done.import_flags is None


@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(run=runs(max_tokens=8))
def test_the_lookups_are_those_of_a_replay(run):
    trace = run.trace()
    batches = build_batches(trace)
    found = list(lookups.lookups_of(trace))
    layer = np.concatenate([each.layer for each in found])
    expert = np.concatenate([each.expert for each in found])
    keys = np.searchsorted(trace.moe_layers, layer) * trace.n_expert + expert
    np.testing.assert_array_equal(keys, batches.keys)
    passes = np.concatenate([each.passes for each in found])
    np.testing.assert_array_equal(passes, np.repeat(batches.pass_id, batches.lookups))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_the_next_lookup_is_found_over_all_chunks(chunk, monkeypatch):
    monkeypatch.setattr(lookups, "CHUNK_LOOKUPS", chunk)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 100)
    dropped = np.random.default_rng(1).integers(0, 2, (54, 2))
    trace = make_trace(dropped=dropped)
    batches = build_batches(trace)
    found = np.concatenate([following for _, following in lookups.next_lookups(trace)])
    n = len(batches.keys)
    np.testing.assert_array_equal(found, np.where(batches.next_use < n, batches.next_use, -1))


def test_a_trace_whose_experts_were_all_dropped_has_no_record(tmp_path):
    tracekit.export(make_trace(dropped=np.ones((54, 2))), tmp_path / "x.oracleGeneral.bin")
    assert (tmp_path / "x.oracleGeneral.bin").read_bytes() == b""


def with_sizes(trace, sizes):
    layers = [{"layer": n, "expert_bytes": size} for n, size in enumerate(sizes)]
    return Trace.from_tables(trace.facts, layers_table(layers), trace.table(ROUTING_FILE))


def test_sizes_of_4_gib_are_refused(tmp_path):
    trace = with_sizes(make_trace(n_layer=2), [(1 << 32) - 1, 1 << 32])
    with pytest.raises(TraceError, match=r"layer 1 of .* has 4294967296 bytes, .* libcachesim-csv"):
        tracekit.export(trace, tmp_path / "x.oracleGeneral.bin")
    assert os.listdir(tmp_path) == []
    tracekit.export(trace, tmp_path / "x.csv", "libcachesim-csv")
    assert "4294967296" in (tmp_path / "x.csv").read_text()
    tracekit.export(with_sizes(trace, [(1 << 32) - 1] * 2), tmp_path / "x.oracleGeneral.bin")
    assert {record[2] for record in records(tmp_path / "x.oracleGeneral.bin")} == {(1 << 32) - 1}


def test_without_sizes_an_object_has_size_1(tmp_path):
    done = tracekit.export(
        with_sizes(make_trace(n_layer=2), [None, None]), tmp_path / "x.oracleGeneral.bin"
    )
    assert {record[2] for record in records(tmp_path / "x.oracleGeneral.bin")} == {1}
    assert "cache sizes in experts" in done.notes[-1]
    with pytest.raises(TraceError, match="does not say how many bytes an expert of layer 1 has"):
        tracekit.export(
            with_sizes(make_trace(n_layer=2), [5, None]), tmp_path / "y.oracleGeneral.bin"
        )


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["bin", "bin.zst"])
@pytest.mark.parametrize("sizes", [1000, [1000, 1500, 700, 1200]], ids=["equal", "unequal"])
def test_with_one_expert_a_batch_libcachesim_misses_the_same(sizes, ending, tmp_path):
    trace = synthesize(4, 16, 1, 500, n_turns=2, expert_bytes=sizes)
    path = tmp_path / f"x.oracleGeneral.{ending}"
    tracekit.export(trace, path)
    budgets = [int(fraction * trace.bank_bytes) for fraction in FRACTIONS]
    for row in tracekit.replay(trace, ["lru", "belady"], cache_bytes=budgets).rows:
        policy = {"lru": "LRU", "belady": "Belady"}[row.policy]
        assert theirs(path, policy, row.cache_bytes) == row.lookups - row.hits


def one_at_a_time(path, policy, budget) -> int:
    """Count misses where each lookup makes room for itself, as if it were a batch of its own."""
    resident, used, misses = {}, 0, 0
    for now, (_, key, size, following) in enumerate(records(path)):
        if key not in resident:
            misses += 1
            while used + size > budget:
                victim = min(resident, key=lambda each: resident[each][0])
                used -= resident.pop(victim)[1]
            used += size
        never = following if following > 0 else 1 << 62
        resident[key] = (now if policy == "LRU" else -never, size)
    return misses


@pytest.mark.parametrize("policy", ["LRU", "Belady"])
def test_with_larger_batches_it_makes_room_within_a_batch(policy, tmp_path):
    """That is the whole difference: tracekit evicts after a batch, and nothing that it touched."""
    trace = synthesize(4, 16, 3, 200, expert_bytes=1000)
    path = tmp_path / "x.oracleGeneral.bin"
    tracekit.export(trace, path)
    differ = 0
    for fraction in FRACTIONS[1:]:
        budget = int(fraction * trace.bank_bytes)
        misses = theirs(path, policy, budget)
        assert misses == one_at_a_time(path, policy, budget)
        (row,) = tracekit.replay(trace, policy.lower(), cache_bytes=[budget]).rows
        differ += misses != row.lookups - row.hits
    assert differ

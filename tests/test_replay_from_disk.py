"""A replay from disk gives what one in memory gives, and does not hold the trace."""

import numpy as np
import pytest

import tracekit
from tracekit.policies import Cell, load_policy
from tracekit.policies.fed import FedPolicy, Run
from tracekit.replaying import build_batches, memory, pieces
from tracekit.replaying.counting import without_first
from tracekit.replaying.pieces import Pieces
from tracekit.trace import Trace, UsageError

FED = ("lru", "lfu", "layer-lfu", "follow", "belady", "bound")


@pytest.fixture
def trace():
    return tracekit.open_trace("bundled:tiny-moe-64e.trace")


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "LOOKUPS", 9_000)
    monkeypatch.setattr(pieces, "LOOKUPS_A_KEY", 0)


def both(trace, policies, **options):
    """Return what a replay in memory says, and one from disk."""
    return [
        tracekit.replay(trace, policies, from_disk=disk, **options).to_json()
        for disk in (False, True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"cache_mib": [1, 2.4], "per_layer": True, "flash_mib_s": 1500},
            id="layers",
            marks=pytest.mark.slow,
        ),
        pytest.param({"cache_slots": [3, 20], "skip": 40}, id="slots and skip"),
        pytest.param({"cache_mib": 0.5, "bypass": True}, id="bypass", marks=pytest.mark.slow),
    ],
)
def test_the_figures_are_those_of_memory(trace, small_pieces, options):
    in_memory, from_disk = both(trace, FED, **options)
    assert from_disk == in_memory
    assert in_memory["results"]


def test_the_trace_is_not_held(trace, small_pieces, monkeypatch):
    whole = Trace.routing

    def refuse(self, columns):
        assert "experts" not in columns, "the routings were read as a whole"
        return whole(self, columns)

    monkeypatch.setattr(Trace, "routing", refuse)
    with pytest.raises(AssertionError, match="as a whole"):
        tracekit.replay(trace, "lru", cache_mib=1)
    result = tracekit.replay(trace, ["lru", "belady"], cache_mib=1, from_disk=True)
    assert [row.policy for row in result.rows] == ["lru", "belady"]
    # A trace that is large for the machine is replayed so without being asked.
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1 << 20)
    unasked = tracekit.replay(trace, ["lru", "belady"], cache_mib=1)
    assert [row.to_record() for row in unasked.rows] == [row.to_record() for row in result.rows]


def test_a_policy_that_needs_the_whole_run_is_named_with_what_it_takes(trace, small_pieces):
    in_memory, from_disk = both(trace, ["drop-cold", "lru", "prefetch"], cache_mib=1)
    (sentence,) = set(from_disk["notes"]) - set(in_memory["notes"])
    assert sentence.startswith(
        "drop-cold and prefetch hold the whole trace in memory, which takes about"
    )
    assert sentence.endswith("MiB; what else is replayed comes from disk.")
    assert from_disk["results"] == in_memory["results"]


@pytest.mark.parametrize("option", ["validate", "time", "warm"])
def test_what_compares_whole_runs_is_refused(trace, option):
    value = trace if option == "warm" else True
    with pytest.raises(UsageError, match=f"^--{option} needs the whole run in memory; leave out"):
        tracekit.replay(trace, "lru", cache_mib=1, from_disk=True, **{option: value})


def test_pieces_are_the_batches_of_the_trace(trace):
    whole = build_batches(trace)
    for lookups in (700, 20_000, 10**9):
        found = list(Pieces(trace, whole, without_first(trace, 3), lookups))
        for name in ("keys", "admit_rank", "layer", "turn", "pass_id", "step", "phase", "rows"):
            joined = np.concatenate([getattr(piece, name) for piece in found])
            np.testing.assert_array_equal(joined, getattr(whole, name), err_msg=name)
        lookups_of = np.concatenate([piece.lookups for piece in found])
        np.testing.assert_array_equal(lookups_of, whole.lookups)
        marked = without_first(trace, 3).marked(whole)
        counted = np.concatenate([piece.counted_decode for piece in found])
        np.testing.assert_array_equal(counted, marked.counted_decode)
        later = np.concatenate([piece.after_first_decode for piece in found])
        np.testing.assert_array_equal(later, whole.after_first_decode)
        assert (len(found) == 1) == (lookups == 10**9)


class Boasting(FedPolicy):
    """A policy of one's own with a wrong answer."""

    name = "boasting"
    summary = "says that more hit than was looked up"

    def start(self, model, budgets):
        return BoastingRun(budgets)


class BoastingRun(Run):
    def __init__(self, budgets):
        self.budgets = budgets

    def feed(self, batches, per_lookup=False):
        hits = batches.lookups.astype(np.int32) + (batches.turn[0] > 0)
        return [
            Cell(int(budget), hits, np.zeros(len(batches), np.int64)) for budget in self.budgets
        ]


def test_a_policy_of_ones_own_that_reads_ahead_holds_the_trace(trace, small_pieces):
    """The bound of its class judges the whole run, and is not taken of nothing."""

    class ReadingAhead(type(load_policy("lru"))):
        name = "reading-ahead"
        speculative = True
        reads_ahead = 1

    in_memory, from_disk = both(trace, ReadingAhead(), cache_mib=2)
    assert from_disk["results"] == in_memory["results"]
    assert in_memory["results"][0]["bound_hit_rate_decode"] > 0.4
    assert any("reading-ahead holds the whole trace" in note for note in from_disk["notes"])


def test_a_wrong_answer_of_ones_own_policy_is_named(trace, small_pieces):
    with pytest.raises(UsageError, match=r"^Policy 'boasting' is wrong: its feed\(\) returned"):
        tracekit.replay(trace, Boasting(), cache_mib=1, from_disk=True)

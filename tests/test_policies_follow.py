"""`follow` against a port in plain Python, golden decisions and the figures measured for it."""

import sys
from dataclasses import replace
from pathlib import Path

import follow_golden
import numpy as np
import pytest

import tracekit
from tracekit.policies import Follow, load_policy
from tracekit.replaying import build_batches
from tracekit.trace.schema import DECODE

EXAMPLES_FOLDER = str(Path(__file__).parent / "examples")
MIB = 2**20
# Decode hit rates in percent at cache sizes in MiB, from a program that shares no code with this one.
MEASURED = {
    "qwen.route.csv": {1000: 46.10, 1500: 56.72, 2000: 64.86, 3000: 75.93, 4000: 83.62},
    "gptoss.route.csv": {1000: 26.45, 1500: 33.70, 2000: 39.82, 3000: 48.63, 4000: 55.10},
    "bundled-2026-11.trace": {1.0: 31.31, 1.5: 40.20, 2.4: 54.07, 3.6: 66.86, 4.8: 77.49},
}


@pytest.fixture
def ported(monkeypatch):
    """The port, which notes the victims of each batch."""
    monkeypatch.syspath_prepend(EXAMPLES_FOLDER)
    monkeypatch.delitem(sys.modules, "own_follow", raising=False)
    victims = []

    class Noting(type(load_policy("own_follow:OwnFollow"))):
        def start(self, batches):
            super().start(batches)
            victims.clear()

        def end_batch(self, layer, rows):
            super().end_batch(layer, rows)
            victims.append([])

        def victim(self, evictable):
            key = super().victim(evictable)
            victims[-1].append(key)
            return key

    return Noting(), victims


@pytest.mark.slow  # its oracle is in test_policies_conformance
def test_the_port_gives_the_same_victims(ported):
    policy, victims = ported
    batches = build_batches(tracekit.open_trace("bundled:tiny-moe-64e.trace"))
    part = batches.only(np.arange(1500))
    budget = round(2.4 * MIB)
    policy.simulate(part, np.array([budget]))
    assert sum(map(len, victims)) > 2000
    assert Follow().victims(part, budget) == victims


def test_the_golden_decisions_are_those_of_both(ported):
    run, hits, evicted = follow_golden.run_in_file()
    batches = build_batches(run.trace())
    budgets = np.array([follow_golden.BUDGET])
    policy, victims = ported
    for each in (policy, Follow()):
        (cell,) = each.simulate(batches, budgets, per_lookup=True)
        assert follow_golden.hits_of(batches, cell.hit) == hits
    assert victims == evicted
    assert Follow().victims(batches, follow_golden.BUDGET) == evicted
    assert sum(map(len, evicted)) > 100


def test_an_engine_that_runs_it_is_checked_lookup_by_lookup():
    """The residency of a port, as an engine records it: of decoded tokens, in the order of the slots."""
    run, hits, _ = follow_golden.run_in_file()
    routing = run.trace().routing(["pass", "phase", "layer", "experts"])
    loads = {
        (load.number, load.layer): set(found) for load, found in zip(run.loads, hits, strict=True)
    }
    residency = np.full(routing["experts"].shape, 255, np.uint8)
    for row in np.flatnonzero(routing["phase"] == DECODE):
        layer = int(routing["layer"][row])
        found = loads[int(routing["pass"][row]), layer]
        residency[row] = [f"{layer}:{expert}" in found for expert in routing["experts"][row]]
    recorded = run.trace(cache_bytes=follow_golden.BUDGET, residency=residency)
    of_follow, of_lru = tracekit.replay(recorded, ["follow", "lru"], validate=True).records
    assert of_follow["validation"] == {"lookups": 288, "mismatches": 0}
    assert of_lru["validation"]["mismatches"] > 0


@pytest.mark.parametrize("name", MEASURED)
def test_the_figures_measured_for_it(phone_traces, name):
    trace = tracekit.open_trace(phone_traces / "traces" / name)
    result = tracekit.replay(trace, "follow", cache_mib=list(MEASURED[name]))
    found = [100 * record["hit_rate_decode"] for record in result.records]
    assert found == pytest.approx(list(MEASURED[name].values()), abs=0.05)


def test_every_token_of_a_prompt_is_learned():
    batches = build_batches(tracekit.synthesize(2, 8, 2, 60, n_turns=3, prefill=9, expert_bytes=1))
    rows, row_start = batches.routing_rows()
    assert np.diff(row_start).max() == 9
    last_only = replace(
        batches, rows=rows[row_start[1:] - 1], row_start=np.arange(len(batches) + 1)
    )
    assert Follow().victims(last_only, 6) != Follow().victims(batches, 6)


def test_batches_without_rows_are_refused():
    batches = replace(build_batches(tracekit.synthesize(1, 4, 1, 5)), rows=None)
    with pytest.raises(ValueError, match="takes batches with their rows"):
        Follow().simulate(batches, np.array([2]))


def test_a_layer_of_very_many_experts_takes_memory_for_what_is_selected():
    """The full table of one layer of 20,000 experts would take 1.6 GB."""
    trace = tracekit.synthesize(1, 20_000, 1, 30, expert_bytes=1)
    (record,) = tracekit.replay(trace, "follow", cache_bytes=10).records
    assert record["hits"] >= 0

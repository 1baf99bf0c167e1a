"""Every limit that is printed against brute force over every set of residents, on drawn small runs."""

import random

import numpy as np
import pytest
from bounds_reference import Best, best, draw

from tracekit.policies import Belady, Bound, load_policy
from tracekit.policies.intervals import Room

# Of a drawn run with decode and cumulative hits, with and without bypass: four instances.
INSTANCES = 4


def check_run(drawn, equal: bool, bypass: bool) -> Best:
    """Check the hits and the bytes of decoded tokens and of all: two instances."""
    batches = drawn.as_batches(bypass)
    found = best(drawn, bypass)
    for decode_only, hits, read in (
        (False, found.hits, found.read_bytes),
        (True, found.hits_decode, found.read_bytes_decode),
    ):
        room = Room.of(batches, decode_only)
        capacity = room.capacity(drawn.budget)
        kept, _ = room.most_kept(capacity, batches.expert_bytes)
        assert kept == hits if equal else kept <= hits, drawn
        assert int(room.price_bound(capacity, 100) + 1e-6) >= hits, drawn
        _, kept_bytes = room.most_kept(capacity, batches.expert_bytes, divisible=True)
        counted = np.ones(len(batches), bool) if not decode_only else batches.phase == 1
        asked = (batches.lookups * batches.expert_bytes[batches.layer])[counted].sum()
        assert asked - kept_bytes <= read, drawn
        assert asked - kept_bytes == read or not equal, drawn
    budget = np.array([drawn.budget])
    (limit,) = Bound().simulate(batches, budget)
    (priced,) = load_policy("bound", {"prices": 100}).simulate(batches, budget)
    for each in (limit, priced):
        assert each.hits >= found.hits, drawn
        assert each.hits_decode >= found.hits_decode, drawn
        assert each.read_bytes <= found.read_bytes, drawn
        assert each.read_bytes_decode <= found.read_bytes_decode, drawn
    assert priced.hits <= limit.hits
    assert priced.hits_decode <= limit.hits_decode
    (belady,) = Belady().simulate(batches, budget)
    assert belady.hits.sum() <= found.hits, drawn
    if equal:
        assert belady.hits.sum() == found.hits, drawn
        assert vars(limit) == {"budget_bytes": drawn.budget, **vars(found)}, drawn
    return found


def check_runs(seed: int, n_runs: int, equal: bool) -> None:
    """Check decode and cumulative, with and without bypass: `INSTANCES` a run."""
    rng = random.Random(seed)
    for _ in range(n_runs):
        drawn = draw(rng, equal)
        keeps, drops = (check_run(drawn, equal, bypass) for bypass in (False, True))
        if drawn.drops_reach_further:
            assert keeps.hits <= drops.hits, drawn
            assert keeps.hits_decode <= drops.hits_decode, drawn
            assert keeps.read_bytes >= drops.read_bytes, drawn
            assert keeps.read_bytes_decode >= drops.read_bytes_decode, drawn


@pytest.mark.parametrize("equal", [True, False], ids=["equal-sizes", "sizes-by-layer"])
def test_no_schedule_is_better_than_the_bound(equal):
    check_runs(seed=1, n_runs=30, equal=equal)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_forty_thousand_schedules_of_equal_sizes_reach_the_bound_and_none_is_better(seed):
    check_runs(seed + 2, n_runs=40_000 // INSTANCES // 20, equal=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_of_twenty_thousand_of_unequal_sizes_is_better_than_the_bound(seed):
    check_runs(seed + 2, n_runs=20_000 // INSTANCES // 10, equal=False)


def test_the_brute_force_finds_what_a_worse_rule_misses():
    """The reference is no rule itself: LRU and even Belady fall short of it somewhere."""
    rng = random.Random(0)
    better_than_belady = 0
    for _ in range(200):
        drawn = draw(rng, equal=False)
        (cell,) = Belady().simulate(drawn.as_batches(False), np.array([drawn.budget]))
        found = best(drawn, bypass=False)
        assert cell.hits.sum() <= found.hits
        better_than_belady += found.hits > cell.hits.sum()
    assert better_than_belady

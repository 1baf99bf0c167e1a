"""Every limit that is printed against brute force over every set of residents, on drawn small runs."""

import random
from dataclasses import replace

import numpy as np
import pytest
from bounds_reference import Best, Instance, best, best_ahead, draw
from families import slow_unless

from tracekit.policies import Belady, Bound, Guesses, load_policy
from tracekit.policies.bound import BoundAhead, BoundInShares, BoundParams
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
        counted = [drawn.counts(number, decode_only) for number in range(len(batches))]
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
    assert belady.hits[batches.counted].sum() <= found.hits, drawn
    if equal:
        assert drawn.warm or belady.hits.sum() == found.hits, drawn
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
        hits = cell.hits[drawn.warm :].sum()
        assert hits <= found.hits
        better_than_belady += found.hits > hits
    assert better_than_belady


@pytest.mark.parametrize("bypass", [False, True], ids=["kept", "bypass"])
def test_one_price_for_all_batches_bounds_as_the_formula_says(bypass):
    """One iteration is one price, at which the mean interval pays half of what it is worth."""
    rng = random.Random(3)
    for _ in range(40):
        drawn = draw(rng, equal=False)
        room = Room.of(drawn.as_batches(bypass), True)
        capacity = room.capacity(drawn.budget)
        last, rents = {}, []
        for number, (layer, keys, _) in enumerate(drawn.batches):
            for key in keys:
                if key in last and drawn.counts(number, True):
                    # Without bypass the first batch itself has its room already.
                    rents.append((number - last[key] - (not bypass)) * drawn.sizes[layer])
                last[key] = number
        rents = np.array(rents) / min(drawn.sizes)
        expected = len(rents)
        if rents.sum():
            price = len(rents) / rents.sum() / 2
            paid = price * capacity.sum() / min(drawn.sizes)
            expected = min(expected, paid + np.maximum(0, 1 - price * rents).sum())
        assert room.price_bound(capacity, 1) == pytest.approx(expected)


# ---- reading ahead ------------------------------------------------------------------------------


def check_runs_ahead(seed: int, n_runs: int, equal: bool) -> int:
    """Hold the bound of what reads ahead against brute force; return how often it is reached.

    Decode and cumulative, with and without bypass: `INSTANCES` a run.
    """
    rng = random.Random(seed)
    reached = 0
    for _ in range(n_runs):
        drawn, most = draw(rng, equal), rng.randint(0, 2)
        for bypass in (False, True):
            batches, budget = drawn.as_batches(bypass), np.array([drawn.budget])
            hits, hits_decode = best_ahead(drawn, bypass, most)
            for prices in (0, 100):
                (limit,) = BoundAhead(BoundParams(prices), most).simulate(batches, budget)
                assert limit.hits >= hits, (drawn, most)
                assert limit.hits_decode >= hits_decode, (drawn, most)
            reached += (limit.hits == hits) + (limit.hits_decode == hits_decode)
            check_prefetch(drawn, batches, limit, most, rng)
    return reached


def check_prefetch(drawn, batches, limit, most, rng):
    """Hold it against `prefetch` itself, on guesses that are right, wrong or none.

    What a wrong guess brings later lies outside the class: those hits are taken away.
    """
    keys = np.full((len(batches), 3), -1, np.int32)
    for b, (_, _, decode) in enumerate(drawn.batches):
        if decode and b + 1 < len(drawn.batches):
            layer, wanted, _ = drawn.batches[b + 1]
            of_layer = range(layer * drawn.n_expert, (layer + 1) * drawn.n_expert)
            named = list(wanted) if rng.random() < 0.5 else rng.sample(of_layer, drawn.n_expert)
            keys[b, : len(named[:3])] = named[:3]
    # `follow` learns from the tokens: one for each batch, which names its first expert again.
    rows = [(k + k[:1] * batches.top_k)[: batches.top_k] for _, k, _ in drawn.batches]
    rows = np.array(rows, np.uint16) % drawn.n_expert
    given = replace(batches, guesses=Guesses(keys), rows=rows, row_start=np.arange(len(rows) + 1))
    for base in ("lru", "follow"):
        policy = load_policy("prefetch", {"spec_max": most, "base": base})
        (cell,) = policy.simulate(given, np.array([drawn.budget]))
        late = cell.counters["speculative_late"]
        assert cell.hits[batches.counted].sum() - late <= limit.hits, drawn
        assert cell.hits[batches.counted_decode].sum() - late <= limit.hits_decode, drawn
        if batches.counted.all() and not drawn.skipped:
            # What counts may be read before it does, so that only a whole run has a least.
            assert cell.read_bytes.sum() >= limit.read_bytes, drawn
            assert cell.read_bytes[batches.phase == 1].sum() >= limit.read_bytes_decode, drawn


@pytest.mark.parametrize(
    ("equal", "n_runs"), slow_unless([(True, 60), (False, 60), (False, 12)], (False, 12))
)
def test_nothing_that_reads_ahead_is_better_than_its_bound(equal, n_runs):
    assert check_runs_ahead(seed=1, n_runs=n_runs, equal=equal)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("equal", [True, False], ids=["equal-sizes", "sizes-by-layer"])
def test_of_sixteen_thousand_none_that_reads_ahead_is_better_than_its_bound(equal, seed):
    assert check_runs_ahead(seed, n_runs=16_000 // INSTANCES // 8, equal=equal)


def test_what_is_read_ahead_was_used_longest_ago():
    rng = random.Random(5)
    for _ in range(60):
        drawn, most = draw(rng, equal=True), rng.randint(1, 3)
        batches = drawn.as_batches(False)
        room = Room.of(batches, True)
        left, n_read = room.read_ahead(batches.counted_decode, most)
        last, kept, read, position = {}, [], 0, 0
        for number, (_, keys, decode) in enumerate(drawn.batches):
            ages = sorted((last.get(key, -1), key) for key in keys)
            can = decode and number > 0 and drawn.batches[number - 1][2]
            gone = ages[: most if can and drawn.counts(number, True) else 0]
            read += len(gone)
            if drawn.counts(number, True):
                kept += [use for use, key in ages if use >= 0 and (use, key) not in gone]
            for key in keys:
                last[key] = position
                position += 1
        assert n_read == read
        assert np.flatnonzero(left.next_use < position).tolist() == sorted(kept)


def test_with_room_for_one_more_an_engine_reads_ahead_what_it_used_longest_ago():
    """Two layers of one expert a token: to read the next one ahead is as good as to keep it."""
    batches = [(layer, (2 * layer + t % 2,), True) for t in range(6) for layer in range(2)]
    drawn = Instance(batches, [1, 1], n_expert=2, budget=2)
    (limit,) = BoundAhead(BoundParams(), 1).simulate(drawn.as_batches(False), np.array([2]))
    assert limit.hits == best_ahead(drawn, False, 1)[0] == 11  # all but the first
    assert best(drawn, False).hits < 11


# ---- shares of the layers -----------------------------------------------------------------------


@pytest.mark.parametrize("in_slots", [True, False], ids=["slots", "bytes"])
def test_the_bound_of_layer_shares_is_the_best_of_every_layer_alone(in_slots):
    rng = random.Random(4)
    for _ in range(60):
        drawn = draw(rng, equal=False)
        batches = replace(drawn.as_batches(False), in_slots=in_slots)
        total = drawn.budget // sum(drawn.sizes) * sum(drawn.sizes) if in_slots else drawn.budget
        (limit,) = BoundInShares().totals(batches, np.array([total]))
        found = np.zeros(4, int)
        for layer, size in enumerate(drawn.sizes):
            share = total // sum(drawn.sizes) * size if in_slots else total // len(drawn.sizes)
            found += list(vars(best(of_layer(drawn, layer, share), False)).values())
        assert [value for name, value in vars(limit).items() if name != "budget_bytes"] == [*found]
        # A run in pieces is judged layer by layer instead.
        assert BoundInShares().start(batches, np.array([total])).feed(batches) == [limit]
        for name in ("layer-lru", "layer-lfu"):
            (cell,) = load_policy(name).simulate(batches, np.array([total]))
            assert cell.hits[batches.counted].sum() <= limit.hits


def of_layer(drawn: Instance, layer: int, share: int) -> Instance:
    """The batches of one layer as a run of their own."""
    numbers = [b for b, (of, _, _) in enumerate(drawn.batches) if of == layer]
    return replace(
        drawn,
        batches=[drawn.batches[b] for b in numbers],
        budget=share,
        warm=sum(b < drawn.warm for b in numbers),
        skipped=tuple(i for i, b in enumerate(numbers) if b in drawn.skipped),
    )

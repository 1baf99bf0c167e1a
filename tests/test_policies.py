"""What single policies must do beyond agreeing with their oracles: optima, bounds, special cases."""

import numpy as np
import reference
from cache_runs import EXAMPLES, Run, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.policies import load_policy
from tracekit.policies.belady import Belady
from tracekit.policies.bound import Bound
from tracekit.policies.intervals import Room
from tracekit.policies.lfu import LFUState, _lfu
from tracekit.replaying import build_batches


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(max_layers=1))
def test_ring_of_one_layer_is_lru(case):
    budgets = np.array(case.budgets)
    ring, lru = (load_policy(p).simulate(case.batches, budgets, True) for p in ("ring", "lru"))
    for cell, other in zip(ring, lru, strict=True):
        assert cell.hit.tolist() == other.hit.tolist()
        assert cell.resident_bytes.tolist() == other.resident_bytes.tolist()


def test_ring_keeps_what_comes_round_first_where_a_round_does_not_fit():
    # Three layers that always ask for the same expert, and room for two of them.
    run = Run(
        sizes={0: 1, 1: 1, 2: 1},
        n_expert=1,
        top_k=1,
        passes=tuple((0, True, t, {layer: [(0,)] for layer in range(3)}) for t in range(4)),
    )
    batches = build_batches(run.trace())
    (ring,), (lru,) = (load_policy(p).simulate(batches, np.array([2])) for p in ("ring", "lru"))
    assert lru.hits.sum() == 0
    # A miss pushes out the layer before it, so it is followed by a hit.
    assert ring.hits.tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(max_layers=2, max_expert=3, max_tokens=3, equal_sizes=True))
def test_belady_is_the_optimum_at_equal_sizes_and_the_bound_meets_it(case):
    cells = Belady().simulate(case.batches, np.array(case.budgets))
    limits = Bound().simulate(case.batches, np.array(case.budgets))
    for budget, cell, limit in zip(case.budgets, cells, limits, strict=True):
        best = reference.best(case.loads, case.run.layer_sizes, budget, lambda load, key: 1)
        assert cell.hits.sum() == best
        assert limit.hits == best


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(
    case=cases(False, max_layers=3, max_expert=3, max_tokens=2)
    | cases(True, max_layers=2, max_expert=3, max_tokens=2)
)
def test_no_schedule_beats_the_bound_whatever_the_sizes(case):
    loads, sizes = case.loads, case.run.layer_sizes
    asked = sum(sizes[load.layer] * len(load.distinct) for load in loads)
    asked_decode = sum(sizes[load.layer] * len(load.distinct) for load in loads if load.decode)
    limits = Bound().simulate(case.batches, np.array(case.budgets))
    for budget, limit in zip(case.budgets, limits, strict=True):

        def most(worth, budget=budget):
            return reference.best(loads, sizes, budget, worth)

        assert most(lambda load, key: 1) <= limit.hits
        assert most(lambda load, key: int(load.decode)) <= limit.hits_decode
        assert asked - most(lambda load, key: sizes[load.layer]) >= limit.read_bytes
        saved = most(lambda load, key: sizes[load.layer] * load.decode)
        assert asked_decode - saved >= limit.read_bytes_decode


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases())
def test_divisible_experts_are_experts_of_single_bytes(case):
    batches, sizes = case.batches, case.run.layer_sizes
    cut = reference.in_single_bytes(case.loads, sizes)
    asked = sum(len(load.distinct) for load in cut)
    room = Room.of(batches, decode_only=False)
    for budget in case.budgets:
        capacity = room.capacity(budget)
        _, kept_bytes = room.most_kept(capacity, batches.expert_bytes, divisible=True)
        hits = reference.belady(cut, dict.fromkeys(sizes, 1), budget).count()
        assert kept_bytes == sum(hits)
        assert asked - kept_bytes >= 0


def test_belady_at_real_sizes_is_not_a_bound():
    """Going for the furthest next use first can cost a small expert where one large would do."""
    run = Run(
        sizes={0: 1, 1: 2},
        n_expert=3,
        top_k=1,
        passes=(
            (0, False, 0, {0: [(0,)], 1: [(0,)]}),
            (0, False, 1, {0: [(2,), (1,)], 1: [(0,)]}),
            (0, False, 3, {0: [(0,)], 1: []}),
        ),
    )
    batches = build_batches(run.trace())
    (cell,) = Belady().simulate(batches, np.array([3]))
    (limit,) = Bound().simulate(batches, np.array([3]))
    best = reference.best(run.loads, run.layer_sizes, 3, lambda load, key: 1)
    assert (cell.hits.sum(), best) == (0, 1)
    assert limit.hits >= best


# ---- a run in parts ------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(), data=st.data())
def test_lfu_continues_a_run_with_the_state_that_the_first_part_left(case, data):
    batches = case.batches
    cut = data.draw(st.integers(0, len(batches)), "cut")
    budgets = np.array(case.budgets)
    parts = [batches.only(np.arange(*ends)) for ends in ((0, cut), (cut, len(batches)))]
    for cell in load_policy("lfu").simulate(batches, budgets, per_lookup=True):
        state = LFUState.empty(batches.n_keys, batches.n_expert)
        found = [np.empty_like(each) for each in (cell.hits, cell.resident_bytes, cell.hit)]
        filled = 0
        for part in parts:
            of_batches = slice(filled, filled + len(part))
            start = batches.batch_start[filled]
            _lfu(
                part.keys,
                part.batch_start,
                part.key_bytes,
                *state,
                cell.budget_bytes,
                part.bypass,
                found[0][of_batches],
                found[1][of_batches],
                found[2][start : start + len(part.keys)],
            )
            state.renumber()
            filled += len(part)
        assert all(map(np.array_equal, found, (cell.hits, cell.resident_bytes, cell.hit)))

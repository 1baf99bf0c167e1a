"""What every registered policy, and one of the user's own, must do whatever its rule is.

A policy that is added is tested by nothing else. Its own rule is tested against its oracle in
`reference`, lookup by lookup; the other tests hold for every rule.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import pairwise

import acting_reference  # noqa: F401  # files its oracles
import classic_reference  # noqa: F401
import numpy as np
import pytest
from cache_runs import EXAMPLES, cases, long_case
from families import RARE_POLICIES, slow_if_rare, slow_where
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from policy_replays import (
    CELLS,
    EVERY,
    PARAMS,
    REGISTERED,
    drawn_cases,
    each_cell,
    in_all,
    in_layers,
    replays,
)
from reference import ORACLES

from tracekit.figures import Unit
from tracekit.policies import (
    POLICIES,
    Bound,
    Cell,
    Guesses,
    Limit,
    Policy,
    Popularity,
    load_policy,
)
from tracekit.replaying import build_batches
from tracekit.trace import synthesize
from tracekit.trace.schema import DECODE, PREFILL

# ---- the rule ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGISTERED)
def test_it_has_an_oracle(name):
    assert name in ORACLES, (
        f"The policy {name!r} has no oracle, so nothing tests its rule. Write the rule in plain "
        f"Python in tests/reference.py, below a line @oracle({name!r})."
    )


def test_every_oracle_is_of_a_policy():
    assert set(ORACLES) <= set(REGISTERED)


@pytest.mark.parametrize("name", slow_if_rare(name for name in REGISTERED if name in ORACLES))
@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(), data=st.data())
def test_it_agrees_with_its_oracle_on_every_lookup(name, case, data):
    oracle, k = ORACLES[name], case.run.top_k
    params = {
        param: data.draw(st.sampled_from(list(values(k) if callable(values) else values)), param)
        for param, values in oracle.params.items()
    }
    assume(POLICIES.find(name).can_bypass or not case.bypass)
    check_answers(name, case, params, case.budgets)


# Their long runs take a second each, most of it the oracle's. The fast suite keeps the one that learns
# most on its way, and every policy that is new.
LONG_RUNS_ARE_SLOW = RARE_POLICIES | {
    *("belady", "bound", "drop-cold", "follow", "layer-lru", "lfu"),
    *("prefetch", "random", "retention", "ring"),
}


def test_the_policies_whose_long_runs_are_slow_are_registered():
    assert set(REGISTERED) >= LONG_RUNS_ARE_SLOW


@pytest.mark.parametrize(
    "name",
    slow_where([n for n in REGISTERED if n in ORACLES], lambda n: n in LONG_RUNS_ARE_SLOW),
)
def test_it_agrees_with_its_oracle_on_a_long_run(name):
    """Thousands of lookups, with runs of the same experts: counters and positions become large."""
    params = {
        param: list(values(2) if callable(values) else values)[-1]
        for param, values in ORACLES[name].params.items()
    }
    for bypass in {False, POLICIES.find(name).can_bypass}:
        check_answers(name, replace(long_case(), bypass=bypass), params, [7, 13])


def check_limit(answer, expected, exact):
    """Hold a limit against schedules that can be run; brute force is in ``test_bounds``."""
    for name in ("hits", "hits_decode"):
        assert getattr(answer, name) >= getattr(expected, name)
    for name in ("read_bytes", "read_bytes_decode"):
        assert getattr(answer, name) <= getattr(expected, name)
    if exact:
        assert {field.name: getattr(answer, field.name) for field in fields(expected)} == vars(
            expected
        )


def check_answers(name, case, params, budgets):
    """Compare what a policy answers at each budget with what its oracle does."""
    policy = load_policy(name, params)
    answers = policy.simulate(case.batches, np.array(budgets), per_lookup=True)
    for budget, answer in zip(budgets, answers, strict=True):
        expected = ORACLES[name].replay(case.loads, case.run.layer_sizes, budget, **params)
        assert answer.budget_bytes == budget
        if policy.gives_limits:
            check_limit(answer, expected, exact=len(set(case.run.layer_sizes.values())) == 1)
        else:
            check_cell(answer, case.loads, expected)


def check_cell(cell, loads, expected):
    """Compare a cell with an oracle's outcome: each lookup, each load, each counter."""
    flags = [
        key in found
        for load, found in zip(loads, expected.hits, strict=True)
        for key in load.recency
    ]
    assert cell.hit.tolist() == flags
    assert cell.hits.tolist() == expected.count()
    assert cell.resident_bytes.tolist() == expected.resident
    if expected.lookups is not None:
        assert cell.lookups.tolist() == [len(keys) for keys in expected.lookups]
    if expected.read is not None:
        assert cell.read_bytes.tolist() == expected.read
        assert cell.prefetched.tolist() == expected.prefetched
    assert set(cell.counters) == set(expected.counters)
    for name, value in expected.counters.items():
        assert cell.counters[name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_what_counts_changes_no_decision(spec):
    """What warms the cache and what is skipped is replayed like all else; figures leave it out."""
    policy = load_policy(spec, PARAMS.get(spec))
    for case in drawn_cases():
        number = np.arange(len(case.batches))
        masked = replace(
            case.batches,
            warming=number < len(number) // 3,
            skipped=(case.batches.phase == 1) & (number % 2 == 1),
        )
        cells, plain = (policy.simulate(b, np.array(case.budgets)) for b in (masked, case.batches))
        for cell, same in zip(cells, plain, strict=True):
            assert (cell.hits == same.hits).all()
            assert (cell.resident_bytes == same.resident_bytes).all()


# ---- the accounting ---------------------------------------------------------------------------


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_hits_are_lookups_that_hit(spec):
    for replay, cell in each_cell(spec):
        asked, lookups = replay.batches.lookups, replay.lookups(cell)
        assert (lookups <= asked).all() if replay.policy.lossy else (lookups == asked).all()
        assert ((cell.hits >= 0) & (cell.hits <= lookups)).all()
        starts = replay.batches.batch_start
        flags = [int(cell.hit[a:b].sum()) for a, b in pairwise(starts)]
        assert cell.hits.tolist() == flags


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_what_was_never_read_does_not_hit(spec):
    for replay, cell in each_cell(spec):
        if not replay.policy.speculative:
            _, first = np.unique(replay.batches.keys, return_index=True)
            assert not cell.hit[first].any()


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_bytes_read_are_those_of_the_misses(spec):
    for replay, cell in each_cell(spec):
        missed = (replay.lookups(cell) - cell.hits) * replay.sizes
        assert (cell.resident_bytes >= 0).all()
        assert (replay.evicted(cell) >= 0).all()  # all that is resident was read
        if replay.policy.speculative:
            assert (cell.read_bytes >= missed).all()
            parts = ("demand", "speculative_useful", "speculative_wasted")
            assert cell.read_bytes.sum() == sum(cell.counters[f"{part}_bytes"] for part in parts)
        else:
            assert (replay.read(cell) == missed).all()


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_a_batch_stays_until_the_next_is_looked_up(spec):
    """Eviction never takes what the batch touched, so the next batch finds it."""
    for replay, cell in each_cell(spec):
        if replay.batches.bypass:
            continue
        assert (cell.resident_bytes >= replay.in_hand(cell)).all()
        starts = replay.batches.batch_start
        before = set()
        for start, stop in pairwise(starts):
            keys = replay.batches.keys[start:stop].tolist()
            if not replay.policy.lossy:  # it may have left the key out of the batch before
                hits = zip(keys, cell.hit[start:stop], strict=True)
                assert all(hit for key, hit in hits if key in before)
            before = set(keys)


# ---- the budget -------------------------------------------------------------------------------


def caches_of(spec):
    """Yield each batch of each cell, in the cache whose budget its policy keeps to."""
    for replay, cell in each_cell(spec):
        yield from (in_layers if replay.policy.in_shares else in_all)(replay, cell)


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_it_keeps_to_its_budget_or_to_the_batch_alone(spec):
    for resident, _, budget, _, in_hand in caches_of(spec):
        assert resident <= max(budget, in_hand)


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_it_evicts_no_more_than_must_go(spec):
    """Before the last eviction more than the budget was resident.

    How large the entry was that went last is not known, but it is one of the sizes, and no more
    than all that went.
    """
    for resident, evicted, budget, sizes, _ in caches_of(spec):
        if evicted:
            last = max((size for size in sizes if size <= evicted), default=0)
            assert resident + last > budget


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_with_room_for_all_every_key_misses_once(spec):
    for replay in replays(spec):
        cell, n_keys = replay.cells[-1], len(np.unique(replay.batches.keys))
        misses = int((replay.lookups(cell) - cell.hits).sum())
        if replay.policy.speculative or replay.policy.lossy:
            assert misses <= n_keys
        else:
            assert misses == n_keys
        assert not replay.evicted(cell).any()


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_no_demand_policy_within_its_budget_beats_the_bound(spec):
    for replay in replays(spec):
        if replay.policy.speculative or replay.policy.lossy:
            continue
        decode = replay.batches.phase == DECODE
        limits = Bound().simulate(replay.batches, np.array(replay.case.budgets))
        for cell, limit in zip(replay.cells, limits, strict=True):
            if (cell.resident_bytes <= np.maximum(cell.budget_bytes, replay.in_hand(cell))).all():
                read = replay.read(cell)
                assert cell.hits.sum() <= limit.hits
                assert cell.hits[decode].sum() <= limit.hits_decode
                assert read.sum() >= limit.read_bytes
                assert read[decode].sum() >= limit.read_bytes_decode


def test_the_bound_is_between_nothing_and_everything():
    for replay in replays("bound"):
        asked = len(replay.batches.keys)
        n_keys = len(np.unique(replay.batches.keys))
        hits = [limit.hits for limit in replay.cells]
        assert hits == sorted(hits)
        assert hits[-1] == asked - n_keys
        for limit in replay.cells:
            assert 0 <= limit.hits_decode <= limit.hits
            assert 0 <= limit.read_bytes_decode <= limit.read_bytes


# ---- what an answer may depend on -------------------------------------------------------------


def same(one, other, n_batches=None, n_lookups=None):
    """Say whether two answers are the same in the first batches, or in all and in their totals."""
    if isinstance(one, Limit):
        return one == other
    if n_batches is None and one.counters != other.counters:
        return False
    of_batches = ("hits", "resident_bytes", "lookups", "read_bytes", "prefetched")
    for name in (*of_batches, "hit"):
        n = n_lookups if name == "hit" else n_batches
        a, b = getattr(one, name), getattr(other, name)
        if (a is None) != (b is None) or (a is not None and not np.array_equal(a[:n], b[:n])):
            return False
    return True


def with_another_future(batches, b, rng):
    """`batches` whose experts have other names from batch `b` on, layer by layer."""
    n_expert = batches.n_expert
    renamed = np.concatenate(
        [layer * n_expert + rng.permutation(n_expert) for layer in range(len(batches.expert_bytes))]
    ).astype(np.int32)
    start = batches.batch_start[b]
    keys, guessed = batches.keys.copy(), batches.guesses.keys.copy()
    keys[start:] = renamed[keys[start:]]
    guessed[b:] = np.where(guessed[b:] < 0, -1, renamed[guessed[b:]])
    weights = batches.weights.copy()
    weights[start:] = weights[start:][::-1]
    weights[np.isnan(batches.weights) != np.isnan(weights)] = 0.5
    weights[np.isnan(batches.weights)] = np.nan
    guesses = Guesses(guessed, batches.guesses.weights)
    rows, first = batches.rows.copy(), batches.row_start[b]
    layers = np.repeat(batches.layer, np.diff(batches.row_start))[first:, None]
    rows[first:] = renamed[layers * n_expert + rows[first:]] % n_expert
    return replace(batches, keys=keys, weights=weights, guesses=guesses, rows=rows)


def without_future(batches, b):
    """The first `b` batches of `batches`."""
    weights = batches.weights[: batches.batch_start[b]]
    guesses = Guesses(batches.guesses.keys[:b], batches.guesses.weights[:b])
    return replace(batches.only(np.arange(b)), weights=weights, guesses=guesses)


@pytest.mark.parametrize("spec", slow_if_rare(s for s in CELLS if not POLICIES.find(s).offline))
def test_it_does_not_know_the_future(spec):
    rng = np.random.default_rng(0)
    for replay in replays(spec):
        batches, budgets = replay.batches, np.array(replay.case.budgets)
        b = int(rng.integers(1, len(batches) + 1))
        for other in (with_another_future(batches, b, rng), without_future(batches, b)):
            answers = replay.policy.simulate(other, budgets, per_lookup=True)
            for cell, answer in zip(replay.cells, answers, strict=True):
                assert same(cell, answer, b, batches.batch_start[b])


def then_asked_for(batches, b, key):
    """The first `b` batches of `batches`, and one of a prompt that asks for `key` alone."""
    past = without_future(batches, b)
    last = {
        "keys": key,
        "admit_rank": 0,
        "batch_start": past.batch_start[-1] + 1,
        "layer": key // past.n_expert,
        "turn": past.turn[-1],
        "pass_id": past.pass_id[-1] + 1,
        "step": past.step[-1] + 1,
        "phase": PREFILL,
        "weights": np.nan,
        "row_start": past.row_start[-1] + 1,
    }
    columns = {name: getattr(past, name) for name in last}
    longer = {name: np.append(c, c.dtype.type(last[name])) for name, c in columns.items()}
    one_more = ((0, 1), (0, 0))
    keys = np.pad(past.guesses.keys, one_more, constant_values=-1)
    guesses = Guesses(keys, np.pad(past.guesses.weights, one_more, constant_values=np.nan))
    row = np.full((1, past.rows.shape[1]), key % past.n_expert, past.rows.dtype)
    return replace(past, **longer, rows=np.concatenate([past.rows, row]), guesses=guesses)


@pytest.mark.parametrize("spec", slow_if_rare(s for s in CELLS if not POLICIES.find(s).offline))
def test_what_is_resident_does_not_depend_on_what_comes(spec):
    """Ask for each key after the same past: those that hit make up the resident bytes.

    A policy that looks ahead has each of them there when it is asked for.
    """
    rng = np.random.default_rng(0)
    for replay in replays(spec)[::3]:
        batches, budgets = replay.batches, np.array(replay.case.budgets)
        b = int(rng.integers(1, len(batches) + 1))
        found = np.zeros(len(budgets), np.int64)
        for key, size in enumerate(batches.key_bytes.tolist()):
            answers = replay.policy.simulate(then_asked_for(batches, b, key), budgets, True)
            found += [size * bool(answer.hit[-1]) for answer in answers]
        assert found.tolist() == [cell.resident_bytes[b - 1] for cell in replay.cells]


@pytest.mark.parametrize("spec", slow_if_rare(EVERY))
def test_an_answer_does_not_depend_on_the_other_budgets(spec):
    for replay in replays(spec):
        batches, budgets = replay.batches, replay.case.budgets
        for budget, cell in zip(budgets, replay.cells, strict=True):
            # A new policy has the same seed.
            new = load_policy(spec, PARAMS.get(spec))
            (alone,) = new.simulate(batches, np.array([budget]), per_lookup=True)
            assert same(cell, alone)
        reversed_twice = np.array([*reversed(budgets), *reversed(budgets)])
        cells = replay.policy.simulate(batches, reversed_twice, per_lookup=True)
        assert all(map(same, cells, [*reversed(replay.cells)] * 2))


@pytest.mark.parametrize("spec", slow_if_rare(EVERY))
def test_flags_of_lookups_are_given_if_asked_for(spec):
    for replay in replays(spec):
        plain = replay.policy.simulate(replay.batches, np.array(replay.case.budgets))
        for cell, without in zip(replay.cells, plain, strict=True):
            if isinstance(cell, Cell):
                assert cell.hit is not None
                assert without.hit is None
                cell = replace(cell, hit=None)
            assert same(cell, without)


@pytest.mark.parametrize("spec", slow_if_rare(EVERY))
def test_threads_change_nothing(spec):
    batches = build_batches(synthesize(4, 16, 2, 300, expert_bytes=[2, 3, 3, 5]))
    rng = np.random.default_rng(0)
    layer = (batches.layer + 1) % 4
    guessed = (layer[:, None] * 16 + rng.integers(0, 8, (len(batches), 1))) + [0, 8]
    guessed[batches.phase != DECODE] = -1
    batches = replace(
        batches,
        weights=rng.random(len(batches.keys)).astype(np.float32),
        guesses=Guesses(guessed.astype(np.int32), np.full(guessed.shape, 0.5, np.float32)),
        popularity=Popularity(rng.integers(0, 9, (1, batches.n_keys))),
    )
    policy = load_policy(spec, PARAMS.get(spec))
    budgets = [np.array([batches.bank_bytes * share // 16]) for share in range(16)]
    alone = [policy.simulate(batches, budget, per_lookup=True) for budget in budgets]
    with ThreadPoolExecutor(4) as pool:
        at_once = pool.map(lambda budget: policy.simulate(batches, budget, True), budgets)
        assert all(same(a, b) for (a,), (b,) in zip(alone, at_once, strict=True))


# ---- what it says of itself -------------------------------------------------------------------


@pytest.mark.parametrize("spec", EVERY)
def test_it_says_what_it_is(spec):
    cls = POLICIES.find(spec)
    assert issubclass(cls, Policy)
    assert cls.summary
    assert not cls.summary.endswith(".")
    params = cls.Params()
    assert load_policy(spec).params == params
    if cls.stochastic:
        assert params.seed == 0
    if cls.needs_predictor:
        assert isinstance(params.predictor, str)
        assert isinstance(params.horizon, int)


@pytest.mark.parametrize("spec", slow_if_rare(CELLS))
def test_its_counters_are_those_it_declares(spec):
    kinds = {Unit.FRACTION: float, Unit.COUNT: int, Unit.BYTES: int}
    for replay, cell in each_cell(spec):
        declared = replay.policy.counters
        assert list(cell.counters) == [figure.name for figure in declared]
        for figure in declared:
            value = cell.counters[figure.name]
            assert figure.nullable if value is None else type(value) is kinds[figure.unit]


@pytest.mark.parametrize("spec", slow_if_rare(EVERY))
def test_it_answers_with_cells_or_with_limits(spec):
    for replay in replays(spec):
        kind = Limit if replay.policy.gives_limits else Cell
        assert all(type(cell) is kind for cell in replay.cells)
        assert [cell.budget_bytes for cell in replay.cells] == replay.case.budgets

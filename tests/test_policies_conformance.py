"""What every registered policy, and one of the user's own, must do whatever its rule is."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cache_runs import EXAMPLES, budgets_of, runs
from hypothesis import given, settings

from tracekit.policies import POLICIES, Bound, Guesses, Limit, Policy, load_policy
from tracekit.replaying import build_batches
from tracekit.trace import UsageError
from tracekit.trace.schema import DECODE

sys.path.append(str(Path(__file__).parent / "examples"))
EVERY = [*(cls.name for cls in POLICIES), "own_ring:OwnRing"]
CELLS = [spec for spec in EVERY if spec != "bound"]


def inputs(batches, seed=0):
    """`batches` with made-up weights and guesses, for the policies that act on them."""
    rng = np.random.default_rng(seed)
    decode = np.repeat(batches.phase == DECODE, batches.lookups)
    weights = np.where(decode, rng.random(len(batches.keys)), np.nan).astype(np.float32)
    keys = np.full((len(batches), batches.top_k), -1, np.int32)
    guess_weights = np.full(keys.shape, np.nan, np.float32)
    for b in np.flatnonzero(batches.phase == DECODE):
        n_layers = len(batches.expert_bytes)
        layer = (batches.layer[b] + 1) % n_layers
        keys[b] = layer * batches.n_expert + rng.permutation(batches.n_expert)[: batches.top_k]
        guess_weights[b] = -np.sort(-rng.dirichlet(np.ones(batches.top_k)))
    return replace(batches, weights=weights, guesses=Guesses(keys, guess_weights))


PARAMS = {"fewer-experts": {"keep": 1}}  # its default has nothing to leave out of a top-1 routing


def simulate(spec, run):
    batches = inputs(build_batches(run.trace()))
    policy = load_policy(spec, PARAMS.get(spec))
    budgets = budgets_of(run)
    return policy, batches, policy.simulate(batches, np.array(budgets), per_lookup=True), budgets


def lookups_of(batches, cell):
    return batches.lookups if cell.lookups is None else cell.lookups


@pytest.mark.parametrize("spec", CELLS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_cells_are_sound(spec, run):
    policy, batches, cells, budgets = simulate(spec, run)
    asked = batches.lookups
    size = batches.expert_bytes[batches.layer]
    assert [cell.budget_bytes for cell in cells] == budgets
    for cell in cells:
        lookups = lookups_of(batches, cell)
        assert (cell.hits >= 0).all()
        assert (cell.hits <= lookups).all()
        assert (lookups == asked).all() or policy.lossy
        if cell.hit is not None:
            assert cell.hit.sum() == cell.hits.sum()
        assert (cell.resident_bytes >= 0).all()
        # What is resident was read: bytes never grow by more than what a load reads.
        misses = lookups - cell.hits
        read = misses * size if cell.read_bytes is None else cell.read_bytes
        assert (np.diff(cell.resident_bytes, prepend=0) <= read).all()
        if policy.speculative:
            assert read.sum() == sum(
                cell.counters[f"{part}_bytes"]
                for part in ("demand", "speculative_useful", "speculative_wasted")
            )
        else:
            assert (read == misses * size).all()


@pytest.mark.parametrize("spec", [s for s in CELLS if not s.startswith("layer-")])
@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_a_global_policy_keeps_to_its_budget_or_to_the_batch_alone(spec, run):
    _, batches, cells, budgets = simulate(spec, run)
    batch_bytes = batches.lookups * batches.expert_bytes[batches.layer]
    for budget, cell in zip(budgets, cells, strict=True):
        assert (cell.resident_bytes <= np.maximum(budget, batch_bytes)).all()


@pytest.mark.parametrize("spec", [s for s in CELLS if s.startswith("layer-")])
@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_a_layer_keeps_to_its_share_or_to_its_routing(spec, run):
    _, batches, cells, budgets = simulate(spec, run)
    n_layers = len(batches.expert_bytes)
    for budget, cell in zip(budgets, cells, strict=True):
        held = np.zeros(n_layers, np.int64)
        before = 0
        for b, resident in enumerate(cell.resident_bytes.tolist()):
            layer = batches.layer[b]
            held[layer] += resident - before
            before = resident
            batch_bytes = batches.lookups[b] * batches.expert_bytes[layer]
            assert held[layer] <= max(budget // n_layers, batch_bytes)


@pytest.mark.parametrize("spec", [s for s in CELLS if not load_policy(s).lossy])
@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_with_all_resident_every_key_misses_once(spec, run):
    policy, batches, cells, _ = simulate(spec, run)
    misses = (lookups_of(batches, cells[-1]) - cells[-1].hits).sum()
    if policy.speculative:
        assert misses <= len(np.unique(batches.keys))
    else:
        assert misses == len(np.unique(batches.keys))
    assert cells[-1].resident_bytes.max() <= batches.bank_bytes


@pytest.mark.parametrize("spec", CELLS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_no_demand_policy_within_its_budget_beats_the_bound(spec, run):
    policy, batches, cells, budgets = simulate(spec, run)
    if policy.speculative or policy.lossy:
        return
    size = batches.expert_bytes[batches.layer]
    decode = batches.phase == DECODE
    for cell, limit in zip(cells, Bound().simulate(batches, np.array(budgets)), strict=True):
        if (cell.resident_bytes <= np.maximum(cell.budget_bytes, batches.lookups * size)).all():
            read = (batches.lookups - cell.hits) * size
            assert cell.hits.sum() <= limit.hits
            assert cell.hits[decode].sum() <= limit.hits_decode
            assert read.sum() >= limit.read_bytes
            assert read[decode].sum() >= limit.read_bytes_decode


@pytest.mark.parametrize("spec", EVERY)
@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(run=runs())
def test_the_same_seed_gives_the_same_answer_whatever_the_other_budgets(spec, run):
    _, batches, cells, budgets = simulate(spec, run)
    for cell, budget in zip(cells, budgets, strict=True):
        (again,) = load_policy(spec, PARAMS.get(spec)).simulate(batches, np.array([budget]))
        if isinstance(cell, Limit):
            assert again == cell
        else:
            np.testing.assert_array_equal(again.hits, cell.hits)
            np.testing.assert_array_equal(again.resident_bytes, cell.resident_bytes)


@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_the_bound_is_between_nothing_and_everything(run):
    _, batches, limits, _ = simulate("bound", run)
    n_keys = len(np.unique(batches.keys))
    previous = 0
    for limit in limits:
        assert previous <= limit.hits <= len(batches.keys) - n_keys
        assert 0 <= limit.hits_decode <= limit.hits
        assert 0 <= limit.read_bytes_decode <= limit.read_bytes
        previous = limit.hits
    assert limits[-1].hits == len(batches.keys) - n_keys


@pytest.mark.parametrize("cls", list(POLICIES), ids=lambda cls: cls.name)
def test_a_policy_says_what_it_is(cls):
    assert issubclass(cls, Policy)
    assert cls.summary
    assert not cls.summary.endswith(".")
    assert load_policy(cls.name).params == cls.Params()
    if cls.stochastic:
        assert cls.Params().seed == 0


def test_an_unknown_name_is_refused_with_the_nearest_match():
    with pytest.raises(UsageError, match=r"^No policy is called 'lruu'; did you mean 'lru'\?$"):
        load_policy("lruu")


@pytest.mark.parametrize(
    ("spec", "params", "sentence"),
    [
        ("lru", {"size": "1"}, "lru has no parameter 'size'; it has none."),
        ("random", {"sed": "1"}, "random has no parameter 'sed'; it has: seed."),
        ("random", {"seed": "x"}, "random.seed takes a whole number, not 'x'."),
        ("random", {"seed": 1.5}, "random.seed takes a whole number, not 1.5."),
        ("random", {"seed": "-1"}, "random: seed must be 0 or more."),
        ("random", {"seed": True}, "random.seed takes a whole number, not True."),
        ("drop-cold", {"frac": "inf"}, "drop-cold.frac takes a number, not 'inf'."),
        ("drop-cold", {"frac": "nan"}, "drop-cold.frac takes a number, not 'nan'."),
    ],
)
def test_a_wrong_parameter_is_refused(spec, params, sentence):
    with pytest.raises(UsageError) as error:
        load_policy(spec, params)
    assert str(error.value) == sentence


def test_a_parameter_may_be_one_of_numpy():
    assert load_policy("random", {"seed": np.int64(7)}).params.seed == 7
    assert load_policy("drop-cold", {"frac": np.float32(0.5)}).params.frac == 0.5
    assert type(load_policy("drop-cold", {"frac": np.int8(1)}).params.frac) is float


def test_a_parameter_is_read_from_text():
    assert load_policy("random", {"seed": "7"}).params.seed == 7

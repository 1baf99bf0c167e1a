"""Online predictors against plain Python, on runs with prompts, drafts and a cancelled prompt."""

from functools import partial
from typing import ClassVar

import numpy as np
import online_reference as reference
import pytest
from families import slow_unless
from hypothesis import given, settings
from hypothesis import strategies as st
from online_traces import wild_trace

from tracekit.predictors import PREDICTORS, PlainOnlinePredictor
from tracekit.routing.routers import Routers
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring import predict
from tracekit.scoring.ranking import rank_layer, unseen_parts
from tracekit.scoring.training import Entry, Training
from tracekit.trace import UsageError, synthesize

SHAPES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "n_layers": st.integers(2, 9),
        "n_expert": st.integers(4, 12),
        "top_k": st.integers(1, 3),
        "n_turns": st.integers(1, 3),
        "drafts": st.integers(1, 4),
    }
)


def answers(trace, name, horizon, params=None, train=None, block_tokens=512):
    """The scores of each decoded token at each layer, or None, as the reference gives them."""
    cls = PREDICTORS.find(name)
    entry = Entry(cls(Routers(trace), horizon, 0, cls.Params(**(params or {}))), horizon)
    training = Training(trace, DecodedTurns.of(trace), train)
    training.teach([entry], block_tokens=block_tokens)
    found = []
    for block, (part,) in unseen_parts(trace, [entry], training, block_tokens):
        rows = [[None] * Routers(trace).n_layers for _ in range(len(block))]
        skipped = len(block) - len(part or ())
        for layer in range(Routers(trace).n_layers):
            ranking = None if part is None else rank_layer(entry.predictor, part, layer)
            if ranking is not None:
                for row in np.flatnonzero(ranking.tokens).tolist():
                    rows[skipped + row][layer] = ranking.scores[row]
        found += rows
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    n_scored = 0
    for token, others in zip(found, expected, strict=True):
        for scores, other in zip(token, others, strict=True):
            assert (scores is None) == (other is None)
            if scores is not None:
                np.testing.assert_allclose(scores, other, rtol=2e-5, atol=2e-6)
                n_scored += 1
    assert n_scored


@given(
    shape=SHAPES,
    horizon=st.sampled_from([1, 2, "token"]),
    history=st.sampled_from([1, 2, 7, 2000]),
    layers=st.sampled_from([1, 3, 6]),
    block_tokens=st.sampled_from([1, 5, 512]),
)
@settings(max_examples=12, deadline=None)
def test_recall_is_the_plain_rule(shape, horizon, history, layers, block_tokens):
    trace = wild_trace(**shape)
    horizon = min(horizon, shape["n_layers"] - 1) if horizon != "token" else horizon
    given = {"history": history, "layers": layers, "sharpness": 5.0, "habit": 0.25}
    guess = partial(reference.recall, horizon=horizon, **given)
    found = answers(trace, "recall", horizon, given, block_tokens=block_tokens)
    assert_same(found, reference.asked(reference.run_of(trace), guess))


@given(shape=SHAPES, rate=st.sampled_from([0.0, 0.07, 0.6]))
@settings(max_examples=10, deadline=None)
def test_layer_table_is_the_plain_rule(shape, rate):
    trace = wild_trace(**shape)
    guess = partial(reference.layer_table, horizon=1, rate=rate)
    found = answers(trace, "layer-table", 1, {"rate": rate}, block_tokens=7)
    assert_same(found, reference.asked(reference.run_of(trace), guess))


@pytest.mark.parametrize(
    ("seed", "horizon"), slow_unless([(3, 1), (3, 2), (4, 1), (4, 2)], (4, 1), (3, 2))
)
def test_recall_gate_is_the_plain_rule(seed, horizon):
    """Its weight is learned on the other turns, without the votes of the turn that is held out."""
    trace = wild_trace(seed, gates=True)
    run = reference.run_of(trace)
    weights = {turn: reference.weight_for(run, turn, horizon) for turn in range(3)}

    def guess(run, past, token, layer):
        return reference.recall_gate(run, past, token, layer, horizon, weights[token["turn"]])

    assert_same(answers(trace, "recall-gate", horizon), reference.asked(run, guess))


def test_recall_gate_takes_a_weight_that_is_given():
    trace = wild_trace(1, gates=True)
    guess = partial(reference.recall_gate, horizon=1, weight=3.5)
    found = answers(trace, "recall-gate", 1, {"weight": 3.5})
    assert_same(found, reference.asked(reference.run_of(trace), guess))


class Witness(PlainOnlinePredictor):
    """It writes down what it is told, and in which order."""

    name = "witness"
    summary = "it writes down what it is told"
    told: ClassVar[list] = []

    def start(self):
        self.told.clear()

    def guess(self, token, layer):
        if layer == 0:
            self.told.append(("asked", int(token.step[0])))
        return np.zeros(self.routers.n_expert)

    def learn(self, experts):
        self.told.append(("learned", [[e for e in row if e >= 0] for row in experts.tolist()]))


def test_a_plain_predictor_sees_each_token_once_and_after_its_pass():
    trace = wild_trace(8)
    entry = Entry(Witness(Routers(trace)), None)
    training = Training(trace, DecodedTurns.of(trace))
    assert [*unseen_parts(trace, [entry], training, 4)]
    run = reference.run_of(trace)
    expected = []
    for number in sorted({token["pass"] for token in run.tokens}):
        together = [token for token in run.tokens if token["pass"] == number]
        expected += [("asked", token["step"]) for token in together if token["decoded"]]
        expected += [
            ("learned", [token["experts"].get(layer, []) for layer in range(run.n_layers)])
            for token in together
            if token["stayed"]
        ]
    assert Witness.told == expected
    unlearned = [token for token in run.tokens if not token["stayed"]]
    assert {token["decoded"] for token in unlearned} == {True, False}  # drafts and a prompt
    assert any([] in experts for what, experts in expected if what == "learned")


@pytest.mark.parametrize("name", ["recall", "layer-table"])
def test_another_trace_is_the_history_to_begin_with(name):
    trace, train = wild_trace(5), wild_trace(6)
    before = [token for token in reference.run_of(train).tokens if token["stayed"]]
    guess = partial(getattr(reference, name.replace("-", "_")), horizon=1)
    expected = reference.asked(reference.run_of(trace), guess, before)
    assert_same(answers(trace, name, 1, train=train), expected)


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (np.zeros(3), r"an array of shape \(3,\) of float64"),
        (np.zeros((1, 8)), r"an array of shape \(1, 8\) of float64"),
        (np.zeros(8, complex), r"an array of shape \(8,\) of complex128"),
        (None, "None"),
        ("text", "a str"),
        ([[1], [1, 2]], "a list"),
    ],
)
def test_a_guess_that_is_no_score_of_each_expert_is_refused(guess, words):
    class Odd(Witness):
        name = "odd"

        def guess(self, token, layer):
            return guess

    sentence = rf"guess\(\) of the predictor 'odd' must return 8 numbers, .* not {words}\.$"
    with pytest.raises(UsageError, match=sentence):
        predict(synthesize(2, 8, 2, 20), [Odd])

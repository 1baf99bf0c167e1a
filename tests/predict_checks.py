"""What every predictor must keep to, one check each; `CHECKS` lists them.

A check takes a `Subject` and raises an AssertionError, or an error of tracekit's own, if the
predictor does not keep to it. Predictors are asked where the scorer and the replay ask them, on
small runs whose routings are then changed.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from predict_reference import named_by_score
from predict_traces import Toy, toy, trace_of

from tracekit.predictors import TOKEN, LearnedPredictor, OnlinePredictor, Predictor
from tracekit.routing.routers import Routers
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring import predict
from tracekit.scoring.ranking import rank_layer, unseen_parts
from tracekit.scoring.ranks import name_best
from tracekit.scoring.training import Entry, Training
from tracekit.scoring.usable import NEEDED_COLUMNS
from tracekit.trace.errors import MissingDataError

TURNS = (150, 140, 160)  # a fit takes 256 rows, which two of them have
N_LAYERS, N_EXPERT, TOP_K = 4, 8, 2
ROUTING_ARRAYS = ("experts", "weights", "logits", "gate_input")
TOKEN_ARRAYS = ("token", "embedding")


@dataclass(frozen=True)
class Subject:
    """A predictor with parameters, and the horizons at which it is checked."""

    cls: type[Predictor]
    params: tuple[tuple[str, object], ...] = ()
    horizons: tuple[int | str, ...] = (1, 2)

    def __str__(self):
        when = ["before the token"] if TOKEN in self.horizons else []
        settings = (f"{name}={value}" for name, value in self.params)
        return " ".join([self.cls.name, *settings, *when])

    @property
    def is_taught(self):
        """It learns on other turns."""
        return issubclass(self.cls, LearnedPredictor) and self.made(trace()).readings > 0

    @property
    def is_online(self):
        return issubclass(self.cls, OnlinePredictor)

    @property
    def learns(self):
        return self.is_taught or self.is_online

    @property
    def is_held_out(self):
        return self.is_taught and not self.cls.in_sample

    def made(self, of_trace, horizon=None, seed=0):
        horizon = horizon or self.horizons[0]
        return self.cls(Routers(of_trace), horizon, seed, self.cls.Params(**dict(self.params)))


# ---- runs -------------------------------------------------------------------------------------


@cache
def run(seed=0, turns=TURNS) -> Toy:
    """A run that every predictor can say something of.

    Each layer moves the residual in a way that can be learned, ids mean nearly the same in
    neighbouring layers, and a token much resembles the token before.
    """
    made = toy(turns=turns, n_expert=N_EXPERT, top_k=TOP_K, n_embd=12, vocabulary=9, seed=seed)
    rng = np.random.default_rng(seed + 100)
    made.matrix[:] = made.matrix[0] + 0.05 * rng.standard_normal(made.matrix.shape)
    made.norm_weight[:] = rng.uniform(0.9, 1.1, made.norm_weight.shape)
    for layer in range(1, N_LAYERS):
        push = np.eye(12) + rng.standard_normal((12, 12)) / 6
        made.gate_input[:, layer] = made.gate_input[:, layer - 1] @ push
        made.gate_input[:, layer] += 0.1 * rng.standard_normal(made.gate_input[:, layer].shape)
    return routed(made)


def routed(made: Toy) -> Toy:
    """Let the routers of `made` select by its gate inputs."""
    made.logits[:] = np.einsum("tld,led->tle", made.gate_input, made.matrix)
    made.experts[:] = np.argsort(-made.logits, axis=2, kind="stable")[:, :, :TOP_K]
    chosen = np.exp(np.take_along_axis(made.logits, made.experts.astype(int), axis=2))
    made.weights[:] = chosen / chosen.sum(axis=2, keepdims=True)
    return made


@cache
def trace(seed=0, turns=TURNS, drop=()):
    return trace_of(run(seed, turns), drop=drop)


@cache
def changed_from(token, layer, turns=TURNS):
    """The run with other routings from that layer of `token` on, to the end of the token's turn.

    They are such that whoever learns from them learns something else.
    """
    original = run(turns=turns)
    later = (original.turn == original.turn[token]) & (np.arange(len(original.turn)) >= token)
    at_layers = np.broadcast_to(later[:, None], (len(later), N_LAYERS)).copy()
    at_layers[token, :layer] = False
    later[token] = False
    return trace_of(repeating(changed(original, at_layers, later), later))


@cache
def changed_at(token, layer):
    """The run with another routing of that token at that layer, and nothing else changed."""
    original = run()
    at_layers = np.zeros((len(original.turn), N_LAYERS), bool)
    at_layers[token, layer] = True
    return trace_of(changed(original, at_layers, at_layers.any(axis=1) & False))


@cache
def changed_turns(*turns):
    """The run with other routings in `turns`."""
    original = run()
    inside = np.isin(original.turn, turns)
    other = changed(original, np.repeat(inside[:, None], N_LAYERS, axis=1), inside & False)
    return trace_of(repeating(other, inside))


@cache
def altered(column):
    """The run with the values of one column shuffled, and nothing else changed."""
    name = {"router_matrix": "matrix"}.get(column, column)
    values = getattr(run(), name)
    shuffled = np.random.default_rng(5).permutation(values.ravel()).reshape(values.shape)
    return trace_of(dataclasses.replace(run(), **{name: shuffled}))


def repeating(made: Toy, tokens) -> Toy:
    """Let each layer of those tokens (bool [T]) select what the layer two before it selected."""
    for layer in range(2, N_LAYERS):
        made.experts[tokens, layer] = made.experts[tokens, layer - 2]
    return made


def changed(original: Toy, routings, tokens) -> Toy:
    """Return a copy with other values at `routings` (bool [T, L]) and `tokens` (bool [T])."""
    other = dataclasses.replace(
        original,
        **{n: getattr(original, n).copy() for n in (*ROUTING_ARRAYS, *TOKEN_ARRAYS)},
    )
    random = run(seed=9, turns=tuple(np.unique(original.turn, return_counts=True)[1].tolist()))
    same = (np.sort(random.experts) == np.sort(original.experts)).all(axis=2)
    for name in ROUTING_ARRAYS:
        getattr(other, name)[routings] = getattr(random, name)[routings]
    other.experts[routings & same] = (original.experts[routings & same] + 1) % N_EXPERT
    other.token[tokens] = (original.token[tokens] + 1) % 9
    other.embedding[tokens] = random.embedding[tokens]
    return other


# ---- what a predictor answers -----------------------------------------------------------------


@dataclass
class Answers:
    """Of every token at every layer: whether it is ranked [T, L], scores and order [T, L, E].

    `weights` are those of the experts named, one array for each block and layer.
    """

    ranked: np.ndarray
    scores: np.ndarray
    order: np.ndarray
    weights: list


def ask(
    subject, of_trace, horizon=None, seed=0, block_tokens=512, jobs=1, weights=False
) -> Answers:
    """Train the predictor and ask it about every routing, as the scorer does."""
    horizon = horizon or subject.horizons[0]
    entry = Entry(subject.made(of_trace, horizon, seed), horizon)
    training = Training(of_trace, DecodedTurns.of(of_trace))
    training.teach([entry], jobs, block_tokens)
    n_tokens = int(DecodedTurns.of(of_trace).tokens.sum())
    shape = (n_tokens, N_LAYERS, N_EXPERT)
    answers = Answers(np.zeros(shape[:2], bool), np.zeros(shape), np.zeros(shape), [])
    for _, (part,) in unseen_parts(of_trace, [entry], training, block_tokens):
        if part is None:
            continue

        def ask_layer(layer, part=part):
            return layer, rank_layer(entry.predictor, part, layer)

        with ThreadPoolExecutor(jobs) as pool:
            rankings = list(pool.map(ask_layer, range(N_LAYERS)))
        here = slice(part.start, part.start + len(part))
        for layer, ranking in rankings:
            if ranking is None:
                continue
            tokens, scores = ranking.tokens, ranking.scores
            assert scores.shape == (len(part), N_EXPERT)
            assert scores.dtype == np.float32
            answers.ranked[here, layer] = tokens
            answers.scores[here, layer][tokens] = scores[tokens]
            answers.order[here, layer][tokens] = ranking.order[tokens]
            if weights:
                named = np.maximum(name_best(ranking.order, TOP_K), 0)
                predicted = entry.predictor.weights(part, layer, scores, named)
                answers.weights.append(None if predicted is None else predicted[tokens])
    return answers


@cache
def answers(subject, horizon=None) -> Answers:
    """What `subject` answers on the unchanged run."""
    return ask(subject, trace(), horizon)


def first_tokens(turns=TURNS):
    return np.cumsum(turns) - np.array(turns)


def same(a: Answers, b: Answers, tokens, layers):
    """Say whether two answers agree about a part of the run."""
    return np.array_equal(a.ranked[tokens, layers], b.ranked[tokens, layers]) and np.array_equal(
        a.scores[tokens, layers], b.scores[tokens, layers]
    )


# ---- checks -----------------------------------------------------------------------------------


def scores_are_numbers(subject):
    """Scores of what is ranked are finite or −inf, and something can be named."""
    for horizon in subject.horizons:
        found = answers(subject, horizon)
        scores = found.scores[found.ranked]
        assert len(scores)
        assert (np.isfinite(scores) | (scores == -np.inf)).all()
        assert (scores > -np.inf).any(axis=1).all()


def blocks_and_threads_change_nothing(subject):
    """Scores are the same for any block size and number of threads, but for rounding."""
    blocks_change_nothing(subject, ((7, 3), (64, 2)))


def blocks_of_one_token_change_nothing(subject):
    """Scores are the same if a predictor sees every token alone, but for rounding."""
    blocks_change_nothing(subject, ((1, 1),))


def blocks_change_nothing(subject, ways):
    whole = answers(subject)
    for block_tokens, jobs in ways:
        parts = ask(subject, trace(), block_tokens=block_tokens, jobs=jobs)
        np.testing.assert_array_equal(parts.ranked, whole.ranked)
        np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-3, atol=1e-3)
        if subject.is_online and not subject.is_taught:  # no matrix product that might round
            np.testing.assert_array_equal(parts.scores, whole.scores)


def looks_only_back(subject):
    """Scores do not depend on the routing that they predict, nor on any later one of the turn."""
    start = int(first_tokens()[-1])
    for horizon in subject.horizons:
        ahead = 1
        if subject.cls.has_horizon:
            ahead = N_LAYERS if horizon == TOKEN else horizon
        before = answers(subject, horizon)
        for token, layer in ((start, 0), (start + 1, 1), (start + 70, 2), (sum(TURNS) - 1, 3)):
            after = ask(subject, changed_from(token, layer), horizon)
            assert same(before, after, slice(start, token), slice(None)), "later tokens"
            known = slice(0, layer + ahead)
            assert same(before, after, token, known), f"layer {layer} of the token itself"
        if not subject.is_taught:
            # No turn is held out of what is learned online, so nothing later may matter at all.
            after = ask(subject, changed_from(40, 2), horizon)
            assert same(before, after, slice(0, 40), slice(None)), "a later turn"


def held_out_turns_are_not_learned(subject):
    """Scores of a turn are learned from other turns; of a single turn, from its first half."""
    if not subject.is_held_out:
        return
    known = slice(0, N_LAYERS)
    for token in first_tokens().tolist():
        after = ask(subject, changed_from(token, N_LAYERS - 1))
        assert same(answers(subject), after, token, known), f"the turn of token {token}"
    alone, half = (600,), 300
    whole = ask(subject, trace(turns=alone))
    assert not whole.ranked[:half].any()
    assert whole.ranked[half:].any()
    after = ask(subject, changed_from(half, N_LAYERS - 1, turns=alone))
    assert same(whole, after, half, known), "the second half of a single turn"


def only_learned_predictors_depend_on_other_turns(subject):
    """Other routings in the other turns change the scores of a learned predictor, of no other."""
    last = slice(int(first_tokens()[-1]), None)
    after = ask(subject, changed_turns(0, 1))
    assert same(answers(subject), after, last, slice(None)) != subject.learns


def same_seed_same_answer(subject):
    """Asked twice, a predictor gives the same scores."""
    assert same(answers(subject), ask(subject, trace()), slice(None), slice(None))


def horizon_is_kept_to(subject):
    """Scores come from the layer `horizon` before, and not from a later one.

    Without a horizon they are the same at any.
    """
    if not subject.cls.has_horizon:
        assert same(answers(subject, 1), answers(subject, 2), slice(None), slice(None))
        return
    last = sum(TURNS) - 1
    for horizon in subject.horizons:
        before = answers(subject, horizon)
        if horizon == TOKEN:
            for layer in range(N_LAYERS):
                after = ask(subject, changed_at(last, layer), horizon)
                assert same(before, after, last, slice(None)), "the token itself"
                after = ask(subject, changed_at(last - 1, layer), horizon)
                assert not same(before, after, last, slice(None)), "the token before is not read"
            continue
        assert not before.ranked[:, :horizon].any()
        assert before.ranked[:, horizon:].any(axis=0).all()
        for layer in range(horizon, N_LAYERS):
            after = ask(subject, changed_at(last, layer - horizon), horizon)
            assert same(before, after, last, slice(0, layer)), "a layer that is too close"
            assert not same(before, after, last, layer), f"layer {layer - horizon} is not read"


def what_is_ranked_is_known(subject):
    """Scores say something of the run: on a run of another model they are others.

    A predictor that ranks a turn's first token without knowing anything of it gives the same scores
    there on every run.
    """
    here = answers(subject)
    there = ask(subject, trace(seed=1), seed=1)
    first = np.zeros(sum(TURNS), bool)
    first[first_tokens()] = True
    for layer in range(N_LAYERS):
        for tokens in (first, ~first):
            ranked = tokens & here.ranked[:, layer] & there.ranked[:, layer]
            a, b = here.scores[ranked, layer], there.scores[ranked, layer]
            assert not len(a) or (a != b).any(), f"layer {layer}"


def weights_sum_to_one(subject):
    """Predicted weights are shares of 1 among the experts named."""
    for weights in ask(subject, trace(), weights=True).weights:
        if weights is not None:
            assert weights.shape[1] == TOP_K
            assert (weights >= 0).all()
            np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)


def needs_are_declared(subject):
    """The columns in `needs` are enough, each is read, and a trace without it is refused."""
    needs = subject.cls.needs
    assert set(needs) <= set(NEEDED_COLUMNS)
    # Every trace has a column of weights.
    reduced = trace(drop=tuple(sorted(set(NEEDED_COLUMNS) - {"weights", *needs})))
    assert same(answers(subject), ask(subject, reduced), slice(None), slice(None))
    params = {f"{subject.cls.name}.{name}": value for name, value in subject.params}
    for column in needs:
        assert not same(answers(subject), ask(subject, altered(column)), slice(None), slice(None))
        if column == "weights":
            continue  # every trace has them
        with pytest.raises(MissingDataError) as error:
            predict(trace(drop=(column,)), [subject.cls], params=params)
        assert f"{subject.cls.name} needs the column {column!r}" in str(error.value)


def the_scorer_counts_every_routing(subject):
    """Each routing is scored or unscored, and hits are what the scores name, ties to the lower id."""
    params = {f"{subject.cls.name}.{name}": value for name, value in subject.params}
    for horizon in subject.horizons:
        (row,) = predict(trace(), [subject.cls], horizon, params=params, jobs=2).rows
        found = answers(subject, horizon)
        assert row.routings + row.unscored == sum(TURNS) * N_LAYERS
        for layer, of_layer in enumerate(row.layers):
            tokens = np.flatnonzero(found.ranked[:, layer]).tolist()
            assert of_layer.routings == len(tokens)
            assert of_layer.routings + of_layer.unscored == sum(TURNS)
            named = {t: named_by_score(found.order[t, layer].tolist(), TOP_K) for t in tokens}
            selected = {t: set(run().experts[t, layer].tolist()) for t in tokens}
            assert of_layer.hits == sum(len(selected[t] & set(named[t])) for t in tokens)
            assert of_layer.exact == sum(selected[t] == set(named[t]) for t in tokens)


CHECKS = (
    scores_are_numbers,
    blocks_and_threads_change_nothing,
    looks_only_back,
    held_out_turns_are_not_learned,
    only_learned_predictors_depend_on_other_turns,
    same_seed_same_answer,
    horizon_is_kept_to,
    what_is_ranked_is_known,
    weights_sum_to_one,
    needs_are_declared,
    the_scorer_counts_every_routing,
)

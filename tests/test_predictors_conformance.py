"""Every registered predictor keeps to the rules of `predict_checks`; wrong ones are caught."""

import importlib
import inspect
import pkgutil
import sys
from itertools import product
from pathlib import Path

import numpy as np
import predict_checks as checks
import pytest
from families import slow_where
from predict_checks import CHECKS, Subject

import tracekit.predictors
from tracekit.policies import Retention
from tracekit.predictors import (
    PREDICTORS,
    TOKEN,
    LayerTable,
    LearnedPredictor,
    PassByPassPredictor,
    Predictor,
    PrevToken,
    Recall,
    RecallGate,
    StaleGate,
    StaticHot,
    TokenTable,
)
from tracekit.predictors.learning.repeated import scores_in_order
from tracekit.replaying.batches import build_batches
from tracekit.replaying.guesses import guesses
from tracekit.routing.passed import passed_of
from tracekit.scoring.ranks import name_best
from tracekit.trace.errors import TracekitError

# The online predictor that the page about one's own shows.
sys.path.append(str(Path(__file__).parent / "examples"))
from again import Again

SUBJECTS = [
    *map(Subject, PREDICTORS),
    Subject(PREDICTORS.find("layer-lag"), (("lag", 2),), horizons=(2,)),
    Subject(PREDICTORS.find("oracle"), (("accuracy", 0.5),)),
    Subject(Recall, (("history", 9),)),
    Subject(Recall, horizons=(TOKEN,)),
    Subject(Again),
]


# Some of these learn token by token in Python, so each check of them takes a second; the others vary a
# predictor that has all checks. The fast suite keeps the checks that tell most of them; the slow suite
# and every predictor that is new have all.
FEW_CHECKS = {
    "again": ("weights_sum_to_one",),
    "layer-table": ("what_is_ranked_is_known",),
    "recall": ("looks_only_back", "blocks_and_threads_change_nothing"),
    "recall-gate": ("held_out_turns_are_not_learned", "needs_are_declared"),
    "combined": ("held_out_turns_are_not_learned", "the_scorer_counts_every_routing"),
    "embedding-gate": ("looks_only_back", "needs_are_declared"),
    "layer-lag": ("looks_only_back", "horizon_is_kept_to"),
    "stale-gate-renorm": ("weights_sum_to_one",),
    "static-hot-insample": ("what_is_ranked_is_known",),
    "stale-gate-fit": ("held_out_turns_are_not_learned", "horizon_is_kept_to"),
}


def is_slow(subject, check):
    """Say whether only the slow suite asks this: other parameters, and more than a few checks."""
    if subject.params or TOKEN in subject.horizons:
        return True
    if check is checks.blocks_of_one_token_change_nothing:
        return True
    return check.__name__ not in FEW_CHECKS.get(subject.cls.name, (check.__name__,))


def test_the_predictors_of_few_checks_are_there():
    names = {subject.cls.name for subject in SUBJECTS}
    known = {check.__name__ for check in CHECKS}
    assert set(FEW_CHECKS) <= names
    assert all(set(few) <= known for few in FEW_CHECKS.values())


@pytest.mark.parametrize(
    ("subject", "check"),
    slow_where(
        product(SUBJECTS, [*CHECKS, checks.blocks_of_one_token_change_nothing]),
        lambda both: is_slow(*both),
    ),
    ids=lambda one: str(one) if isinstance(one, Subject) else one.__name__,
)
def test_predictor(subject, check):
    if check is checks.looks_only_back and subject.cls.knows_answer:
        with pytest.raises(AssertionError):
            check(subject)  # otherwise the attribute would be a needless excuse
        return
    check(subject)


def test_every_file_of_predictors_is_registered():
    modules = [
        importlib.import_module(f"tracekit.predictors.{module.name}")
        for module in pkgutil.iter_modules(tracekit.predictors.__path__)
        if module.name not in ("base", "online") and not module.ispkg
    ]
    written = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Predictor) and cls.__module__ == module.__name__
    }
    assert written == set(PREDICTORS)
    assert len(modules) == len(written)


@pytest.mark.parametrize("cls", list(PREDICTORS), ids=lambda cls: cls.name)
def test_attributes_agree(cls):
    assert cls.summary
    assert cls.__doc__
    assert cls.knows_answer or not (cls.is_control or getattr(cls, "in_sample", False))
    assert cls.is_rival() == (not cls.knows_answer and not cls.is_floor)


@pytest.mark.parametrize("subject", SUBJECTS[: len(list(PREDICTORS))], ids=str)
def test_a_policy_acts_on_what_was_scored(subject):
    if not subject.cls.in_time:
        return
    trace = checks.trace()
    batches = build_batches(trace)
    keys = guesses(trace, batches, Retention.Params(subject.cls.name, 1)).keys
    found = checks.answers(subject, 1)
    decode = np.flatnonzero(batches.phase == 1).reshape(-1, checks.N_LAYERS)
    has_previous = np.ones(len(decode), bool)
    has_previous[checks.first_tokens()] = False
    for layer in range(checks.N_LAYERS):
        named = name_best(found.order[:, layer].astype(np.float32), checks.TOP_K)
        expected = np.where(named < 0, -1, layer * checks.N_EXPERT + named)
        # Layer 0 is guessed after the last layer of the token before.
        ranked = found.ranked[:, layer] & (has_previous if layer == 0 else True)
        after = np.roll(decode[:, -1], 1) if layer == 0 else decode[:, layer - 1]
        np.testing.assert_array_equal(keys[after[ranked]], expected[ranked])
        none = after[~ranked & has_previous]
        assert (keys[none] == -1).all()


# ---- wrong predictors -------------------------------------------------------------------------


class ReadsThisToken(PrevToken):
    """The previous token's selection, but of the token itself."""

    def scores(self, block, layer):
        return scores_in_order(block.experts[:, layer], self.routers.n_expert)


class ReadsTheNextToken(PrevToken):
    """The selection of the token after, where the block has it."""

    def scores(self, block, layer):
        return scores_in_order(np.roll(block.experts[:, layer], -1, axis=0), self.routers.n_expert)


class HotOfAllTurns(StaticHot):
    """static-hot without holding anything out."""

    def hold_out(self, folds):
        super().hold_out(frozenset())


class HotOfNothing(StaticHot):
    """static-hot that forgets what it has learned."""

    def scores(self, block, layer):
        return np.tile(np.arange(self.routers.n_expert, dtype=np.float32), (len(block), 1))


class TableOfAllTurns(TokenTable):
    """token-table without holding anything out."""

    def hold_out(self, folds):
        super().hold_out(frozenset())


class TooFresh(StaleGate):
    """stale-gate from one layer too near."""

    def scores(self, block, layer):
        return self.routers.logits(layer, block.gate_input[:, layer - self.horizon + 1])


class TooStale(StaleGate):
    """stale-gate from one layer too far."""

    def scores(self, block, layer):
        return self.routers.logits(layer, block.gate_input[:, max(layer - self.horizon - 1, 0)])


class ReachesTooFar(StaleGate):
    """stale-gate that says something of layer 0, too."""

    def reaches(self, layer):
        return True


class MeanOfBlock(PrevToken):
    """How often the tokens so far selected each expert, but anew in each block."""

    def scores(self, block, layer):
        chosen = np.zeros((len(block), self.routers.n_expert), np.float32)
        previous = block.previous("experts", layer).astype(int)
        np.put_along_axis(chosen, previous, 1, axis=1)
        return np.cumsum(chosen, axis=0) / np.arange(1, len(block) + 1, dtype=np.float32)[:, None]


class CentredOnBlock(StaleGate):
    """stale-gate less its mean over the block: later tokens are in that mean."""

    def scores(self, block, layer):
        scores = super().scores(block, layer)
        return scores - scores.mean(axis=0)


class NotANumber(StaleGate):
    """Some scores are not numbers."""

    def scores(self, block, layer):
        scores = super().scores(block, layer).copy()
        scores[:1, 0] = np.nan
        return scores


class Infinite(StaleGate):
    """Some scores are infinite."""

    def scores(self, block, layer):
        scores = super().scores(block, layer).copy()
        scores[:, 0] = np.inf
        return scores


class GlobalRandom(StaleGate):
    """Ties are broken by a random generator that nobody has seeded."""

    def scores(self, block, layer):
        scores = super().scores(block, layer)
        noise = np.random.default_rng().random(scores.shape, np.float32)
        return scores + noise / 100


class RanksTheFirstToken(PrevToken):
    """prev-token that claims to know a turn's first token."""

    def ranks(self, block):
        return np.ones(len(block), bool)


class UndeclaredColumn(StaleGate):
    """It reads logits, and its needs do not say so."""

    def scores(self, block, layer):
        return block.logits[:, layer - self.horizon]


class NeedlessColumn(StaleGate):
    """It does not read what it needs."""

    needs = (*StaleGate.needs, "logits")


class MisspeltColumn(StaleGate):
    """It needs a column that no trace has."""

    needs = (*StaleGate.needs, "gate_inputs")


class WeightsThatAreCounts(StaticHot):
    """Weights that are not normalised."""

    def weights(self, block, layer, scores, named):
        return np.take_along_axis(scores, named, axis=1)


class RemembersTheLastLayer(StaleGate):
    """It keeps something between calls, which come in any order."""

    def scores(self, block, layer):
        scores = super().scores(block, layer)
        last, self._last = getattr(self, "_last", scores), scores
        return scores + 0.1 * last[: len(scores)].mean()


class LearnsNothing(LearnedPredictor, StaleGate):
    """It says that it learns, and gives the stale gate."""

    size_bytes = 0

    def begin(self, n_folds, held_out):
        pass

    def learn(self, block, fold, reading):
        pass

    def hold_out(self, folds):
        pass


class ReadsItsOwnRouting(Again):
    """It is asked about a token and looks at the answer."""

    def guess(self, token, layer):
        guess = self.counts[layer].copy()
        guess[token.experts[0, layer]] += 1
        return guess


class LearnsBeforeItIsAsked(LayerTable):
    """It learns a pass, and then says what it thinks of it."""

    def answer(self, one_pass):
        self.take_in(passed_of(one_pass))
        return super().answer(one_pass)


class LearnsTheBlockFirst(Recall):
    """All tokens of a block vote on all of them."""

    def meet(self, block):
        self.take_in(passed_of(block))
        super().meet(block)


class ForgetsAtEachBlock(Recall):
    """What came before the block does not vote."""

    def meet(self, block):
        self.forget()
        super().meet(block)


class KnowsNothingOnline(PassByPassPredictor):
    """It sees every token and learns nothing."""

    name = "knows-nothing"
    summary = "it learns nothing"

    def forget(self):
        pass

    def take_in(self, tokens):
        pass

    def answer(self, one_pass):
        shape = len(one_pass), self.routers.n_layers, self.routers.n_expert
        return np.tile(np.arange(shape[2], dtype=np.float32), (*shape[:2], 1))


class RecallsOneLayerTooNear(Recall):
    """It compares layers that have not run yet."""

    def __init__(self, routers, horizon=1, seed=0, params=None):
        super().__init__(routers, horizon, seed, params)
        self._past._horizon = horizon - 1


class WeightOfAllTurns(RecallGate):
    """recall-gate whose weight is learned on the turns that are held out too."""

    def begin(self, n_folds, held_out):
        super().begin(n_folds, [frozenset()])

    def hold_out(self, folds):
        super().hold_out(frozenset())


WRONG = [
    (ReadsThisToken, checks.looks_only_back),
    (ReadsTheNextToken, checks.looks_only_back),
    (HotOfAllTurns, checks.held_out_turns_are_not_learned),
    (HotOfNothing, checks.only_learned_predictors_depend_on_other_turns),
    (TableOfAllTurns, checks.held_out_turns_are_not_learned),
    (TooFresh, checks.looks_only_back),
    (TooFresh, checks.horizon_is_kept_to),
    (TooStale, checks.horizon_is_kept_to),
    (ReachesTooFar, checks.horizon_is_kept_to),
    (MeanOfBlock, checks.blocks_and_threads_change_nothing),
    (CentredOnBlock, checks.looks_only_back),
    (NotANumber, checks.scores_are_numbers),
    (Infinite, checks.scores_are_numbers),
    (GlobalRandom, checks.same_seed_same_answer),
    (RanksTheFirstToken, checks.what_is_ranked_is_known),
    (UndeclaredColumn, checks.needs_are_declared),
    (NeedlessColumn, checks.needs_are_declared),
    (MisspeltColumn, checks.needs_are_declared),
    (WeightsThatAreCounts, checks.weights_sum_to_one),
    (RemembersTheLastLayer, checks.blocks_and_threads_change_nothing),
    (LearnsNothing, checks.only_learned_predictors_depend_on_other_turns),
    (ReadsItsOwnRouting, checks.looks_only_back),
    (LearnsBeforeItIsAsked, checks.looks_only_back),
    (LearnsTheBlockFirst, checks.looks_only_back),
    (LearnsTheBlockFirst, checks.blocks_and_threads_change_nothing),
    (ForgetsAtEachBlock, checks.blocks_and_threads_change_nothing),
    (KnowsNothingOnline, checks.only_learned_predictors_depend_on_other_turns),
    (KnowsNothingOnline, checks.what_is_ranked_is_known),
    (RecallsOneLayerTooNear, checks.looks_only_back),
    (WeightOfAllTurns, checks.held_out_turns_are_not_learned),
]


# They learn token by token in Python, twice.
SLOW_TO_CATCH = (
    (KnowsNothingOnline, checks.only_learned_predictors_depend_on_other_turns),
    (LearnsBeforeItIsAsked, checks.looks_only_back),
    (ReadsItsOwnRouting, checks.looks_only_back),
)


@pytest.mark.parametrize(
    ("cls", "check"),
    slow_where(WRONG, lambda both: both in SLOW_TO_CATCH),
    ids=lambda x: x.__name__,
)
def test_a_wrong_predictor_is_caught(cls, check):
    with pytest.raises((AssertionError, TracekitError)):
        check(Subject(cls))

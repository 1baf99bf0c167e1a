"""Predictors that learn: what they learn from, what they are scored on, and fits redone by hand."""

from functools import cache

import numpy as np
import pytest
from families import slow_unless
from predict_traces import Toy, toy, trace_of

from tracekit.policies import Retention
from tracekit.predictors.learning.ridge import STRENGTHS, RidgeSums, best_fit
from tracekit.predictors.learning.token_counts import TokenCounts
from tracekit.replaying.batches import build_batches
from tracekit.replaying.guesses import guesses
from tracekit.scoring import predict
from tracekit.trace import UsageError


def drifting(turns=(150,) * 6, **model) -> Toy:
    """A run whose layers move the residual in a way that can be learned."""
    run = toy(turns=turns, drift=0.3, n_expert=8, top_k=2, n_embd=16, **model)
    rng = np.random.default_rng(7)
    for layer in range(1, run.matrix.shape[0]):
        push = rng.standard_normal((16, 16)).astype(np.float32) / 4
        run.gate_input[:, layer] = run.gate_input[:, layer - 1] @ (np.eye(16) + push)
        run.gate_input[:, layer] += 0.1 * rng.standard_normal(run.gate_input[:, layer].shape)
    run.logits[:] = np.einsum("tld,led->tle", run.gate_input, run.matrix)
    run.experts[:] = np.argsort(-run.logits, axis=2, kind="stable")[:, :, :2]
    return run


def ridge_by_hand(features, targets, strength):
    """Coefficients on raw features and intercept, from the rows themselves."""
    mean, spread = features.mean(axis=0), features.std(axis=0)
    x = (features - mean) / spread
    y = targets - targets.mean(axis=0)
    penalty = strength * len(x) * np.eye(x.shape[1])
    coefficients = np.linalg.solve(x.T @ x + penalty, x.T @ y) / spread[:, None]
    return coefficients, targets.mean(axis=0) - mean @ coefficients


def best_by_hand(features, targets, half):
    """The fit on all rows with the penalty that does best across the two halves, or zeros."""

    def error(fit, rows):
        return ((targets[rows] - features[rows] @ fit[0] - fit[1]) ** 2).sum()

    def fitted(rows, strength):
        return ridge_by_hand(features[rows], targets[rows], strength)

    errors = {
        s: error(fitted(half == 0, s), half == 1) + error(fitted(half == 1, s), half == 0)
        for s in STRENGTHS
    }
    best = min(errors, key=errors.get)
    if errors[best] >= (targets**2).sum():
        return np.zeros((features.shape[1], targets.shape[1])), np.zeros(targets.shape[1])
    return fitted(half >= 0, best)


def test_ridge_from_sums_is_ridge_from_rows():
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((400, 6)) * [1, 5, 0.2, 1, 2, 1] + 3).astype(np.float32)
    targets = rng.standard_normal((400, 3)).astype(np.float32) + features[:, :3]
    whole, rest = RidgeSums(6, 3), RidgeSums(6, 3)
    whole.add([features[:250, :2], features[:250, 2:]], targets[:250])
    rest.add([features[250:]], targets[250:])
    whole += rest
    coefficients, intercepts = whole.solve(0.1)
    expected, intercept = ridge_by_hand(features.astype(float), targets.astype(float), 0.1)
    np.testing.assert_allclose(coefficients, expected, atol=2e-3)
    np.testing.assert_allclose(intercepts, intercept, atol=2e-2)


def test_the_penalty_is_chosen_on_rows_not_fitted():
    rng = np.random.default_rng(1)
    features = rng.standard_normal((300, 20)).astype(np.float32)
    noise = rng.standard_normal((300, 4)).astype(np.float32)
    half = np.arange(300) % 2
    for targets in (noise, features[:, :4] + 0.1 * noise):
        halves = RidgeSums(20, 4), RidgeSums(20, 4)
        for h in (0, 1):
            halves[h].add([features[half == h]], targets[half == h])
        fit = best_fit(*halves)
        assert halves[0].rows == 300
        expected = best_by_hand(features.astype(float), targets.astype(float), half)
        if targets is noise:
            assert fit is None
            assert not expected[0].any()
        else:
            np.testing.assert_allclose(fit[0], expected[0], atol=1e-4)


def test_a_feature_that_never_varies_is_left_out():
    sums = RidgeSums(2, 1)
    x = np.linspace(0, 1, 50, dtype=np.float32)[:, None]
    sums.add([x, np.full_like(x, 3)], 2 * x)
    coefficients, _ = sums.solve(1e-6)
    assert coefficients[1, 0] == 0
    assert coefficients[0, 0] == pytest.approx(2, abs=1e-2)


@pytest.mark.parametrize("horizon", [1, 2])
def test_fit_is_ridge_on_the_difference_of_other_turns(horizon):
    run = drifting()
    result = predict(trace_of(run), ["stale-gate-fit", "stale-gate"], horizons=[horizon])
    fit, plain = result.records
    for layer in range(horizon, 4):
        hits = 0
        for turn in range(6):
            inside = run.turn == turn
            stale = run.gate_input[:, layer - horizon] @ run.matrix[layer].T
            own = run.logits[:, layer - horizon]
            features = np.concatenate([stale, own], axis=1).astype(float)
            difference = (run.logits[:, layer] - stale).astype(float)
            rank = np.unique(run.turn[~inside], return_inverse=True)[1]
            a, b = best_by_hand(features[~inside], difference[~inside], rank % 2)
            guess = stale[inside] + features[inside] @ a + b
            best = np.argsort(-guess, axis=1, kind="stable")[:, :2]
            hits += (best[:, :, None] == run.experts[inside, layer][:, None, :]).any(axis=1).sum()
        assert fit["layers"][layer]["hits"] == pytest.approx(hits, abs=2)
    assert fit["slot_accuracy"] > plain["slot_accuracy"] + 0.05


def test_combined_is_ridge_with_a_table_that_knows_neither_turn():
    run = drifting(turns=(200, 160, 180))
    # Without recall's vote, which `test_predict_online` looks after.
    (record,) = predict(trace_of(run), ["combined"], params={"combined.weight": 0}).records
    previous = np.zeros_like(run.logits)
    previous[1:] = run.logits[:-1]
    first = np.append(True, run.turn[1:] != run.turn[:-1])

    @cache
    def table(layer, token, without):
        inside = ~np.isin(run.turn, list(without))
        chosen = np.zeros((inside.sum(), 8))
        np.put_along_axis(chosen, run.experts[inside, layer].astype(int), 1, axis=1)
        popular = chosen.mean(axis=0)
        same = run.token[inside] == token
        return (chosen[same].sum(axis=0) + popular) / (same.sum() + 1)

    for layer in range(1, 4):
        hits = 0
        stale = run.gate_input[:, layer - 1] @ run.matrix[layer].T
        for turn in range(3):
            held = run.turn == turn
            tables = np.array(
                [
                    table(layer, int(t), frozenset({turn, int(u)}))
                    for t, u in zip(run.token, run.turn, strict=True)
                ]
            )
            features = np.concatenate([stale, tables, previous[:, layer]], axis=1).astype(float)
            rows = ~held & ~first
            difference = (run.logits[:, layer] - stale)[rows].astype(float)
            rank = np.unique(run.turn[rows], return_inverse=True)[1]
            a, b = best_by_hand(features[rows], difference, rank % 2)
            mean = features[rows][:, 16:].mean(axis=0)
            features[held & first, 16:] = mean
            guess = stale[held] + features[held] @ a + b
            best = np.argsort(-guess, axis=1, kind="stable")[:, :2]
            hits += (best[:, :, None] == run.experts[held, layer][:, None, :]).any(axis=1).sum()
        assert record["layers"][layer]["hits"] == pytest.approx(hits, abs=2)


@pytest.mark.parametrize(
    "predictor",
    slow_unless(
        ["static-hot", "token-table", "layer-lag", "stale-gate-fit", "combined"], "combined"
    ),
)
def test_a_turn_is_never_learned_from_while_it_is_scored(predictor):
    run, changed = drifting(turns=(150,) * 4), drifting(turns=(150,) * 4)
    # What turn 2 selects at the last layer is turned around: no name given there may change.
    inside = changed.turn == 2
    changed.logits[inside, 3] *= -1
    opposite = np.argsort(-changed.logits[inside, 3], axis=1, kind="stable")[:, :2]
    changed.experts[inside, 3] = opposite
    names = []
    for trace in (trace_of(run), trace_of(changed)):
        batches = build_batches(trace)
        found = guesses(trace, batches, Retention.Params(predictor, 1)).keys
        names.append(found[(batches.turn == 2) & (batches.phase == 1) & (batches.layer == 2)])
    # The previous token's logits are an input of `combined`: its first token has none.
    compared = slice(1) if predictor == "combined" else slice(None)
    assert (names[0] >= 3 * 8).all()
    np.testing.assert_array_equal(names[0][compared], names[1][compared])


def lagging(turns=(12, 9, 10)) -> Toy:
    """A run of 6 layers in which a layer repeats the selection of the layer three before it."""
    run = toy(turns=turns, n_layers=6)
    run.experts[:, 3:] = run.experts[:, :3, ::-1]
    return run


def test_a_lag_is_found_and_never_one_that_is_known_too_late():
    near, far = predict(trace_of(lagging()), ["layer-lag"], horizons=[1, 4]).records
    assert [x["exact_rate"] for x in near["layers"][3:]] == [1.0] * 3
    # Four layers ahead nobody knows what the layer three back will have selected.
    assert [x["exact_rate"] for x in far["layers"][:4]] == [None] * 4
    assert all(x["slot_accuracy"] < 0.5 for x in far["layers"][4:])
    assert near["unscored"] == 31
    assert far["unscored"] == 31 * 4


def test_what_lag_was_learned_is_said():
    (note,) = predict(trace_of(lagging()), ["layer-lag"]).notes
    assert note.endswith("a lag of 3 is best for 3 of 5 layers.")


def test_a_lag_is_learned_on_other_turns():
    # Turn 0 repeats two layers back, the others three: what is best for it must not be seen.
    run = lagging(turns=(30, 8, 8))
    first = run.turn == 0
    run.experts[first, 5] = run.experts[first, 3]
    run.experts[~first, 5] = run.experts[~first, 2]
    (record,) = predict(trace_of(run), ["layer-lag"]).records
    common = (run.experts[first, 5][:, :, None] == run.experts[first, 2][:, None]).sum()
    # Turns 1 and 2 are scored with what turn 0, the longest, taught.
    other = (run.experts[~first, 5][:, :, None] == run.experts[~first, 3][:, None]).sum()
    assert record["layers"][5]["hits"] == common + other < record["layers"][5]["slots"]


def test_a_lag_that_is_given_is_not_learned():
    run = toy(turns=(41,))
    given = {"layer-lag.lag": 2}
    result = predict(trace_of(run), ["layer-lag"], horizons=[1, 2], params=given)
    for record in result.records:
        assert record["unscored"] == 2 * 41
        assert "fit" not in record
        for layer in (2, 3):
            common = run.experts[:, layer][:, :, None] == run.experts[:, layer - 2][:, None]
            assert record["layers"][layer]["hits"] == common.sum()
    assert result.notes == []


def test_a_single_turn_trains_on_its_first_half():
    run = toy(turns=(41,))
    (record,) = predict(trace_of(run), ["static-hot"]).records
    assert record["unscored"] == 20 * 4
    assert record["routings"] == 21 * 4
    hits = 0
    for layer in range(4):
        counts = np.bincount(run.experts[:20, layer].ravel(), minlength=16)
        hot = np.argsort(-counts, kind="stable")[:4]
        hits += np.isin(run.experts[20:, layer], hot).sum()
    assert record["hits"] == hits


def test_another_trace_trains_and_everything_is_scored():
    run, other = toy(turns=(15, 10)), toy(turns=(30,), seed=5)
    (record,) = predict(trace_of(run), ["static-hot"], train=trace_of(other)).records
    assert record["unscored"] == 0
    hits = 0
    for layer in range(4):
        counts = np.bincount(other.experts[:, layer].ravel(), minlength=16)
        hits += np.isin(run.experts[:, layer], np.argsort(-counts, kind="stable")[:4]).sum()
    assert record["hits"] == hits
    assert record["fit"]["rows"] == 30


@pytest.mark.parametrize("train", [True, False])
def test_combined_learns_without_holding_out(train):
    run = drifting(turns=(700,))
    other = trace_of(drifting(turns=(400, 300))) if train else None
    combined, plain = predict(trace_of(run), ["combined", "stale-gate"], train=other).records
    assert combined["slot_accuracy"] > plain["slot_accuracy"] + 0.05
    assert combined["unscored"] == (700 if train else 700 + 350 * 3)


def test_a_fit_with_few_rows_is_plain_stale_gate_and_says_so():
    trace = trace_of(toy(turns=(30, 30)))
    result = predict(trace, ["stale-gate", "stale-gate-fit", "combined"])
    plain, fit, combined = result.records
    assert fit["hits"] == combined["hits"] == plain["hits"]
    said = [note for note in result.notes if "plain stale-gate, as only 30 rows" in note]
    assert len(said) == 1
    assert "would take 0.0 KiB" in said[0]
    assert "plain stale-gate, as only 29 rows" in " ".join(result.notes)


def test_a_fit_that_cannot_be_judged_is_not_made():
    # Without turn 1, turns 0 and 2 are the halves, and turn 2 is no judge of anything.
    result = predict(trace_of(drifting(turns=(300, 300, 1))), ["stale-gate-fit", "combined"])
    assert sum("only 301 rows were left" in note for note in result.notes) == 1
    assert sum("only 299 rows were left" in note for note in result.notes) == 1


def test_what_a_fit_costs_is_reported():
    result = predict(trace_of(drifting()), ["stale-gate-fit", "token-table", "static-hot"])
    fit, table, hot = result.records
    assert fit["fit"]["size_bytes"] == 4 * 3 * (2 * 8 + 1) * 8
    assert table["fit"]["size_bytes"] == 2 * 12 * 4 * 2
    assert hot["fit"]["size_bytes"] == 2 * 4 * 2
    assert all(r["fit"]["rows"] == 900 for r in result.records)
    assert any("stale-gate-fit learned from 900 decoded tokens" in n for n in result.notes)


def test_in_sample_is_learned_on_what_it_is_scored_on():
    run = toy(turns=(20, 15))
    (record,) = predict(trace_of(run), ["static-hot-insample"]).records
    scored = np.append(True, run.turn[1:] != run.turn[:-1])
    hits = 0
    for layer in range(4):
        chosen = run.experts[~scored, layer]
        counts = np.bincount(chosen.ravel(), minlength=16)
        hits += np.isin(chosen, np.argsort(-counts, kind="stable")[:4]).sum()
    assert record["hits"] == hits
    assert record["unscored"] == 2 * 4


def test_more_turns_than_folds():
    run = toy(turns=(3,) * 40)
    (record,) = predict(trace_of(run), ["static-hot"]).records
    assert record["unscored"] == 0
    hits = 0
    fold = np.arange(40) * 32 // 40
    for turn in range(40):
        learned = fold[run.turn] != fold[turn]
        for layer in range(4):
            counts = np.bincount(run.experts[learned, layer].ravel(), minlength=16)
            hot = np.argsort(-counts, kind="stable")[:4]
            hits += np.isin(run.experts[run.turn == turn, layer], hot).sum()
    assert record["hits"] == hits


def test_token_counts_stop_at_their_memory():
    counts = TokenCounts(1, 2, 4, limit_bytes=6 * 2 * 4 * 4)
    experts = np.zeros((5, 2, 1), np.uint16)
    counts.add(np.array([7, 8, 9, 10, 7]), experts, 0)
    assert counts.n_ids == 3
    assert counts.ignored == 1
    assert counts.notes[1].startswith("1 tokens not learned")
    known, unknown = counts.frequency(np.array([7, 10]), 0, ())
    assert known[0] == unknown[0] == 1.0
    np.testing.assert_array_equal(counts.frequency(np.array([-1]), 0, (0,)), np.zeros((1, 4)))


def test_training_on_what_is_scored_is_refused():
    trace = trace_of(toy())
    for train in (trace, trace_of(toy())):
        with pytest.raises(UsageError, match="holds the same routings as"):
            predict(trace, ["static-hot"], train=train)

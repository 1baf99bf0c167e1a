"""Every figure of the scorer against a plain-Python one."""

import numpy as np
import pytest
from families import slow_unless
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_reference import named_by_score, score
from predict_traces import select, toy, trace_of

from tracekit.routing import blocks
from tracekit.scoring import predict
from tracekit.scoring.ranks import NEAR_TIE, name_best, rank

PLAIN = (
    "stale-gate",
    "stale-gate-renorm",
    "ctrl",
    "embedding-gate",
    "prev-token",
    "static-hot",
    "token-table",
    "layer-lag",
)
MODELS = {
    "softmax": {},
    "sigmoid with bias": {"gating": "sigmoid", "biased": True},
    "sigmoid with bias and groups": {
        "gating": "sigmoid",
        "biased": True,
        "n_group": 4,
        "n_group_used": 2,
    },
    "softmax with groups": {"n_group": 4, "n_group_used": 2},
    "softmax with bias": {"biased": True},
    "logits with bias": {"gating": "logits", "biased": True},
    "sqrt-softplus with bias": {"gating": "sqrt-softplus", "biased": True},
}


FEW_MODELS = ("softmax", "sigmoid with bias and groups")


@pytest.fixture(scope="module", params=slow_unless(MODELS, *FEW_MODELS))
def run(request):
    return toy(turns=(14, 1, 9), **MODELS[request.param])


@pytest.mark.parametrize("predictor", PLAIN)
def test_agrees_with_plain_python(run, predictor):
    named = (4, 7, 16)
    result = predict(trace_of(run), [predictor], horizons=(1, 3), named=named)
    for record in result.records:
        expected = score(run, predictor, record["horizon"], named)
        for layer, row in zip(record["layers"], expected.values(), strict=True):
            for count in ("routings", "unscored", "hits", "exact"):
                assert layer[count] == row[count], (predictor, record["horizon"], layer["layer"])
            for m in named:
                slots = row["routings"] * 4
                if not slots:
                    assert layer["recall"][str(m)] is None
                    continue
                assert layer["recall"][str(m)] == pytest.approx(row["found"][m] / slots)
                mass = row["mass"][m] / row["routings"]
                assert layer["mass_named"][str(m)] == pytest.approx(mass, abs=1e-6)


def test_control_is_whole_on_every_selection_rule(run):
    (record,) = predict(trace_of(run), ["ctrl"]).records
    assert record["hits"] == record["slots"] > 0
    assert record["exact_rate"] == record["slot_accuracy"] == 1.0


@pytest.mark.parametrize("model", ["sigmoid with bias", "softmax with groups"])
def test_largest_logit_would_not_be_whole(model):
    run = toy(**MODELS[model])
    plain = np.argsort(-run.logits, axis=2, kind="stable")[:, :, :4]
    assert (np.sort(plain) != np.sort(run.experts)).any()


def test_all_candidates_are_scored_or_unscored():
    run = toy(turns=(40, 30))
    for record in predict(trace_of(run), horizons=(1, 2)).records:
        assert record["routings"] + record["unscored"] == 70 * 4
        for layer in record["layers"]:
            assert layer["routings"] + layer["unscored"] == 70
            assert (layer["slot_accuracy"] is None) == (layer["routings"] == 0)


def test_random_guess_is_the_floor():
    run = toy(turns=(400,), n_expert=16, top_k=4)
    (record,) = predict(trace_of(run), ["random-guess"]).records
    assert record["slot_accuracy"] == pytest.approx(4 / 16, abs=0.02)
    (again,) = predict(trace_of(run), ["random-guess"]).records
    (other,) = predict(trace_of(run), ["random-guess"], seed=1).records
    assert record["hits"] == again["hits"] != other["hits"]


def test_oracle_names_what_is_selected():
    (record,) = predict(trace_of(toy()), ["oracle"]).records
    assert record["exact_rate"] == 1.0
    assert record["unscored"] == 0


def test_blocks_and_threads_change_nothing():
    trace = trace_of(toy(turns=(33, 20, 25)))
    names = [*PLAIN, "random-guess", "oracle"]
    whole = predict(trace, names, jobs=1).records
    cut = [(b.start, len(b)) for b in blocks.decode_blocks(trace, tokens=7)]
    assert max(n for _, n in cut) == 7
    assert sum(n for _, n in cut) == 78
    parts = predict(trace, names, jobs=3, block_tokens=7).records
    for record, other in zip(whole, parts, strict=True):
        record.pop("fit", None), other.pop("fit", None)
        assert record == other


def test_previous_token_crosses_blocks():
    trace = trace_of(toy(turns=(10, 5)))
    whole = next(iter(blocks.decode_blocks(trace)))
    parts = [b for b in blocks.decode_blocks(trace, tokens=3) if b.turn == 0]
    for layer in range(4):
        joined = np.concatenate([b.previous("experts", layer) for b in parts])
        np.testing.assert_array_equal(joined, whole.previous("experts", layer))
    assert np.concatenate([b.has_previous for b in parts]).tolist() == [False] + [True] * 9


def test_a_block_that_is_cut_knows_one_token_before_it():
    whole = next(iter(blocks.decode_blocks(trace_of(toy(turns=(10, 5))))))
    part = whole.cut(6, 9)
    assert part.before.step.tolist() == [whole.step[5]]
    assert part.before.before is None  # all that ran would hang on it
    np.testing.assert_array_equal(part.previous("experts", 2), whole.previous("experts", 2)[6:9])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_rank_and_names_equal_sorting(data):
    n_expert = data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, n_expert))
    values = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 0.5 + 4e-6, 2.0])
    row = np.array(data.draw(st.lists(values, min_size=n_expert, max_size=n_expert)), np.float32)
    chosen = data.draw(st.permutations(range(n_expert)))[:k]
    ranks, near = rank(row[None], np.array([chosen], np.uint16))
    order = sorted(range(n_expert), key=lambda e: (-row[e], e))
    expected = [order.index(e) if row[e] > -np.inf else n_expert for e in chosen]
    assert ranks[0].tolist() == expected
    best = named_by_score(row.tolist(), k)
    assert name_best(row[None], k)[0].tolist() == best + [-1] * (k - len(best))
    scored = sorted(row.tolist(), reverse=True)
    tie = k < n_expert and scored[k] > -np.inf and scored[k - 1] - scored[k] < NEAR_TIE
    assert near[0] == (tie and max(expected) >= k)


def test_a_near_tie_is_counted_apart():
    run = toy(turns=(12,))
    # Two experts with the same row in a router tie in every routing; the model, rounding otherwise,
    # once takes the higher id of the two.
    run.matrix[2, 9] = run.matrix[2, 5]
    run.logits[:, 2] = np.einsum("td,ed->te", run.gate_input[:, 2], run.matrix[2])
    run.experts[:, 2] = select(run.logits[:, 2], None, run.facts)
    only_lower = (run.experts[:, 2] == 5).any(axis=1) & ~(run.experts[:, 2] == 9).any(axis=1)
    t = np.flatnonzero(only_lower)[0]
    run.experts[t, 2][run.experts[t, 2] == 5] = 9
    (record,) = predict(trace_of(run), ["ctrl"]).records
    assert record["routings"] - record["exact"] == record["near_ties"] == 1
    report = predict(trace_of(run), ["ctrl"]).to_text()
    assert report.startswith("CTRL IS BELOW 100 %")
    assert "all 1 routings it misses are near ties" in report


def test_every_expert_selected():
    run = toy(n_expert=4, top_k=4)
    result = predict(trace_of(run))
    assert all(r["slot_accuracy"] == 1.0 for r in result.records)
    assert any("any guess is right" in note for note in result.notes)


def test_more_than_32_experts_named():
    run = toy(turns=(20,), n_expert=80, top_k=40)
    result = predict(trace_of(run), ["stale-gate", "ctrl"])
    expected = score(run, "stale-gate", 1, ())
    assert [x["hits"] for x in result.records[0]["layers"]] == [
        row["hits"] for row in expected.values()
    ]
    assert result.records[1]["slot_accuracy"] == 1.0

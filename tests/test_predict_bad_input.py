"""What cannot be predicted is said in one sentence."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
from predict_traces import tables_of, toy, trace_of

from tracekit.policies import Retention
from tracekit.predictors import PREDICTORS, Predictor
from tracekit.replaying.batches import build_batches
from tracekit.replaying.guesses import guesses
from tracekit.scoring import predict
from tracekit.trace import TraceError, UsageError


@pytest.mark.parametrize(
    ("predictor", "column", "sentence"),
    [
        (
            "stale-gate",
            "gate_input",
            "stale-gate needs the column 'gate_input' of routing.parquet, which toy.trace does "
            "not have: record without --no-gate-inputs.",
        ),
        (
            "combined",
            "logits",
            "combined needs the column 'logits' of routing.parquet, which toy.trace does not "
            "have: record without --no-logits.",
        ),
        (
            "token-table",
            "token",
            "token-table needs the column 'token' of steps.parquet, which toy.trace does not "
            "have: `tracekit record` writes it.",
        ),
        (
            "embedding-gate",
            "embedding",
            "embedding-gate needs the column 'embedding' of steps.parquet, which toy.trace does "
            "not have: record without --no-gate-inputs.",
        ),
        (
            "ctrl",
            "router_matrix",
            "ctrl needs the column 'router_matrix' of layers.parquet, which toy.trace does not "
            "have: `tracekit record` writes it.",
        ),
        (
            "stale-gate-renorm",
            "norm_weight",
            "stale-gate-renorm needs the column 'norm_weight' of layers.parquet, which toy.trace "
            "does not have: `tracekit record` writes it.",
        ),
    ],
)
def test_a_missing_column_is_named(predictor, column, sentence):
    trace = trace_of(toy(), drop=(column,))
    with pytest.raises(TraceError) as error:
        predict(trace, [predictor])
    assert str(error.value) == sentence
    result = predict(trace)
    assert predictor not in result.config["predictors"]
    reasons = [note for note in result.notes if note.startswith("Left out: ")]
    assert any(predictor in note and repr(column) in note for note in reasons)


def test_phone_traces_lack_gate_inputs(phone_traces):
    from tracekit.formats import open_any

    trace = open_any(phone_traces / "traces" / "qwen.route.csv")
    with pytest.raises(TraceError, match=r"'gate_input' of routing.parquet.*`tracekit record`"):
        predict(trace, ["stale-gate"])


def test_one_layer():
    trace = trace_of(toy(n_layers=1))
    with pytest.raises(TraceError) as error:
        predict(trace, ["stale-gate"])
    assert str(error.value) == (
        "stale-gate looks from one MoE layer at a later one, and toy.trace has only one."
    )
    result = predict(trace)
    assert {"ctrl", "prev-token", "embedding-gate"} <= set(result.config["predictors"])
    assert sum("has only one" in note for note in result.notes) == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"horizons": 4},
            "A horizon of 4 reaches past the model: it has 4 MoE layers, so the furthest is 3.",
        ),
        ({"horizons": [1, 0]}, "horizons takes a whole number, 1 or more, not 0."),
        ({"horizons": 1.5}, "horizons takes a whole number, 1 or more, not 1.5."),
        ({"named": [2.5]}, "named takes a whole number, 1 or more, not 2.5."),
        ({"block_tokens": 0}, "block_tokens takes a whole number, 1 or more, not 0."),
        ({"seed": -1}, "seed takes a whole number, 0 or more, not -1."),
        ({"jobs": -1}, "jobs takes a number of threads, 1 or more, not -1."),
        (
            {"named": [17]},
            "17 experts cannot be named: the model has 16; name between 1 and that.",
        ),
        (
            {"predictors": "stale-gat"},
            "No predictor is called 'stale-gat'; did you mean 'stale-gate'?",
        ),
        (
            {"predictors": "predict_traces:Toy"},
            "'predict_traces:Toy' is not a predictor: predict_traces must hold a class 'Toy' "
            "derived from tracekit.predictors.base.Predictor.",
        ),
        (
            {"predictors": "layer-lag", "params": {"layer-lag.lag": 0}},
            "layer-lag: lag must be 1 or more.",
        ),
        (
            {"predictors": "layer-lag", "params": {"layer-lag.lag": 4}},
            "A layer-lag.lag of 4 reaches past the model: it has 4 MoE layers, so the furthest "
            "is 3.",
        ),
        (
            {"predictors": "layer-lag", "horizons": 3, "params": {"layer-lag.lag": 2}},
            "What a layer selected is known 2 layers ahead with a layer-lag.lag of 2, not 3; take "
            "a lag of the horizon or more.",
        ),
    ],
)
def test_impossible_arguments_are_refused(arguments, sentence):
    with pytest.raises(UsageError) as error:
        predict(trace_of(toy()), **arguments)
    assert str(error.value) == sentence


def test_the_error_says_where_a_gate_input_is_null():
    tables = tables_of(toy())
    table = tables.routing
    row = int(np.flatnonzero((table["step"].to_numpy() == 9) & (table["layer"].to_numpy() == 2))[1])
    column = table["gate_input"].to_pylist()
    column[row] = None
    at = table.schema.get_field_index("gate_input")
    field = table.schema.field(at)
    tables.routing = table.set_column(at, field, pa.array(column, field.type))
    trace = tables.trace()
    with pytest.raises(TraceError) as error:
        predict(trace, ["stale-gate"])
    assert str(error.value) == (
        "In turn 1, step 9, layer 2, the gate input is missing or not a number; leave the "
        "predictors that need it out, or record the trace again."
    )
    assert predict(trace, ["prev-token"]).records[0]["routings"] == 72 * 4


def test_a_predictor_of_ones_own_that_gives_nan_is_told_so():
    class Broken(PREDICTORS.find("stale-gate")):
        name = "broken"

        def scores(self, block, layer):
            return np.full((len(block), self.routers.n_expert), np.nan, np.float32)

    with pytest.raises(
        TraceError, match=r"broken gave a score that is not a number .*`scores` must"
    ):
        predict(trace_of(toy()), [Broken])


def test_a_router_matrix_of_the_wrong_shape():
    run = toy()
    run.matrix = run.matrix[:, :, :-1]
    with pytest.raises(TraceError, match="router_matrix: layer 0 has 368 values where 16 × 24"):
        predict(trace_of(run), ["ctrl"])


def test_an_unknown_gating_ranks_by_logits_but_not_with_a_bias():
    run = toy()
    run.facts = dataclasses.replace(run.facts, gating=None)
    assert predict(trace_of(run), ["ctrl"]).records[0]["slot_accuracy"] == 1.0
    run = toy(biased=True)
    run.facts = dataclasses.replace(run.facts, gating=None)
    with pytest.raises(TraceError, match="gating function of its model is None"):
        predict(trace_of(run), ["ctrl"])


def test_nothing_decoded():
    tables = tables_of(toy(turns=(1,)), prefill=5)
    tables.routing, tables.steps = tables.routing.slice(0, 5 * 4), tables.steps.slice(0, 5)
    trace = tables.trace()
    with pytest.raises(TraceError, match=r"toy.trace holds no decoded token.*record with -n 1"):
        predict(trace)


def test_training_on_another_model():
    with pytest.raises(TraceError, match="its model has n_expert = 8, not 16"):
        predict(trace_of(toy()), ["static-hot"], train=trace_of(toy(n_expert=8)))
    with pytest.raises(TraceError, match="its MoE layers are others"):
        predict(trace_of(toy()), ["static-hot"], train=trace_of(toy(n_layers=3)))


def test_an_interrupted_trace_says_so():
    trace = trace_of(toy(), complete=False)
    trace.warnings.append("The recording was interrupted.")
    result = predict(trace, ["prev-token"])
    assert "The recording was interrupted." in result.to_json()["notes"]
    assert result.to_json()["provenance"]["complete"] is False


def test_no_policy_can_act_on_the_control():
    trace = trace_of(toy())
    with pytest.raises(UsageError, match=r"No policy can act on ctrl.*'oracle'"):
        guesses(trace, build_batches(trace), Retention.Params("ctrl", 1))


def test_acting_without_the_column():
    trace = trace_of(toy(), drop=("gate_input",))
    with pytest.raises(TraceError, match="stale-gate needs the column 'gate_input'"):
        guesses(trace, build_batches(trace), Retention.Params())


def test_a_predictor_of_ones_own_that_gives_no_number(monkeypatch):
    from tracekit.predictors import StaticHot

    monkeypatch.setattr(
        StaticHot, "scores", lambda self, block, layer: np.full((len(block), 16), np.nan)
    )
    with pytest.raises(TraceError, match="turn 0, step 5, layer 0, static-hot gave a score"):
        predict(trace_of(toy()), ["static-hot"])


class Undeclared(Predictor):
    name = "undeclared"
    summary = "it reads a column that it does not need"

    def scores(self, block, layer):
        return block.logits[:, layer]


class Misspelt(Undeclared):
    needs = ("logit",)


def test_a_column_that_is_not_among_the_needs():
    with pytest.raises(UsageError) as error:
        predict(trace_of(toy()), Undeclared)
    assert str(error.value) == (
        "A predictor reads the column 'logits', which is not among its `needs`; add it there."
    )
    with pytest.raises(UsageError) as error:
        predict(trace_of(toy()), [Misspelt])
    assert str(error.value) == (
        "undeclared needs a column 'logit', but predictors can need only weights, logits, "
        "gate_input, token, embedding, router_matrix, norm_weight."
    )


def test_numbers_may_be_of_numpy_and_one_stands_for_a_list():
    trace = trace_of(toy())
    one = predict(trace, "stale-gate,prev-token", np.int64(2), named=np.int64(4), seed=np.int64(1))
    several = predict(trace, ["stale-gate", "prev-token"], np.array([2]), named=[4], seed=1)
    assert json.loads(json.dumps(one.to_json())) == several.to_json()


def test_what_a_trace_cannot_feed_is_left_out_beside_what_it_can():
    trace = trace_of(toy(), drop=("gate_input",))
    result = predict(trace, ["stale-gate", "prev-token"])
    assert [r["predictor"] for r in result.records] == ["prev-token"]
    assert any(note.startswith("Left out: stale-gate needs the column") for note in result.notes)

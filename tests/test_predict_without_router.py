"""Layers without a router matrix: what multiplies by a router leaves them unscored."""

import numpy as np
import pyarrow as pa
import pytest
from families import slow_unless
from predict_traces import toy, trace_of

from tracekit.policies.retention import Retention
from tracekit.replaying.batches import build_batches
from tracekit.replaying.guesses import guesses
from tracekit.scoring.predict import predict
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE

ROUTED = ("stale-gate", "ctrl", "stale-gate-renorm", "stale-gate-fit", "embedding-gate", "combined")


def without_router(layers: set[int], with_gate_input: bool) -> Trace:
    """Make a trace whose `layers` have no router matrix, no logits and perhaps no gate inputs."""
    trace = trace_of(toy(turns=(300, 300), n_layers=4))
    routing, steps, table = (
        rows.read(rows.schema.names)
        for rows in map(trace.rows, (ROUTING_FILE, STEPS_FILE, LAYERS_FILE))
    )
    is_unrouted = np.isin(routing["layer"].to_numpy(), list(layers))
    for name in ["logits"] if with_gate_input else ["logits", "gate_input"]:
        values = [
            None if gone else row
            for gone, row in zip(is_unrouted, routing[name].to_pylist(), strict=True)
        ]
        column = pa.array(values, routing.schema.field(name).type)
        routing = routing.set_column(routing.schema.get_field_index(name), name, column)
    matrices = table["router_matrix"].to_pylist()
    matrices = [None if i in layers else matrix for i, matrix in enumerate(matrices)]
    place = table.schema.get_field_index("router_matrix")
    table = table.set_column(
        place, "router_matrix", pa.array(matrices, table.schema.field("router_matrix").type)
    )
    return Trace.from_tables(trace.facts, table, routing, steps, name="toy.trace")


@pytest.mark.parametrize("with_gate_input", slow_unless([True, False], False))
def test_they_are_unscored_and_the_others_are_scored(with_gate_input: bool) -> None:
    names = [*ROUTED, "ctrl", "prev-token"]
    result = predict(without_router({0, 1}, with_gate_input), names, horizons=[1, 2])
    for record in result.records:
        if record["predictor"] not in ROUTED:
            continue
        # A horizon looks back at a layer that has a gate input, or it has nothing to look at.
        first = 2
        if record["horizon"] and not with_gate_input:
            first += record["horizon"]
        unscored = [layer["unscored"] for layer in record["layers"]]
        assert unscored == [600 * (layer < first) for layer in range(4)], record["predictor"]
    ctrl = result.record("ctrl")
    assert (ctrl["slot_accuracy"], ctrl["near_ties"]) == (1, 0)
    assert result.notes[0].startswith(
        "Not by logits: layers 0 and 1 select experts without a router"
    )


def test_a_fit_uses_the_stale_logits_alone_where_the_source_has_none() -> None:
    result = predict(without_router({0}, with_gate_input=True), ["stale-gate", "stale-gate-fit"])
    plain, fitted = (result.record(name)["layers"][1] for name in ("stale-gate", "stale-gate-fit"))
    assert fitted["routings"] == plain["routings"] == 600
    assert fitted["slot_accuracy"] >= plain["slot_accuracy"]
    assert result.notes[0].startswith("Not by logits: layer 0 selects experts")


def test_a_policy_guesses_where_it_can() -> None:
    trace = without_router({0, 1}, with_gate_input=True)
    batches = build_batches(trace)
    named = guesses(trace, batches, Retention.Params("stale-gate", 1)).keys
    decoded = named[batches.phase == DECODE].reshape(600, 4, -1)
    # After layers 1 and 2 it names experts of layers 2 and 3, and nothing after the others.
    assert (decoded[:, [0, 3]] == -1).all()
    assert (decoded[:, 1] // 16 == 2).all()
    assert (decoded[:, 2] // 16 == 3).all()

"""What the writer takes the reader takes: every legal extreme comes back, every illegal one is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracekit.trace import (
    EngineFacts,
    ModelFacts,
    Trace,
    TraceError,
    TraceFacts,
    TraceWriter,
    write_trace,
)

INF, NAN = float("inf"), float("nan")
MOST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)
N_EXPERT, TOP_K, N_EMBD = 4, 3, 2

Change = Callable[[dict[str, Any]], None]


def facts(**model: Any) -> TraceFacts:
    return TraceFacts(
        ModelFacts(
            **{
                "name": "a\0\x1b\u202e=\udcff",
                "arch": "x",
                "n_layer": 1 << 15,
                "n_expert": N_EXPERT,
                "top_k": TOP_K,
                "n_embd": N_EMBD,
                "gating": "sqrt-softplus",
                "n_group": 2,
                "n_group_used": 2,
                "norm_eps": 0.0,
                "file_bytes": (1 << 63) - 1,
                **model,
            }
        ),
        source="recorded",
        engine=EngineFacts("x", cache_bytes=(1 << 62) - 1),
        prompts=["", "\udcff\0"],
        notes={"layers_selected_by_token": [0]},
    )


def layers() -> list[dict[str, Any]]:
    return [
        {"layer": 0, "expert_bytes": 1, "dense_bytes": 0},
        {
            "layer": (1 << 15) - 1,
            "expert_bytes": 1 << 40,
            "dense_bytes": 1 << 40,
            "router_matrix": np.array([MOST, -MOST, LEAST, -LEAST, 0, -0.0, 1, -1], np.float32),
            "router_bias": np.array([-INF, MOST, -MOST, 0], np.float32),
            "selection_bias": np.array([-INF, -INF, -MOST, LEAST], np.float32),
            "norm_weight": np.array([MOST, 0], np.float32),
        },
    ]


def rows() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pass of three tokens at the first layer and the last one."""
    last = np.iinfo(np.int32).max
    place = {"turn": last, "pass": 0, "phase": 0}
    step = np.array([last - 2, last - 1, last])
    routing = {
        **place,
        "step": np.tile(step, 2),
        "layer": np.repeat([0, (1 << 15) - 1], 3),
        "experts": np.array([[3, 2, 1], [0, 1, 2]] * 3),
        "weights": np.array([[0, MOST, LEAST], [NAN, NAN, NAN], [0, 0, NAN]] * 2, np.float32),
        "residency": np.array([[0, 1, 2], [255, 255, 255]] * 3),
        "dropped": np.array([[0, 1, 255], [255, 255, 255]] * 3),
        "logits": np.array(
            [[NAN] * 4] * 3 + [[-INF, MOST, -MOST, LEAST], [-INF, -INF, -INF, 0], [0] * 4],
            np.float32,
        ),
        "gate_input": np.array([[NAN] * 2, [MOST, -MOST], [MOST, MOST]] * 2, np.float32),
    }
    steps = {
        **place,
        "step": step,
        "token": np.array([0, last, -1]),
        "piece": [b"", b"\0\xff\n", None],
        "wall_ms": np.array([0, 1e308, NAN]),
        "io_ms": np.array([NAN, NAN, 5e-324]),
        "stall_ms": np.array([NAN, 0, 0]),
        "read_bytes": np.array([0, np.iinfo(np.int64).max, -1]),
        "lookups": np.array([0, last, -1]),
        "hits": np.array([0, last, -1]),
        "embedding": np.array([[NAN] * 2, [MOST, -MOST], [LEAST, 0]], np.float32),
    }
    return routing, steps


def write(
    path: Path,
    of_facts: TraceFacts,
    of_layers: list[dict[str, Any]],
    routing: dict[str, Any],
    steps: dict[str, Any],
) -> None:
    with TraceWriter(path, of_facts, top_k=TOP_K, n_expert=N_EXPERT, n_embd=N_EMBD) as writer:
        writer.write_layers(of_layers)
        writer.write_pass(routing, steps)


def check(trace: Trace) -> None:
    routing, steps = rows()
    found = trace.routing(list(routing))
    for name, values in routing.items():
        expected = np.broadcast_to(values, found[name].shape)
        assert np.array_equal(
            found[name], expected, equal_nan=name in ("weights", "logits", "gate_input")
        ), name
    found = trace.steps(list(steps))
    assert found.pop("piece").tolist() == steps.pop("piece")
    for name, values in steps.items():
        floats = found[name].dtype.kind == "f"
        assert np.array_equal(
            found[name], np.broadcast_to(values, found[name].shape), equal_nan=floats
        ), name
    assert trace.kept.all()
    assert trace.expert_bytes.tolist() == [1, 1 << 40]
    for layer in layers():
        for name in ("router_matrix", "router_bias", "selection_bias", "norm_weight"):
            array = trace.layer_array(layer["layer"], name)
            if name in layer:
                assert array is not None
                assert array.ravel().tobytes() == layer[name].tobytes()
            else:
                assert array is None


def test_every_legal_extreme_comes_back(tmp_path: Path) -> None:
    write(tmp_path / "run.trace", facts(), layers(), *rows())
    trace = Trace.open(tmp_path / "run.trace")
    check(trace)
    assert replace(trace.facts, complete=False) == facts()
    write_trace(trace, tmp_path / "copy.trace")
    check(Trace.open(tmp_path / "copy.trace"))


def test_the_largest_model_comes_back(tmp_path: Path) -> None:
    most = 1 << 16
    of_facts = TraceFacts(ModelFacts("x", "x", 1, most, most), source="recorded")
    routing = {"turn": 0, "pass": 0, "phase": 1, "step": np.array([0]), "layer": np.array([0])}
    routing["experts"] = np.arange(most)[::-1][None]
    steps = {name: routing[name] for name in ("turn", "pass", "phase", "step")}
    with TraceWriter(tmp_path / "run.trace", of_facts, top_k=most) as writer:
        writer.write_pass(routing, steps)
    experts = Trace.open(tmp_path / "run.trace").routing(["experts"])["experts"]
    assert np.array_equal(experts, routing["experts"])


def setting(name: str, place: Any, value: Any) -> Change:
    def change(columns: dict[str, Any]) -> None:
        if place is None:
            columns[name] = value
        else:
            columns[name] = np.array(columns[name])
            columns[name][place] = value

    return change


ILLEGAL_ROWS = {
    "a logit of nan": setting("logits", (3, 1), NAN),
    "a logit of +inf": setting("logits", (3, 1), INF),
    "every expert masked": setting("logits", 3, -INF),
    "a gate input of -inf": setting("gate_input", (1, 0), -INF),
    "a gate input partly nan": setting("gate_input", (1, 0), NAN),
    "a weight of inf": setting("weights", (0, 0), INF),
    "a weight below 0": setting("weights", (0, 0), -LEAST),
    "an expert too many": setting("experts", (0, 0), N_EXPERT),
    "an expert that wraps to 0": setting("experts", (1, 2), 1 << 16),
    "an expert twice": setting("experts", (0, 0), 2),
    "a layer that wraps to 0": setting("layer", slice(0, 3), 1 << 16),
    "a negative layer": setting("layer", slice(0, 3), -1),
    "a step that wraps": setting("step", slice(0, 6, 3), (1 << 32) + 3),
    "a phase of 2": setting("phase", None, 2),
    "a negative turn": setting("turn", None, -1),
    "residency of 3": setting("residency", (0, 0), 3),
    "residency that wraps to 0": setting("residency", (0, 0), 256),
    "dropped of 2": setting("dropped", (0, 0), 2),
}
ILLEGAL_STEPS = {
    "a time of inf": setting("wall_ms", 0, INF),
    "a time below 0": setting("io_ms", 2, -1.0),
    "a count of -2": setting("hits", 0, -2),
    "a token that wraps": setting("token", 0, 1 << 32),
    "an embedding of inf": setting("embedding", (1, 0), INF),
}
ILLEGAL_LAYERS = {
    "a bias of +inf": setting("router_bias", 1, INF),
    "a selection bias of nan": setting("selection_bias", 1, NAN),
    "a matrix of -inf": setting("router_matrix", 1, -INF),
    "a norm weight of inf": setting("norm_weight", 0, INF),
    "a matrix too small": setting("router_matrix", None, np.zeros(7, np.float32)),
    "a bias too long": setting("router_bias", None, np.zeros(5, np.float32)),
    "experts of 0 bytes": setting("expert_bytes", None, 0),
    "experts of too many bytes": setting("expert_bytes", None, (1 << 40) + 1),
    "a layer past the model": setting("layer", None, 1 << 15),
    "a layer that wraps to 0": setting("layer", None, 1 << 16),
    "a layer twice": setting("layer", None, 0),
}
ILLEGAL_FACTS = {
    "an epsilon of inf": {"norm_eps": INF},
    "an epsilon of nan": {"norm_eps": NAN},
    "no layers": {"n_layer": 0},
    "too many layers": {"n_layer": (1 << 15) + 1},
    "groups that do not divide": {"n_group": 3},
    "an unknown gating": {"gating": "tanh"},
}


@pytest.mark.parametrize("change", ILLEGAL_ROWS.values(), ids=ILLEGAL_ROWS)
def test_illegal_routings_are_refused(change: Change, tmp_path: Path) -> None:
    routing, steps = rows()
    change(routing)
    with pytest.raises((TraceError, ValueError)):
        write(tmp_path / "run.trace", facts(), layers(), routing, steps)
    assert not (tmp_path / "run.trace").exists()


@pytest.mark.parametrize("change", ILLEGAL_STEPS.values(), ids=ILLEGAL_STEPS)
def test_illegal_steps_are_refused(change: Change, tmp_path: Path) -> None:
    routing, steps = rows()
    change(steps)
    with pytest.raises((TraceError, ValueError)):
        write(tmp_path / "run.trace", facts(), layers(), routing, steps)
    assert not (tmp_path / "run.trace").exists()


@pytest.mark.parametrize("change", ILLEGAL_LAYERS.values(), ids=ILLEGAL_LAYERS)
def test_illegal_layers_are_refused(change: Change, tmp_path: Path) -> None:
    table = layers()
    change(table[1])
    with pytest.raises((TraceError, ValueError)):
        write(tmp_path / "run.trace", facts(), table, *rows())
    assert not (tmp_path / "run.trace").exists()


@pytest.mark.parametrize("model", ILLEGAL_FACTS.values(), ids=ILLEGAL_FACTS)
def test_illegal_facts_are_refused(model: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        write(tmp_path / "run.trace", facts(**model), layers(), *rows())
    assert not (tmp_path / "run.trace").exists()


def a_decode_pass(number: int, step: int, **other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    place = {"turn": 1, "pass": number, "phase": 1, "step": np.array([step]), **other}
    routing = {"layer": np.array([0, 1]), "experts": np.array([[0, 1, 2]] * 2)}
    return {**place, **routing, "step": np.array([step] * 2)}, place


def lacking_layer_1(number: int, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    routing, steps = a_decode_pass(number, step)
    return {
        name: values[:1] if np.ndim(values) else values for name, values in routing.items()
    }, steps


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (a_decode_pass(6, 9), "row 2: turn 1 goes from step 4 to step 9"),
        (a_decode_pass(6, 5, turn=0), "row 2, column turn: 0 follows 1"),
        (lacking_layer_1(6, 5), "row 2: the decode pass of turn 1, step 5 lacks layer 1"),
        (a_decode_pass(8, 5), "pass 8 was written after pass 5"),
        (a_decode_pass(5, 5), "pass 5 was written after pass 5"),
    ],
)
def test_a_pass_that_does_not_follow_what_was_flushed(
    second: tuple[dict[str, Any], dict[str, Any]], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.trace"
    writer = TraceWriter(path, facts(), top_k=TOP_K, threaded=False)
    writer.write_pass(*a_decode_pass(5, 4))
    writer.flush()
    writer.write_pass(*second)
    with pytest.raises((TraceError, ValueError), match=sentence):
        writer.close()
    assert Trace.open(path).n_rows == 2

"""From evaluations to turns and passes, and the rule of selection; without torch."""

from types import SimpleNamespace

import numpy as np
import pytest
from cli_helpers import run

from tracekit.hooks.forward import Forward, Routed, length_of
from tracekit.hooks.routers import Router, routers_of
from tracekit.hooks.rule import Given, rule_of
from tracekit.hooks.turns import Turns
from tracekit.trace import TracekitError

N_EXPERT = 6


def forward(tokens, past=None, mask=None, **kind):
    """Return an evaluation whose first expert is the token's id, of layers 1 and 3."""
    tokens = np.atleast_2d(tokens)
    flat = tokens.reshape(-1, 1)
    routed = Routed(
        ids=np.hstack([flat % N_EXPERT, (flat + 1) % N_EXPERT]),
        weights=np.tile(np.float32([0.75, 0.25]), (len(flat), 1)),
        logits=np.zeros((len(flat), N_EXPERT), np.float32),
        gate_input=None,
    )
    mask = None if mask is None else np.array(mask, bool)
    return Forward(*tokens.shape, past, tokens, mask, routed={1: routed, 3: routed}, **kind)


def passes(*forwards):
    """Return (turn, pass, phase, steps, tokens) of each pass that the evaluations make."""
    made = []

    def write(routing, steps):
        n = len(steps["step"])
        assert routing["layer"].tolist() == [1] * n + [3] * n
        assert routing["step"].tolist() == steps["step"].tolist() * 2
        np.testing.assert_array_equal(routing["experts"][:n, 0], steps["token"] % N_EXPERT)
        place = [int(np.unique(steps[name]).item()) for name in ("turn", "pass", "phase")]
        made.append((*place, steps["step"].tolist(), steps["token"].tolist()))

    turns = Turns(write)
    for each in forwards:
        turns.add(each)
    turns.end_batch()
    return made


GENERATED = {"generates": True}
FIRST = {"generates": True, "begins": True}


def test_a_call_of_generate_is_a_turn():
    assert passes(
        forward([5, 6, 7], 0, **FIRST),
        forward([8], 3, **GENERATED),
        forward([9], 0, **FIRST),
        forward([10], 1, **GENERATED),
    ) == [
        (0, 0, 0, [0, 1, 2], [5, 6, 7]),
        (0, 1, 1, [3], [8]),
        (1, 2, 0, [0], [9]),
        (1, 3, 1, [1], [10]),
    ]


def test_drafted_tokens_decode_together_and_are_taken_back():
    assert passes(
        forward([5, 6], 0, **FIRST),
        forward([7, 8, 9], 2, **GENERATED),
        forward([10, 11], 3, **GENERATED),  # 8 and 9 were rejected
    ) == [
        (0, 0, 0, [0, 1], [5, 6]),
        (0, 1, 1, [2, 3, 4], [7, 8, 9]),
        (0, 2, 1, [3, 4], [10, 11]),
    ]


def test_a_prompt_in_chunks_is_a_prompt():
    """The model is called by the user: only the cache shows where a turn begins."""
    assert passes(
        forward([5, 6], 0),
        forward([7, 8], 2),
        forward([9], 4),
        forward([5, 6], 0),
    ) == [
        (0, 0, 0, [0, 1], [5, 6]),
        (0, 1, 0, [2, 3], [7, 8]),
        (0, 2, 1, [4], [9]),
        (1, 3, 0, [0, 1], [5, 6]),
    ]


def test_sequences_of_a_batch_follow_each_other_without_their_padding():
    assert passes(
        forward([[5, 6, 7], [0, 0, 8]], 0, [[1, 1, 1], [0, 0, 1]], **FIRST),
        forward([[9], [10]], 3, [[1, 1, 1, 1], [0, 0, 1, 1]], **GENERATED),
    ) == [
        (0, 0, 0, [0, 1, 2], [5, 6, 7]),
        (0, 1, 1, [3], [9]),
        (1, 2, 0, [0], [8]),
        (1, 3, 1, [1], [10]),
    ]


def test_a_sequence_that_has_ended_waits_for_the_others():
    assert passes(
        forward([[5], [6]], 0, **FIRST),
        forward([[2], [7]], 1, ends_text={2}, **GENERATED),
        forward([[0], [8]], 2, ends_text={2}, **GENERATED),
    ) == [
        (0, 0, 0, [0], [5]),
        (1, 1, 0, [0], [6]),
        (1, 2, 1, [1], [7]),
        (1, 3, 1, [2], [8]),
    ]


def test_a_batch_that_changes_is_refused():
    with pytest.raises(TracekitError, match="went on with 1 sequences after 2"):
        passes(forward([[5], [6]], 0, **FIRST), forward([[7]], 1, **GENERATED))


def test_a_cache_that_has_no_length_is_not_known():
    assert length_of(SimpleNamespace(get_seq_length=lambda: 7)) == 7
    assert length_of(SimpleNamespace()) is None


# ---- the rule -------------------------------------------------------------------------------


def given(gate, bias=None, n=40, k=2, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((n, N_EXPERT)).astype(np.float32)
    scores = gate(logits) if bias is None else gate(logits) + bias
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    router = Router(0, "r", SimpleNamespace(), None, np.zeros((1, 1)), None, bias, "float32", 1)
    return Given(router, logits, 2.5 * np.take_along_axis(gate(logits), ids, axis=1), ids)


GATES = {
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt-softplus": lambda x: np.sqrt(np.log1p(np.exp(x))),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gating", GATES)
def test_the_gating_is_told_from_the_weights(gating, biased):
    bias = np.linspace(-0.5, 0.5, N_EXPERT, dtype=np.float32) if biased else None
    found = rule_of("any", [given(GATES[gating], bias)])
    assert (found.rule.gating, found.missed, found.routings) == (gating, 0, 40)


def test_a_rule_that_is_not_known_is_noticed():
    assert rule_of("any", [given(lambda x: x**2)]).rule.gating is None
    biased = given(GATES["sigmoid"], np.linspace(-1, 1, N_EXPERT, dtype=np.float32))
    unsaid = Given(given(GATES["sigmoid"]).router, biased.logits, biased.weights, biased.ids)
    found = rule_of("any", [unsaid])
    assert found.rule.gating == "sigmoid"
    assert found.missed > 10


@pytest.mark.parametrize("kind", ["dbrx", "jetmoe", "switch_transformers", "llama4", "gemma4"])
def test_a_family_is_refused_by_its_name(kind):
    model = SimpleNamespace(config=SimpleNamespace(model_type=kind))
    with pytest.raises(TracekitError, match=f"Models of the type {kind} are not recorded"):
        routers_of(model)


# ---- the command ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--backend", "tgi"], "--backend takes llama.cpp or transformers, not 'tgi'."),
        (["--backend", "transformers"], "needs the folder of a model; name the one with its"),
        (["--backend", "transformers", "model.gguf"], "model.gguf is none: name the one"),
        (["--backend", "transformers", ".", "--stream"], "--stream is an option of llama.cpp"),
        (["--backend", "transformers", "."], "There is no prompt; give one with -p"),
        (["."], ". is a folder; name a GGUF file, or add --backend transformers."),
    ],
)
def test_a_wrong_backend_is_refused(args, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("record", *args, "-o", "x.trace")
    assert done.code == 2
    assert sentence in done.err
    assert not list(tmp_path.iterdir())

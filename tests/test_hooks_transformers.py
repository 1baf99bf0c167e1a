"""Recording from transformers: tiny random models of several families, run for real.

torch is no dependency of the other tests: these run with ``pip install 'tracekit[hf]'``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run
from tiny_transformers import FAMILIES, N_EXPERT, N_LAYER, SMALL, TOP_K, Tokenizer, tiny, watched

import tracekit
from tracekit import meter
from tracekit.hooks.forward import Hooks
from tracekit.hooks.routers import routers_of
from tracekit.trace import Trace, TracekitError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # those of torch and transformers are not ours
]


@pytest.fixture(scope="module", autouse=True)
def torch():
    """Skip where torch or transformers is missing: only the extra hf brings them."""
    reason = "needs torch and transformers: pip install 'tracekit[hf]'"
    pytest.importorskip("transformers", reason=reason)
    return pytest.importorskip("torch", reason=reason)


PROMPTS = ["Once upon a time", "the cat"]


def recorded(model, path, **how):
    how = {"n_decode": 12, "ignore_eos": True, **how}
    tracekit.record_transformers(model, Tokenizer(), PROMPTS, path, **how)
    return Trace.open(path)


def sets(ids):
    return np.sort(ids, axis=-1)


def by_layer(trace, layer):
    """Return the experts of all routings of a layer, in the order of pass and step."""
    rows = trace.routing(["layer", "experts"])
    return rows["experts"][rows["layer"] == layer]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_is_recorded_as_it_routes(kind, tmp_path, torch):
    model = tiny(kind)
    calls = watched(model)
    trace = recorded(model, tmp_path / "x.trace")
    (control,) = tracekit.predict(trace, ["ctrl"]).rows
    assert control.slot_accuracy == 1
    assert control.routings == 24 * len(trace.moe_layers)
    for layer in trace.moe_layers.tolist():
        own = [call for call in calls if f".{layer}." in call.router]
        ids = torch.cat([call.ids for call in own]).numpy()
        np.testing.assert_array_equal(sets(by_layer(trace, layer)), sets(ids))
    weights = trace.routing(["weights"])["weights"]
    assert (weights[:, :-1] >= weights[:, 1:]).all()
    given = np.sort(torch.cat([call.weights for call in calls]).detach().numpy().ravel())
    np.testing.assert_allclose(np.sort(weights.ravel()), given, rtol=1e-6)
    model_facts = trace.facts.model
    assert (model_facts.arch, model_facts.n_expert, model_facts.top_k) == (kind, N_EXPERT, TOP_K)
    assert model_facts.n_layer == N_LAYER
    assert trace.facts.model.gating == GATING[kind]


GATING = {
    "qwen3_moe": "softmax",
    "mixtral": "softmax",
    "olmoe": "softmax",
    "gpt_oss": "logits",
    "deepseek_v3": "sigmoid",
    "granitemoe": "logits",
}


def test_the_sizes_and_the_places(tmp_path):
    model = tiny("deepseek_v3")
    trace = recorded(model, tmp_path / "x.trace")
    assert trace.moe_layers.tolist() == [1, 2]
    assert trace.expert_bytes.tolist() == [3 * 32 * 16 * 4] * 2  # three matrices of float32
    assert (trace.layer_columns["dense_bytes"] > 0).all()
    assert (trace.facts.model.n_group, trace.facts.model.n_group_used) == (4, 2)
    assert trace.layer_array(1, "selection_bias") is not None
    steps = trace.steps(["turn", "pass", "step", "phase", "token", "piece", "wall_ms"])
    lengths = [len(prompt) for prompt in PROMPTS]
    assert np.bincount(steps["turn"]).tolist() == [n + 12 for n in lengths]
    assert np.bincount(steps["turn"][steps["phase"] == 0]).tolist() == lengths
    assert len(np.unique(steps["pass"])) == 2 * 13
    assert steps["step"].tolist() == [step for n in lengths for step in range(n + 12)]
    assert steps["token"][: lengths[0]].tolist() == Tokenizer()(PROMPTS[0])["input_ids"]
    assert steps["piece"][0] == Tokenizer().decode(steps["token"][:1]).encode()
    assert (steps["wall_ms"][steps["phase"] == 1] > 0).all()
    costs = trace.steps(["start_s", "cpu_ms", "major_faults", "mem_available_bytes"])
    decoded = steps["phase"] == 1
    assert (np.diff(costs["start_s"][decoded]) > 0).all()
    assert costs["start_s"][~np.isnan(costs["start_s"])][0] == 0
    assert costs["cpu_ms"][decoded].sum() > 0
    assert (costs["major_faults"][decoded] >= 0).all()
    left = meter.available_bytes()
    assert left is None or (costs["mem_available_bytes"][decoded] > 0).all()
    assert trace.facts.captured == ["logits", "gate_input"]
    assert trace.facts.prompts == PROMPTS
    assert trace.facts.engine.name == "transformers"
    assert (trace.facts.complete, trace.facts.ended) == (True, "length")


def test_a_padded_batch_routes_as_its_sequences_do_alone(tmp_path, torch):
    model = tiny("qwen3_moe")
    ids = [Tokenizer()(prompt)["input_ids"] for prompt in PROMPTS]
    longest = max(map(len, ids))
    padded = torch.tensor([[0] * (longest - len(each)) + each for each in ids])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in ids])
    with tracekit.recording(model, tmp_path / "batch.trace") as done:
        model.generate(
            input_ids=padded,
            attention_mask=mask,
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=None,
        )
    assert (done.n_turns, done.n_prefilled, done.n_decoded) == (2, sum(map(len, ids)), 16)
    batch = Trace.open(tmp_path / "batch.trace")
    alone = recorded(model, tmp_path / "alone.trace", n_decode=8)
    assert batch.n_rows == alone.n_rows
    for name in ("turn", "pass", "step", "phase", "layer"):
        np.testing.assert_array_equal(batch.routing([name])[name], alone.routing([name])[name])
    for name in ("logits", "gate_input"):  # padded sums are rounded otherwise
        np.testing.assert_allclose(
            batch.routing([name])[name], alone.routing([name])[name], atol=1e-4
        )
    same = sets(batch.routing(["experts"])["experts"]) == sets(
        alone.routing(["experts"])["experts"]
    )
    assert same.mean() > 0.99


def test_the_cache_says_where_an_evaluation_begins():
    model, seen = tiny("mixtral"), []
    hooks = Hooks(model, routers_of(model), seen.append)
    model.generate(**_inputs(), max_new_tokens=4, eos_token_id=None)
    hooks.remove()
    assert [(each.past, each.n_tokens) for each in seen] == [(0, 16), (16, 1), (17, 1), (18, 1)]


def test_a_generate_of_the_users_own_comes_back():
    model = tiny("mixtral")
    Hooks(model, routers_of(model), [].append).remove()
    assert "generate" not in vars(model)
    own = model.generate = lambda **how: None
    Hooks(model, routers_of(model), [].append).remove()
    assert model.generate is own


def test_what_the_user_runs_is_followed(tmp_path, torch):
    """A loop of the user's own: the prompt in two parts, then tokens one by one; and again."""
    from transformers import DynamicCache

    model = tiny("mixtral")
    tokens = torch.tensor([Tokenizer()(PROMPTS[0])["input_ids"]])
    with tracekit.recording(model, tmp_path / "x.trace", logits=False), torch.no_grad():
        for _ in range(2):
            cache = DynamicCache()
            for part in (tokens[:, :10], tokens[:, 10:], tokens[:, :1], tokens[:, 1:2]):
                model(input_ids=part, past_key_values=cache)
    trace = Trace.open(tmp_path / "x.trace")
    steps = trace.steps(["turn", "pass", "step", "phase"])
    assert np.unique(steps["pass"]).tolist() == list(range(8))
    assert steps["step"].tolist() == [*range(18), *range(18)]
    assert np.bincount(steps["turn"]).tolist() == [18, 18]
    assert [steps["phase"][steps["pass"] == n].max() for n in range(4)] == [0, 0, 1, 1]
    assert not trace.has("logits")
    assert "generate" not in vars(model)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("llama4_text", {"num_local_experts": 4, "intermediate_size_mlp": 48}),
        ("jetmoe", {"num_local_experts": 4, "kv_channels": 8}),
    ],
)
def test_a_family_that_is_not_recorded_is_named(kind, sizes, tmp_path):
    model = tiny(kind, **sizes)
    with (
        pytest.raises(TracekitError, match=f"Models of the type {kind} are not recorded"),
        tracekit.recording(model, tmp_path / "x.trace"),
    ):
        pytest.fail("the block must not run")
    assert not os.listdir(tmp_path)


def test_a_model_without_experts_is_refused(tmp_path):
    with (
        pytest.raises(TracekitError, match="LlamaForCausalLM has no layer with experts"),
        tracekit.recording(tiny("llama"), tmp_path / "x.trace"),
    ):
        pytest.fail("the block must not run")


def test_a_block_that_runs_nothing_writes_nothing(tmp_path):
    with (
        pytest.raises(TracekitError, match="The model evaluated nothing"),
        tracekit.recording(tiny("mixtral"), tmp_path / "x.trace"),
    ):
        pass
    assert not os.listdir(tmp_path)


def test_an_error_leaves_what_was_recorded(tmp_path):
    model = tiny("mixtral")

    def fail():
        with tracekit.recording(model, tmp_path / "x.trace"):
            model.generate(**_inputs(), max_new_tokens=5, do_sample=False, eos_token_id=None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    trace = Trace.open(tmp_path / "x.trace")
    assert not trace.complete
    assert trace.n_decoded == 4
    # The hooks are off: the model runs as before.
    model.generate(**_inputs(), max_new_tokens=2)


def _inputs():
    import torch

    ids = torch.tensor([Tokenizer()(PROMPTS[0])["input_ids"]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_a_model_that_passes_its_routers_by_is_noticed(tmp_path):
    """As a compiled graph does: what the hooks are on does not run."""
    model = tiny("mixtral")

    def generate():
        with tracekit.recording(model, tmp_path / "x.trace"):
            model.model.layers = model.model.layers[:0]
            model.generate(**_inputs(), max_new_tokens=2)

    with pytest.raises(TracekitError, match=r"none of its routers was seen; torch.compile"):
        generate()
    assert not os.listdir(tmp_path)


def test_rounded_routers_are_told(tmp_path, torch):
    model = tiny("qwen3_moe").to(torch.bfloat16)
    trace = recorded(model, tmp_path / "x.trace")
    assert trace.facts.notes["router_types"] == {"BF16": [0, 1, 2]}
    assert trace.facts.model.quantisation == "BF16"
    (control,) = tracekit.predict(trace, ["ctrl"]).rows
    assert control.slot_accuracy > 0.95


def test_a_killed_recording_keeps_its_passes(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import tracekit
from tiny_transformers import Tokenizer, tiny
tracekit.record_transformers(
    tiny("mixtral"), Tokenizer(), ["Once upon a time"], {str(tmp_path / "x.trace")!r},
    n_decode=200, ignore_eos=True, on_turn=lambda *_: None,
)
"""
    running = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(tmp_path.glob("x.trace/steps-*.parquet")) and time.monotonic() < until:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    trace = Trace.open(tmp_path / "x.trace")
    assert trace.n_rows >= 16 * N_LAYER
    assert not trace.complete


def model_folder(folder):
    """Write a tiny model with a tokenizer of single letters, as from_pretrained reads it."""
    tiny("olmoe").save_pretrained(folder)
    letters = [chr(32 + n) for n in range(SMALL["vocab_size"])]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": ""},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {letter: n for n, letter in enumerate(letters)},
            "unk_token": " ",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": '"', "pad_token": " "}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_the_command_records_a_folder(tmp_path):
    folder = model_folder(tmp_path / "model")
    done = run(
        *("record", "--backend", "transformers", folder, "-p", "Once", "-p", "the cat", "-n", "6"),
        *("--ignore-eos", "--text", "-o", tmp_path / "x.trace"),
    )
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) >= 2
    assert "Recorded 2 turns to" in done.err
    assert "11 prompt and 12 decoded tokens; ended: length." in done.err
    trace = Trace.open(tmp_path / "x.trace")
    assert trace.facts.prompts == ["Once", "the cat"]
    assert run("predict", tmp_path / "x.trace", "--predictor", "ctrl").out.startswith(
        "ctrl 100.0 %"
    )


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    done = run(
        *("record", "--backend", "transformers", tmp_path / "model", "-p", "a"),
        *("-o", tmp_path / "x.trace"),
    )
    assert done.code == 1
    assert "transformers cannot load" in done.err
    assert "Traceback" not in done.err
    assert os.listdir(tmp_path) == ["model"]

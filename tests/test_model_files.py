"""What safetensors files and a config.json say of a model, and ``tracekit import --model``."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run
from model_file_samples import (
    CONFIG,
    EXPERT_BYTES,
    INNER,
    MOE_LAYERS,
    N_EXPERT,
    N_LAYER,
    TOP_K,
    WIDTH,
    around,
    bf16,
    norm,
    per_expert,
    router,
    safetensors,
)
from mutations import SENTENCE, mutate, not_one_sentence, time_limit

from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.model_files import ModelSizes, read_model
from tracekit.trace import TracekitError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "model"


def save(folder: Path, tensors, name: str = "model.safetensors") -> Path:
    (folder / name).write_bytes(safetensors(tensors))
    return folder / name


def configured(folder: Path, **changes) -> None:
    kept = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def sizes(model: ModelSizes) -> dict[int, int]:
    return {row["layer"]: row["expert_bytes"] for row in model.layers}


def sentence_of(path: Path, **named) -> str:
    with time_limit(20), pytest.raises(TracekitError) as error:
        read_model(path, **named)
    assert SENTENCE.fullmatch(str(error.value)), str(error.value)
    return str(error.value)


# ---- safetensors --------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["mlp", "block_sparse_moe", "feed_forward"])
def test_experts_in_tensors_of_their_own(folder, block):
    path = save(folder, per_expert(block))
    for named in (folder, path):
        model = read_model(named)
        assert sizes(model) == dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)
        facts = model.facts
        assert (facts.n_layer, facts.n_expert, facts.top_k) == (N_LAYER, N_EXPERT, TOP_K)
        assert (facts.n_embd, facts.gating, facts.norm_eps) == (WIDTH, "softmax", 1e-6)
        assert (facts.name, facts.arch, facts.quantisation) == ("model", "qwen3_moe", "BF16")
        assert model.estimated is None
        for row in model.layers:
            assert np.array_equal(row["router_matrix"], router(row["layer"]))
            assert np.array_equal(row["norm_weight"], norm(row["layer"]))
            # The router, the norm and one projection.
            assert row["dense_bytes"] == 2 * (N_EXPERT * WIDTH + WIDTH + WIDTH * WIDTH)


def test_stacked_experts(folder):
    tensors = {}
    for layer in MOE_LAYERS:
        prefix = f"model.layers.{layer}.mlp.experts"
        tensors |= around(layer)
        tensors[f"{prefix}.gate_up_proj"] = bf16(np.ones((N_EXPERT, WIDTH, 2 * INNER)))
        tensors[f"{prefix}.down_proj"] = bf16(np.ones((N_EXPERT, INNER, WIDTH)))
    save(folder, tensors)
    assert sizes(read_model(folder)) == dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)


def test_gpt_oss_blocks_scales_and_biases(folder):
    configured(
        folder,
        model_type="gpt_oss",
        num_experts=None,
        num_local_experts=N_EXPERT,
        mlp_only_layers=None,
        num_hidden_layers=2,
    )
    tensors = {}
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp"
        tensors |= around(layer, "mlp.router")
        tensors[f"{prefix}.router.bias"] = bf16(np.arange(N_EXPERT))
        tensors[f"{prefix}.experts.gate_up_proj_blocks"] = np.ones((N_EXPERT, 8, 1, 8), np.uint8)
        tensors[f"{prefix}.experts.gate_up_proj_scales"] = np.ones((N_EXPERT, 8, 1), np.uint8)
        tensors[f"{prefix}.experts.gate_up_proj_bias"] = bf16(np.ones((N_EXPERT, 8)))
        tensors[f"{prefix}.experts.down_proj_blocks"] = np.ones((N_EXPERT, 16, 1, 2), np.uint8)
    save(folder, tensors)
    model = read_model(folder)
    assert sizes(model) == dict.fromkeys(range(2), 64 + 8 + 16 + 32)
    assert model.facts.gating == "logits"
    assert np.array_equal(model.layers[1]["router_bias"], np.arange(N_EXPERT))
    assert np.array_equal(model.layers[1]["router_matrix"], router(1))


def test_granite_s_linear_layers(folder):
    configured(folder, model_type="granitemoe", num_experts=None, num_local_experts=N_EXPERT)
    tensors = {}
    for layer in MOE_LAYERS:
        prefix = f"model.layers.{layer}.block_sparse_moe"
        tensors |= around(layer, "block_sparse_moe.router.layer")
        tensors[f"{prefix}.input_linear.weight"] = bf16(np.ones((N_EXPERT, 2 * INNER, WIDTH)))
        tensors[f"{prefix}.output_linear.weight"] = bf16(np.ones((N_EXPERT, WIDTH, INNER)))
    save(folder, tensors)
    model = read_model(folder)
    assert sizes(model) == dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)
    assert np.array_equal(model.layers[0]["router_matrix"], router(1))


def test_deepseek_s_selection_bias_groups_and_later_layers(folder):
    configured(
        folder,
        model_type="deepseek_v3",
        num_experts=None,
        n_routed_experts=N_EXPERT,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
    )
    tensors = per_expert()
    for layer in MOE_LAYERS:
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        tensors[name] = np.arange(N_EXPERT, dtype=np.float32)
    # A layer that predicts tokens further on, shared experts, and scales of whole tensors.
    tensors[f"model.layers.{N_LAYER}.mlp.experts.0.up_proj.weight"] = bf16(np.ones(7))
    tensors["mtp.layers.0.mlp.experts.0.up_proj.weight"] = bf16(np.ones(7))
    tensors["model.layers.1.mlp.shared_experts.up_proj.weight"] = bf16(np.ones(7))
    save(folder, tensors)
    model = read_model(folder)
    assert sizes(model) == dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)
    facts = model.facts
    assert (facts.gating, facts.n_group, facts.n_group_used) == ("sigmoid", 4, 2)
    assert np.array_equal(model.layers[0]["selection_bias"], np.arange(N_EXPERT))


def test_files_of_several_parts(folder):
    tensors = list(per_expert().items())
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    for n, name in enumerate(names):
        save(folder, dict(tensors[n::3]), name)
    expected = dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)
    assert sizes(read_model(folder / names[0])) == expected
    assert sizes(read_model(folder)) == expected
    assert "is part 2 of a split model; name its first" in sentence_of(folder / names[1])
    index = {"weight_map": {name: names[n % 3] for n, (name, _) in enumerate(tensors)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save(folder, {"layers.0.feed_forward.experts.0.w1.weight": bf16(np.ones(3))}, "old.safetensors")
    assert sizes(read_model(folder)) == expected
    (folder / names[2]).unlink()
    assert f"{names[2]}, which is not beside it" in sentence_of(folder)
    assert f"{names[2]} is not beside it" in sentence_of(folder / names[0])


def test_a_part_of_a_model_alone_is_refused(folder):
    tensors = per_expert()
    del tensors["model.layers.2.mlp.experts.7.up_proj.weight"]
    for name in ("gate_proj", "up_proj", "down_proj"):
        tensors.pop(f"model.layers.2.mlp.experts.7.{name}.weight", None)
    save(folder, tensors)
    assert "layer 2, holds 7 of 8 experts" in sentence_of(folder)


def test_a_safetensors_file_without_a_config_needs_top_k(tmp_path):
    path = save(tmp_path, per_expert())
    assert "there is no config.json beside it; give it with --top-k" in sentence_of(path)
    model = read_model(path, top_k=3)
    assert sizes(model) == dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)
    facts = model.facts
    assert (facts.top_k, facts.n_expert, facts.n_layer) == (3, N_EXPERT, N_LAYER)
    assert (facts.n_embd, facts.gating) == (WIDTH, None)


def test_what_holds_no_experts_is_refused(folder, tmp_path):
    save(folder, {"model.layers.0.mlp.up_proj.weight": bf16(np.ones(4))})
    assert "holds no experts under a name that is known" in sentence_of(folder)
    (folder / "model.safetensors").unlink()
    assert "for an estimate of the sizes" in sentence_of(folder)
    (folder / "config.json").unlink()
    assert "holds no safetensors file" in sentence_of(folder)
    assert "does not exist" in sentence_of(tmp_path / "nothing")
    (tmp_path / "text").write_text("a model")
    assert "is no model's file" in sentence_of(tmp_path / "text")


def test_a_config_of_another_number_of_experts_is_refused(folder):
    save(folder, per_expert())
    configured(folder, num_experts=6)
    assert "holds tensors of 8 experts, and the model has 6" in sentence_of(folder)


@pytest.mark.parametrize("length", [0, 1, 1 << 20, 1 << 62])
def test_a_header_that_claims_too_much_is_refused(folder, length):
    path = save(folder, per_expert())
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    sentence_of(folder)


@pytest.mark.parametrize("offsets", [[0, 1 << 60], [10, 0], [-1, 5], ["a", 2], [0], None])
def test_a_tensor_outside_of_its_file_is_refused(folder, offsets):
    header = {"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 9)
    assert "damaged or cut short" in sentence_of(folder)


@pytest.mark.parametrize("seed", range(2))
def test_mutated_files_are_read_or_refused_in_one_sentence(folder, seed):
    rng = random.Random(seed)
    sample = {
        "model.safetensors": safetensors(per_expert()),
        "config.json": json.dumps(CONFIG).encode(),
    }
    refused = []
    for _ in range(80):
        name = rng.choice(list(sample))
        for each, data in sample.items():
            # Most of the file are weights, which nobody reads.
            header, rest = (data[:4000], data[4000:]) if each == name else (data, b"")
            (folder / each).write_bytes((mutate(header, rng) if each == name else header) + rest)
        try:
            with time_limit(20):
                read_model(rng.choice([folder, folder / name]), top_k=2)
        except TracekitError as error:
            refused.append(str(error))
    assert not_one_sentence(refused) == []
    assert len(refused) > 20


# ---- config.json --------------------------------------------------------------------------------


def test_a_config_gives_an_estimate_and_says_so(folder):
    model = read_model(folder / "config.json")
    assert sizes(model) == dict.fromkeys(MOE_LAYERS, EXPERT_BYTES)
    assert model.estimated == "estimated from config.json: 3 × 16 × 4 parameters of bfloat16"
    assert model.facts.top_k == TOP_K


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"mlp_only_layers": []}, [0, 1, 2, 3, 4, 5]),
        ({"mlp_only_layers": [], "decoder_sparse_step": 2}, [1, 3, 5]),
        ({"mlp_only_layers": None, "first_k_dense_replace": 3}, [3, 4, 5]),
        ({"mlp_only_layers": None, "moe_layer_freq": [0, 1, 1, 0, 1, 1]}, [1, 2, 4, 5]),
        ({"mlp_only_layers": None, "num_dense_layers": 2}, [2, 3, 4, 5]),
        ({"mlp_only_layers": None, "expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3, 5]),
        ({"mlp_only_layers": None, "interleave_moe_layer_step": 3}, [2, 5]),
        ({"mlp_only_layers": None, "moe_layers": [4, 2]}, [2, 4]),
        ({"moe_layers_enum": "4, 5"}, [4, 5]),
        ({"mlp_layer_types": ["dense", *["sparse"] * 4, "dense"]}, [1, 2, 3, 4]),
        ({"hybrid_override_pattern": "ME*E-E"}, [1, 3, 5]),
    ],
)
def test_which_layers_are_dense(folder, changes, layers):
    configured(folder, num_hidden_layers=6, **changes)
    assert read_model(folder / "config.json").moe_layers == layers


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({"torch_dtype": "float32"}, 4),
        ({"moe_intermediate_size": [INNER] * 6}, 2),
        ({"model_type": "nemotron_h"}, 2 * 2 / 3),  # up and down, no gate
        ({"quantization_config": {"quant_method": "fp8"}}, 1),
        ({"quantization_config": {"quant_method": "mxfp4"}}, 17 / 32),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}, 4.625 / 8),
    ],
)
def test_the_size_of_a_parameter(folder, changes, each):
    configured(folder, **changes)
    (size,) = set(sizes(read_model(folder / "config.json")).values())
    assert size == round(3 * WIDTH * INNER * each)


def test_the_config_of_a_model_that_also_sees(folder):
    nested = {"model_type": "a", "vision_config": {"hidden_size": 3}, "text_config": CONFIG}
    (folder / "config.json").write_text(json.dumps(nested))
    assert read_model(folder / "config.json").facts.arch == "qwen3_moe"
    assert set(sizes(read_model(folder / "config.json")).values()) == {EXPERT_BYTES}
    text = {name: value for name, value in CONFIG.items() if name != "torch_dtype"}
    nested |= {"text_config": {**text, "dtype": None}, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(nested))
    assert set(sizes(read_model(folder / "config.json")).values()) == {2 * EXPERT_BYTES}


def test_the_config_of_a_model_whose_experts_have_a_part_of_their_own(folder):
    experts = {"ffn_hidden_size": 5, "moe_num_experts": 16, "moe_top_k": 4}
    config = {"model_type": "dbrx", "d_model": 8, "n_layers": 2, "ffn_config": experts}
    (folder / "config.json").write_text(json.dumps(config))
    model = read_model(folder / "config.json")
    assert (model.facts.n_expert, model.facts.top_k) == (16, 4)
    assert sizes(model) == dict.fromkeys([0, 1], 3 * 8 * 5 * 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": None}, "names no number of experts"),
        ({"num_experts_per_tok": None}, "give it with --top-k"),
        ({"hidden_size": None}, "does not give hidden_size"),
        ({"num_experts": "8"}, "num_experts must be a whole number"),
        ({"num_hidden_layers": 1 << 30}, "are no size of a model"),
        ({"num_experts_per_tok": 9}, "top_k = 9 experts of 8 cannot be selected"),
        ({"mlp_only_layers": [0, 1, 2]}, "leaves no layer with experts"),
        ({"quantization_config": {"quant_method": "new"}}, "how many bits a parameter has"),
    ],
)
def test_a_config_that_lacks_a_number_is_refused(folder, changes, words):
    configured(folder, **changes)
    assert words in sentence_of(folder / "config.json")


# ---- import --model -----------------------------------------------------------------------------

EXPERTS = np.random.default_rng(0).permuted(np.tile(np.arange(8), (6, 2, 1)), axis=2)[..., :2]


@pytest.fixture
def arrays(tmp_path):
    def write(**changes) -> Path:
        path = tmp_path / "run.npz"
        given = {"experts": EXPERTS, "layers": MOE_LAYERS, "prompt_lengths": [3], "lengths": [6]}
        np.savez(path, **{n: np.array(v) for n, v in (given | changes).items()})
        return path

    return write


def test_import_takes_sizes_and_routers_from_the_model(folder, arrays, tmp_path):
    save(folder, per_expert())
    out = tmp_path / "run.trace"
    done = run("import", arrays(), "--model", folder, "-o", out)
    assert done.code == 0, done.err
    trace = open_any(out)
    assert trace.expert_bytes.tolist() == [EXPERT_BYTES] * 2
    assert trace.facts.model.n_layer == N_LAYER
    assert "expert_bytes" not in trace.facts.inferred
    assert "n_expert" not in trace.facts.inferred
    assert np.array_equal(trace.layer_array(2, "router_matrix"), router(2))
    assert run("replay", out, "--policy", "lru").code == 0


def test_an_estimate_is_marked_in_the_trace(folder, arrays, tmp_path):
    out = tmp_path / "run.trace"
    done = run("import", arrays(), "--model", folder / "config.json", "-o", out)
    assert "does not say how large an expert is: estimated from config.json" in done.err
    assert open_any(out).facts.inferred["expert_bytes"].startswith("estimated from config.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": [0, 1]}, "has routings of layer 0, and {} has no experts there"),
        ({"experts": EXPERTS + 1}, "names expert 8"),
        ({"n_expert": 16}, "has 16 experts in a layer, and {} has 8"),
        ({"experts": EXPERTS[..., :1]}, "has 1 experts a token, and {} has 2"),
    ],
)
def test_a_trace_of_another_model_is_refused(folder, arrays, changes, words, tmp_path):
    path, options = arrays(**changes), ImportOptions(model=read_model(folder / "config.json"))
    expected = words.format(folder / "config.json")
    with pytest.raises(TracekitError) as error:
        open_any(path, options=options)
    assert expected in str(error.value)
    assert "so the trace is of another model; name the right one." in str(error.value)
    with pytest.raises(TracekitError):
        import_any(path, tmp_path / "x.trace", options)


def test_a_flag_against_the_model_is_refused(folder, arrays, tmp_path):
    done = run(
        "import", arrays(), "--model", folder / "config.json", "--n-expert", "9", "-o",
        tmp_path / "x.trace",
    )  # fmt: skip
    assert done.code == 2
    assert "--n-expert says 9 experts in a layer, and" in done.err

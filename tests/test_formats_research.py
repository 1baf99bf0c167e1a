"""Tables and exports of research, and router logits: every reader gives back the run that was saved."""

import io
import re
from pathlib import Path

import engine_files
import numpy as np
import pytest
from engine_files import Run, large_run, routings_of, run_of, safetensors
from format_samples import EXPERTS

from tracekit.formats import ImportOptions, ModelSizes, open_any
from tracekit.formats.all import router_logits as reader  # all: in the order of the page
from tracekit.trace import ModelFacts, TraceError, UsageError

TOP_2 = ImportOptions(top_k=2)
PROMPTS = [([9], 0), ([30], 0), ([4], 0)]
# What is saved, the options it needs, and the prompts that its run may have.
SAVED = {
    "moe_beyond": ({}, PROMPTS),
    "routing_atlas": ({}, PROMPTS),
    "glm52_export": ({}, [([9], 5), ([30], 1), ([4], 0)]),
    "layer_pairs": ({"top_k": 8}, [([9], 5), ([30], 1), ([4], 2)]),
    "flame_moe": ({"chunk": 9}, [([9, 9, 5], 0)]),
    "router_logits": ({"top_k": 8, "chunk": 9}, [([9, 9, 5], 0)]),
}


@pytest.fixture
def write(tmp_path):
    def write(content: bytes | dict[str, bytes], name: str = "saved") -> Path:
        path = tmp_path / name
        for inside, data in content.items() if isinstance(content, dict) else [(".", content)]:
            file = path / inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return path

    return write


def saved(kind: str, run: Run) -> bytes | dict[str, bytes]:
    if kind == "router_logits":
        return safetensors(engine_files.router_logits(run))
    return getattr(engine_files, kind)(run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAVED)
def test_what_a_large_model_did_is_read_back(kind, write):
    options, prompts = SAVED[kind]
    run = large_run(prompts)
    trace = open_any(write(saved(kind, run)), options=ImportOptions(**options))
    assert routings_of(trace) == run.routings()
    assert trace.complete


# ---- MoE-Beyond ---------------------------------------------------------------------------------


def test_prompts_of_a_folder_stand_in_the_order_of_their_numbers(write):
    run = run_of(EXPERTS, [([3], 0), ([2], 0), ([2], 0)], (0, 1), 8)
    files = engine_files.moe_beyond(run)
    assert list(files) == ["prompt_9_data.csv", "prompt_10_data.csv", "prompt_11_data.csv"]
    folder = write({**files, "README.md": b"what this is\n"})
    assert routings_of(open_any(folder)) == run.routings()


def test_a_batch_of_sequences_has_a_turn_each(write):
    lines = [b"Layer ID,Batch Number,Token,Activated Expert IDs,Token Embedding Vector"]
    for layer in (1, 2):
        for batch, tokens in ((0, 2), (1, 3)):
            for token in range(tokens):
                lines.append(f'{layer},{batch},t,"[{token}, {5 + layer}]","[0.5, 1.0]"'.encode())
    rows = open_any(write(b"\r\n".join([*lines, b""]))).routing(
        ["turn", "step", "layer", "experts"]
    )
    assert rows["turn"].tolist() == [0] * 4 + [1] * 6
    assert rows["step"].tolist() == [0, 1, 0, 1, 0, 1, 2, 0, 1, 2]
    assert rows["experts"][:4].tolist() == [[0, 6], [1, 6], [0, 7], [1, 7]]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (b'2,0,t,"[1]"', "row 3 after its header: '[1]' is no list of as many experts"),
        (b'2,0,t,"[1, x]"', "row 3 after its header: '[1, x]' is no list of as many experts"),
        (b"", "layer 2 has 1 tokens and others of the same sequence have more"),
    ],
)
def test_a_row_of_moe_beyond_that_is_wrong_is_named(row, sentence, write):
    rows = [b'1,0,a,"[1, 2]"', b'1,0,b,"[1, 3]"', row, b'2,0,b,"[3, 4]"']
    header = b"Layer ID,Batch Number,Token,Activated Expert IDs"
    path = write(b"".join(each + b"\n" for each in (header, *rows) if each))
    with pytest.raises(TraceError, match=re.escape(sentence)):
        open_any(path)


# ---- router logits ------------------------------------------------------------------------------


def test_logits_are_kept_and_of_equal_ones_the_lowest_id_is_taken(write):
    logits = np.float32([[0.5, 2, 0.5, 0.5], [-1, -2, -0.0, 0.0], [3, 1, 2, 3]])
    path = write(safetensors({"router_logits.4": logits, "router_logits.7": logits[::-1].copy()}))
    rows = open_any(path, options=TOP_2).routing(["layer", "experts", "logits"])
    assert rows["experts"][:3].tolist() == [[1, 0], [2, 3], [0, 3]]
    assert rows["layer"].tolist() == [4] * 3 + [7] * 3
    assert (rows["logits"][:3] == logits).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_are_those_of_a_stable_sort(seed):
    logits = np.random.default_rng(seed).integers(-4, 4, (50, 3, 16)).astype(np.float32)
    expected = np.argsort(-logits, axis=-1, kind="stable")[..., :5]
    assert (reader.largest(logits, 5) == expected).all()


@pytest.mark.parametrize("half", ["F16", "BF16"])
def test_logits_of_16_bits(half, write):
    values = np.float32([[1, 2, 3], [0.5, -1, 4]])
    stored = values.astype("<f2")
    if half == "BF16":
        stored = (values.view("<u4") >> 16).astype("<u2")
    header = f'{{"a0":{{"dtype":"{half}","shape":[2,3],"data_offsets":[0,12]}}}}'.encode()
    path = write(len(header).to_bytes(8, "little") + header + stored.tobytes())
    assert (open_any(path, options=TOP_2).routing(["logits"])["logits"] == values).all()


@pytest.mark.parametrize("names", [["arr_0", "arr_1"], ["layer_3", "layer_10"]])
def test_logits_as_npz(names, write):
    run = run_of(EXPERTS, [([7], 0)], (0, 1), 8)
    file = io.BytesIO()
    np.savez(file, **dict(zip(names, engine_files.router_logits(run).values(), strict=True)))
    trace = open_any(write(file.getvalue()), options=TOP_2)
    assert [each[-1] for each in routings_of(trace)] == [each[-1] for each in run.routings()]
    is_named = names[0] != "arr_0"
    assert trace.moe_layers.tolist() == ([3, 10] if is_named else [0, 1])
    assert ("layers" in trace.facts.inferred) != is_named


def model(**more) -> ModelSizes:
    layers = more.pop("layers", [{"layer": 2}, {"layer": 5}])
    estimated = more.pop("estimated", None)
    return ModelSizes(ModelFacts("m", "moe", 6, 8, 2, **more), layers, estimated)


def test_a_model_numbers_the_layers_and_says_k(write):
    run = run_of(EXPERTS, [([7], 0)], (0, 1), 8)
    path = write(safetensors(engine_files.router_logits(run)))
    trace = open_any(path, options=ImportOptions(model=model()))
    assert trace.moe_layers.tolist() == [2, 5]
    with pytest.raises(TraceError, match="logits of 2 layers, but the model has 1 with experts"):
        open_any(path, options=ImportOptions(model=model(layers=[{"layer": 2}])))


BIAS = [{"layer": n, "selection_bias": np.zeros(8, np.float32)} for n in (2, 5)]


@pytest.mark.parametrize(
    ("of_model", "why"),
    [
        (model(n_group=4, n_group_used=2), "masks 2 of 4 groups of experts"),
        (model(layers=BIAS), "adds a bias to the scores"),
        (model(gating="sigmoid", estimated="from config.json"), "as its family does"),
    ],
)
def test_logits_of_biased_or_grouped_selection_are_refused(of_model, why, write):
    path = write(safetensors(engine_files.router_logits(run_of(EXPERTS, [([7], 0)], (0, 1), 8))))
    with pytest.raises(TraceError, match=f"the model .*{why}.* not what it selected"):
        open_any(path, options=ImportOptions(model=of_model))


def test_logits_that_are_not_known_are_refused(write):
    arrays = engine_files.router_logits(run_of(EXPERTS, [([7], 0)], (0, 1), 8))
    arrays["router_logits.1"][3, 2] = np.nan
    with pytest.raises(TraceError, match="token 3 at layer 1 are nan or infinite"):
        open_any(write(safetensors(arrays)), options=TOP_2)


def test_a_prompt_of_too_many_logits_asks_for_passes(write, monkeypatch):
    monkeypatch.setattr("tracekit.formats.router_logits.MOST_VALUES", 7 * 8 * 2 - 1)
    path = write(safetensors(engine_files.router_logits(run_of(EXPERTS, [([7], 0)], (0, 1), 8))))
    with pytest.raises(UsageError, match=r"how its 7 tokens were split in passes; .* --chunk N"):
        open_any(path, options=TOP_2)
    assert open_any(path, options=ImportOptions(top_k=2, chunk=3)).n_rows == 14


# ---- exports ------------------------------------------------------------------------------------


def test_several_checkpoints_are_no_run(write):
    run = run_of(EXPERTS, [([7], 0)], (0, 1), 8)
    files = engine_files.flame_moe(run)
    more = {name.replace("0540", "0600"): data for name, data in files.items()}
    with pytest.raises(TraceError, match="holds 2 checkpoints; name the folder of one"):
        open_any(write({**files, **more}))


def test_prompts_that_do_not_follow_each_other_are_refused(write):
    run = run_of(EXPERTS, [([3], 1), ([2], 1)], (0, 1), 8)
    content = engine_files.glm52_export(run).replace(b'"start_row": 4', b'"start_row": 5')
    with pytest.raises(TraceError, match="its prompts do not follow each other"):
        open_any(write(content))


def test_a_long_prompt_begins_with_pairs_of_one_layer(write):
    run = run_of(np.tile(EXPERTS, (50, 1, 1)), [([347], 3)], (0, 1), 8)
    path = write(engine_files.layer_pairs(run))
    with pytest.raises(UsageError, match="--top-k K"):
        open_any(path)
    assert routings_of(open_any(path, options=TOP_2)) == run.routings()

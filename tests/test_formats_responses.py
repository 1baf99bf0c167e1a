"""Answers of vLLM, SGLang and Megatron servers: every request a turn, with the prompt known."""

import base64
import json

import numpy as np
import pytest
import server_files
from format_samples import EXPERTS
from server_files import all_layers, lines, sglang, usage, vllm, vllm_lists

from tracekit.formats import ImportOptions, ModelSizes, import_any, json_objects, open_any
from tracekit.trace import ModelFacts, Trace, TraceError, UsageError

RNG = np.random.default_rng(0)


def chosen(n_tokens: int, n_layers: int = 2, n_expert: int = 8, k: int = 2) -> np.ndarray:
    """Return experts [tokens, layers, k] at random, none of them twice in a routing."""
    scores = RNG.random((n_tokens, n_layers, n_expert))
    return np.argsort(scores, -1)[..., :k]


@pytest.fixture
def opened(tmp_path):
    def write(content: bytes | dict | list, **options: object) -> Trace:
        path = tmp_path / "answers.json"
        plain = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(plain)
        return open_any(path, options=ImportOptions(**options))

    return write


def grids(trace: Trace) -> list[np.ndarray]:
    """Return the experts [tokens, layers, k] of each turn."""
    rows = trace.routing(["turn", "step", "layer", "experts"])
    layers = trace.moe_layers
    found = []
    for turn in np.unique(rows["turn"]):
        of_turn = rows["turn"] == turn
        order = np.lexsort((rows["layer"][of_turn], rows["step"][of_turn]))
        shape = (-1, len(layers), rows["experts"].shape[1])
        found.append(rows["experts"][of_turn][order].reshape(shape))
    return found


def same(trace: Trace, *expected: np.ndarray) -> bool:
    found = grids(trace)
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def phases(trace: Trace) -> list[list[int]]:
    steps = trace.steps(["turn", "phase"])
    return [steps["phase"][steps["turn"] == t].tolist() for t in np.unique(steps["turn"])]


# ---- vLLM ---------------------------------------------------------------------------------------

TWO = chosen(5), chosen(4)


@pytest.mark.parametrize("answer", [vllm, vllm_lists, server_files.megatron])
@pytest.mark.parametrize(
    "form",
    [
        lines,
        json.dumps,
        lambda answers: json.dumps(answers, indent=2),
        lambda answers: "\ufeff" + json.dumps(answers, separators=(",", ":")),
        lambda answers: "\n\n".join(json.dumps(answer, indent=1) for answer in answers),
        lambda answers: lines([{"id": "b", "response": {"body": each}} for each in answers]),
    ],
)
def test_answers_are_read_in_every_form(answer, form, opened):
    content = form([answer(TWO[0], 3), answer(TWO[1], 2)])
    trace = opened(content if isinstance(content, bytes) else content.encode())
    assert same(trace, *TWO)
    assert phases(trace) == [[0, 0, 0, 1, 1], [0, 0, 1, 1]]
    assert trace.steps(["pass"])["pass"].tolist() == [0, 0, 0, 1, 2, 3, 3, 4, 5]
    assert trace.facts.slot_order == "unknown"
    assert trace.facts.model.name == "m"
    assert trace.warnings == []


@pytest.mark.parametrize("answer", [vllm, vllm_lists, server_files.megatron])
def test_one_answer_is_read(answer, opened):
    assert same(opened(answer(TWO[0], 3)), TWO[0])


def test_dense_layers_are_left_out(opened):
    trace = opened(vllm(all_layers(TWO[0], [1, 3], 5), 3))
    assert trace.moe_layers.tolist() == [1, 3]
    assert same(trace, TWO[0])


def test_with_one_expert_a_token_the_model_is_needed(opened):
    experts = chosen(5, k=1) % 7 + 1
    answers = [vllm(all_layers(experts, [1, 2], 3), 3)] * 2
    with pytest.raises(UsageError, match=r"--model PATH.*"):
        opened(answers)
    facts = ModelFacts(name="x", arch="x", n_layer=3, n_expert=8, top_k=1)
    trace = opened(answers, model=ModelSizes(facts, [{"layer": 1}, {"layer": 2}]))
    assert same(trace, experts, experts)
    assert trace.moe_layers.tolist() == [1, 2]


def test_the_model_numbers_the_layers_of_lists(opened):
    assert opened(vllm_lists(TWO[0], 3)).moe_layers.tolist() == [0, 1]
    assert "--model" in opened(vllm_lists(TWO[0], 3)).facts.inferred["layers"]
    facts = ModelFacts(name="x", arch="x", n_layer=6, n_expert=8, top_k=2)
    model = ModelSizes(facts, [{"layer": 2}, {"layer": 5, "expert_bytes": 7}])
    trace = opened(vllm_lists(TWO[0], 3), model=model)
    assert trace.moe_layers.tolist() == [2, 5]
    assert "layers" not in trace.facts.inferred


def test_ids_of_tokens_are_kept(opened):
    answer = vllm(TWO[0], 3)
    answer["choices"][0] |= {"prompt_token_ids": [5, 6, 7], "token_ids": [8, 9, 10]}
    assert opened(answer).steps(["token"])["token"].tolist() == [5, 6, 7, 8, 9]
    del answer["choices"][0]["prompt_token_ids"]
    assert opened(answer).steps(["token"])["token"].tolist() == [-1, -1, -1, 8, 9]


def test_rows_before_a_start_are_not_there(opened):
    """The server was told to leave out the first two tokens, or found them in its cache."""
    answer = vllm(TWO[0][2:], 3)
    answer["usage"] = usage(3, 3)
    trace = opened(answer)
    assert trace.steps(["step", "phase"])["step"].tolist() == [2, 3, 4]
    assert phases(trace) == [[0, 1, 1]]


def test_without_counts_all_tokens_are_decoded(opened):
    answer = vllm(TWO[0], 3)
    del answer["usage"]
    trace = opened(answer)
    assert phases(trace) == [[1] * 5]
    assert "phases" in trace.facts.inferred
    answer["prompt_token_ids"] = [1, 2]
    assert phases(opened(answer)) == [[0, 0, 1, 1, 1]]


def test_choices_of_one_prompt_are_turns(opened):
    answer = vllm(TWO[0], 3)
    answer["choices"] += vllm(TWO[1], 3)["choices"]
    answer["usage"] = usage(3, 3 + 2)
    trace = opened(answer)
    assert same(trace, *TWO)
    assert phases(trace) == [[0, 0, 0, 1, 1], [0, 0, 0, 1]]


def test_choices_of_several_prompts_need_their_lengths(opened):
    answer = vllm(TWO[0], 3)
    answer["choices"] += vllm(TWO[1], 2)["choices"]
    answer["usage"] = usage(5, 6)
    with pytest.raises(TraceError, match="return_token_ids"):
        opened(answer)
    for choice, n_output in zip(answer["choices"], (3, 3), strict=True):
        choice["token_ids"] = [9] * n_output
    assert phases(opened(answer)) == [[0, 0, 0, 1, 1], [0, 0, 1, 1]]


def test_a_prompt_in_chunks(opened):
    trace = opened(vllm(TWO[0], 3), chunk=2)
    assert trace.steps(["pass"])["pass"].tolist() == [0, 0, 1, 2, 3]


def test_more_than_256_experts(opened):
    experts = chosen(5, n_expert=400)
    assert same(opened(vllm(experts, 3)), experts)


def test_answers_without_experts_are_counted(opened):
    error = {"error": {"message": 'no "routed_experts"'}}
    trace = opened(lines([vllm(TWO[0], 3), error, {**vllm(TWO[1], 2)}]))
    assert same(trace, *TWO)
    assert "1 of 3 responses hold no routed_experts" in trace.warnings[0]
    none = vllm(TWO[0], 3)
    none["choices"][0]["routed_experts"] = None
    with pytest.raises(TraceError, match="--enable-return-routed-experts"):
        opened(none)


def test_answers_of_other_models_are_refused(opened):
    with pytest.raises(TraceError, match=r"response 2 has 3 layers with 2 experts"):
        opened([vllm(TWO[0], 3), vllm(chosen(4, 3), 2)])


@pytest.mark.parametrize(
    "wrong",
    [
        "AAAA",
        "not base64!",
        base64.b64encode(b"\x93NUMPY\x01\x00").decode(),
        server_files.npy64(np.arange(6)),
        {"data": "x"},
        [[1, 2], [3, 4]],
        [[[1.5]]],
        [[[1, 2]], [[1]]],
        [[[1, 99999999999]]],
        7,
    ],
)
def test_wrong_experts_are_refused(wrong, opened):
    answer = vllm(TWO[0], 3)
    answer["choices"][0]["routed_experts"] = wrong
    with pytest.raises(TraceError, match="response 1"):
        opened(answer)


@pytest.mark.parametrize("wrong", [-1, 1 << 80, "3", 2.5, True, []])
def test_wrong_counts_are_refused(wrong, opened):
    with pytest.raises(TraceError, match="is no number of tokens"):
        opened(vllm(TWO[0], 3, usage=usage(3, 3) | {"prompt_tokens": wrong}))


def test_a_cut_array_is_read_up_to_its_last_answer(opened):
    whole = json.dumps([vllm(TWO[0], 3), vllm(TWO[1], 2)]).encode()
    for content in (whole[:-1], whole[:-40]):
        trace = opened(content)
        assert not trace.complete
        assert len(grids(trace)) == 1 + (len(content) == len(whole) - 1)
    for content in (whole + b"]", whole + b"{}", b"[" + whole):
        with pytest.raises(TraceError, match="stands"):
            opened(content)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_a_long_answer_is_read_in_pieces(piece, opened, monkeypatch):
    """Texts and lists that are longer than what is read at once."""
    monkeypatch.setattr(json_objects, "_PIECE", piece)
    experts = chosen(1000, 4)
    texts = ['"\\' * 4000, "x" * 30_000, "{[" * 5000]
    answers = [{**vllm_lists(experts, 10), "text": texts}, vllm_lists(TWO[0].repeat(2, 1), 2)]
    trace = opened(json.dumps(answers).encode())
    assert same(trace, experts, TWO[0].repeat(2, 1))


# ---- SGLang -------------------------------------------------------------------------------------

SIZES = {"n_layer": 4, "top_k": 2}


def chat(experts: np.ndarray, n_prompt: int) -> dict:
    text = sglang(experts, n_prompt)["meta_info"]["routed_experts"]
    counts = usage(n_prompt, len(experts) + 1 - n_prompt)
    return {"choices": [{"index": 0}], "usage": counts, "sglext": {"routed_experts": text}}


def with_meta(experts: np.ndarray, n_prompt: int) -> dict:
    return {"choices": [{"index": 0, "meta_info": sglang(experts, n_prompt)["meta_info"]}]}


@pytest.mark.parametrize("answer", [sglang, chat, with_meta])
@pytest.mark.parametrize("form", [lines, json.dumps])
def test_sglang_is_read(answer, form, opened):
    answers = [answer(all_layers(each, [1, 3], 4), 3) for each in TWO]
    content = form(answers)
    trace = opened(content if isinstance(content, bytes) else content.encode(), **SIZES)
    assert same(trace, *TWO)
    assert trace.moe_layers.tolist() == [1, 3]
    assert trace.facts.model.n_layer == 4
    assert phases(trace) == [[0, 0, 0, 1, 1], [0, 0, 0, 1]]


def test_sglang_names_the_flags_that_it_needs(opened):
    answer = sglang(all_layers(TWO[0], [1, 3], 4), 3)
    for options in ({}, {"top_k": 2}, {"n_layer": 4}):
        with pytest.raises(UsageError, match="--n-layer N --top-k K"):
            opened(answer, **options)
    for options in ({"top_k": 2, "n_layer": 3}, {"top_k": 4, "n_layer": 4}, {**SIZES, "top_k": 1}):
        with pytest.raises(TraceError, match=r"correct --n-layer .* or --top-k"):
            opened(answer, **options)


def test_sglang_takes_the_sizes_of_the_model(opened):
    facts = ModelFacts(name="x", arch="x", n_layer=4, n_expert=8, top_k=2)
    model = ModelSizes(facts, [{"layer": 1}, {"layer": 3}])
    assert same(opened(sglang(all_layers(TWO[0], [1, 3], 4), 3), model=model), TWO[0])


def test_sglang_says_where_its_rows_begin(opened):
    answer = sglang(all_layers(TWO[0], [1, 3], 4), 3)
    meta = answer["meta_info"]
    meta["routed_experts"] = base64.b64encode(
        np.ascontiguousarray(all_layers(TWO[0][2:], [1, 3], 4), "<i4").tobytes()
    ).decode()
    with pytest.raises(TraceError, match="of which 5 are routed"):
        opened(answer, **SIZES)
    meta["routed_experts_start_len"] = 2
    trace = opened(answer, **SIZES)
    assert trace.steps(["step", "token"])["step"].tolist() == [2, 3, 4]
    assert trace.steps(["token"])["token"].tolist() == [-1, 20, 21]


# ---- large --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("answer", [vllm, vllm_lists, sglang, server_files.megatron])
def test_a_large_model_and_many_requests(answer, tmp_path):
    n_layer, layers = 60, [*range(3, 60)]
    requests = [chosen(30 + 2 * n, len(layers), 256, 8) for n in range(50)]
    of_all = answer in (vllm, sglang)
    axis = [all_layers(each, layers, n_layer) if of_all else each for each in requests]
    path = tmp_path / "answers.jsonl"
    path.write_bytes(lines([answer(each, 20 + n) for n, each in enumerate(axis)]))
    options = ImportOptions(n_layer=n_layer, top_k=8, n_expert=256)
    done = import_any(path, tmp_path / "x.trace", options)
    trace = Trace.open(tmp_path / "x.trace")
    assert done.n_rows == trace.n_rows == sum(map(len, requests)) * len(layers)
    assert same(trace, *requests)
    assert trace.moe_layers.tolist() == (layers if of_all else [*range(len(layers))])
    assert [each.count(0) for each in phases(trace)] == [20 + n for n in range(50)]


def test_the_sample_routing_is_the_same_from_every_server(opened):
    expected = grids(opened(vllm(EXPERTS, 3)))[0]
    for answer in (vllm_lists(EXPERTS, 3), server_files.megatron(EXPERTS, 3)):
        assert np.array_equal(grids(opened(answer))[0], expected)
    assert np.array_equal(grids(opened(sglang(EXPERTS, 3), n_layer=2, top_k=2))[0], expected)


def test_a_response_of_no_token_is_passed_over(opened):
    nothing = vllm_lists(EXPERTS[:0], 0)
    for answers in ([vllm_lists(EXPERTS, 3), nothing], [nothing, vllm_lists(EXPERTS, 3)]):
        trace = opened(lines(answers))
        assert trace.n_turns == 1
        assert same(trace, EXPERTS)

"""Recordings of SGLang's recorder and of Megatron's router trace: true passes, ranks, sidecars."""

import json
from pathlib import Path

import numpy as np
import pytest
import server_files
from server_files import all_layers, recorder_file, recorder_pass, router_state, router_trace
from test_formats_responses import chosen, grids, same

from tracekit.formats import ImportOptions, import_any, lines, open_any
from tracekit.scoring import predict
from tracekit.trace import Trace, TraceError

SAME = np.tile(np.arange(8), (4, 1))
LAYERS = [1, 3]


@pytest.fixture
def write(tmp_path):
    def write(files: dict[str, bytes] | bytes) -> Path:
        path = tmp_path / "run"
        if isinstance(files, bytes):
            path.write_bytes(files)
            return path
        path.mkdir(exist_ok=True)
        for old in path.iterdir():
            old.unlink()
        for name, data in files.items():
            (path / name).write_bytes(data)
        return path

    return write


def steps(trace: Trace) -> list[tuple[int, ...]]:
    columns = trace.steps(["turn", "pass", "phase", "step", "kept"])
    names = ("turn", "pass", "phase", "step", "kept")
    return list(zip(*(columns[name].tolist() for name in names), strict=True))


# ---- SGLang's recorder --------------------------------------------------------------------------


def run_of(experts: np.ndarray, passes: list[tuple[list[int], int]], first: int = 1, rank: int = 0):
    """Return records of one request: positions and mode of each pass."""
    grid = all_layers(experts, LAYERS, 4, -1)
    return [
        recorder_pass(
            first + n,
            grid[positions],
            positions,
            mode,
            [len(positions)] if mode == 1 else None,
            rank,
        )
        for n, (positions, mode) in enumerate(passes)
    ]


ONE = chosen(6)


def test_passes_are_those_of_the_server(write):
    """A prompt in two chunks, decoded tokens, an idle pass, and a second request."""
    records = run_of(ONE, [([0, 1], 1), ([2], 1), ([3], 2), ([4], 2)])
    idle = recorder_pass(5, np.empty((0, 4, 2), int), [], 4)
    records += [idle, *run_of(ONE, [([0, 1, 2], 1), ([3], 2)], first=6)]
    trace = open_any(write(recorder_file(records[::-1], SAME)))
    assert steps(trace) == [
        (0, 0, 0, 0, True),
        (0, 0, 0, 1, True),
        (0, 1, 0, 2, True),
        (0, 2, 1, 3, True),
        (0, 3, 1, 4, True),
        (1, 4, 0, 0, True),
        (1, 4, 0, 1, True),
        (1, 4, 0, 2, True),
        (1, 5, 1, 3, True),
    ]
    assert same(trace, ONE[:5], ONE[:4])
    assert trace.moe_layers.tolist() == LAYERS
    assert trace.steps(["token"])["token"].tolist()[:5] == [100, 101, 102, 103, 104]
    assert trace.facts.inferred == {}
    assert (trace.facts.model.n_expert, trace.facts.model.n_layer) == (8, 4)


def test_drafted_tokens_that_were_rejected_come_again(write):
    records = run_of(ONE, [([0, 1], 1), ([2, 3, 4], 5), ([3, 4, 5], 5)])
    trace = open_any(write(recorder_file(records, SAME)))
    assert [(p, s, kept) for _, p, _, s, kept in steps(trace)][2:] == [
        (1, 2, True),
        (1, 3, False),
        (1, 4, False),
        (2, 3, True),
        (2, 4, True),
        (2, 5, True),
    ]


def test_a_prompt_whose_beginning_was_cached_begins_later(write):
    records = run_of(ONE, [([0, 1, 2], 1), ([3], 2)])
    records += run_of(ONE, [([3, 4], 1), ([5], 2)], first=3)
    trace = open_any(write(recorder_file(records, SAME)))
    assert [(t, s) for t, _, _, s, _ in steps(trace)][4:] == [(1, 3), (1, 4), (1, 5)]


def test_physical_experts_become_those_of_the_model(write):
    """Twelve physical experts for eight, another order at each layer."""
    rng = np.random.default_rng(1)
    table = np.stack([rng.permutation(np.append(np.arange(8), [0, 3, 3, 7])) for _ in range(4)])
    experts = chosen(4)
    physical = np.empty_like(experts)
    for place, layer in enumerate(LAYERS):
        for at in np.ndindex(4, 2):
            copies = np.flatnonzero(table[layer] == experts[at[0], place, at[1]])
            physical[at[0], place, at[1]] = rng.choice(copies)
    records = run_of(physical, [([0, 1, 2], 1), ([3], 2)])
    trace = open_any(write(recorder_file(records, table)))
    assert same(trace, experts)
    assert trace.facts.model.n_expert == 8


def test_passes_of_several_requests_are_kept(write):
    grid = all_layers(ONE, LAYERS, 4, -1)
    records = [
        recorder_pass(1, grid[[0, 1, 2]], [0, 1, 0], 1, [2, 1]),
        recorder_pass(2, grid[[3, 4]], [2, 1], 2),
        recorder_pass(3, grid[[5]], [3], 2),
    ]
    trace = open_any(write(recorder_file(records, SAME)))
    assert [(t, p, ph, s) for t, p, ph, s, _ in steps(trace)] == [
        (0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 0, 0, 2),
        (0, 1, 1, 3),
        (0, 1, 1, 4),
        (0, 2, 1, 5),
    ]
    assert same(trace, ONE)
    assert "several requests" in trace.facts.inferred["turns"]


def test_ranks_that_repeat_each_other_are_one(write):
    passes = [([0, 1, 2], 1), ([3], 2)]
    files = {f"r_{r}.pt": recorder_file(run_of(ONE, passes, rank=r), SAME) for r in range(3)}
    assert same(open_any(write(files)), ONE[:4])
    paths = sorted(write(files).iterdir())
    assert same(open_any(paths), ONE[:4])


def test_ranks_with_other_layers_complete_each_other(write):
    files = {}
    for rank, layer in enumerate(LAYERS):
        part = all_layers(ONE[:, [rank]], [layer], 4, -1)
        records = [
            recorder_pass(1, part[:3], [0, 1, 2], 1, [3], rank),
            recorder_pass(2, part[3:4], [3], 2, None, rank),
        ]
        files[f"{rank}.pt"] = recorder_file(records, SAME)
    trace = open_any(write(files))
    assert same(trace, ONE[:4])
    assert trace.moe_layers.tolist() == LAYERS


def test_ranks_with_other_tokens_share_a_pass(write):
    files = {
        "0": recorder_file(run_of(ONE, [([0, 1], 1), ([2], 2)]), SAME),
        "1": recorder_file(run_of(ONE[::-1], [([0], 1)], rank=1), SAME),
    }
    trace = open_any(write(files))
    assert same(trace, np.concatenate([ONE[:2], ONE[::-1][:1], ONE[2:3]]))
    assert [p for _, p, *_ in steps(trace)] == [0, 0, 0, 1]


def test_rows_that_fill_up_a_batch_are_left_out(write):
    grid = all_layers(ONE, LAYERS, 4, -1)
    grid[[1, 4]] = -1
    records = [recorder_pass(1, grid, [0, 1, 2, 0, 1, 2], 1, [3, 3])]
    assert same(open_any(write(recorder_file(records, SAME))), np.delete(ONE, [1, 4], 0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward_mode": 6}, "forward_mode 6"),
        ({"forward_mode": "DECODE"}, "forward_mode is 'DECODE'"),
        ({"positions": [0]}, "positions is no list of 2 numbers"),
        ({"positions": [0, 1 << 40]}, "positions is no list"),
        ({"input_ids": None}, "input_ids is no list"),
        ({"rank": -1}, "rank is '-1'"),
        ({"topk_ids_of_layer": 5}, "record 1 has no tensor topk_ids_of_layer"),
        ({"topk_ids_of_layer": server_files.T(np.zeros((2, 2)))}, "has the shape"),
        ({"topk_ids_of_layer": server_files.T(np.zeros((9, 2, 8), int))}, "has 9 layers"),
        ({"topk_ids_of_layer": server_files.T(np.full((4, 2, 8), 8))}, "goes up to expert 8"),
        ({"forward_pass_id": 1}, "is in "),
    ],
)
def test_a_wrong_record_is_refused(change, words, write):
    records = run_of(ONE, [([0, 1], 1), ([2, 3], 1)])
    records[1] |= change
    with pytest.raises(TraceError, match=words):
        open_any(write(recorder_file(records, SAME)))


def test_counts_are_not_taken_for_a_trace(write):
    for value in (
        {"rank": 0, "logical_count": server_files.T(np.ones((3, 4, 8), np.int32))},
        {"records": [{"forward_pass_id": 1, "global_physical_count": server_files.T(SAME)}]},
        {"records": []},
    ):
        with pytest.raises(TraceError, match=r"holds counts|recorder without a pass"):
            open_any(write(server_files.saved_by_torch(value)))


# ---- Megatron's router trace --------------------------------------------------------------------

E, H = 8, 16
RNG = np.random.default_rng(5)


def routed(sizes: list[int], layers: list[int], seed: int = 0, bias: float = 0.0):
    """Return routers, and of each step hidden states, logits (bfloat16) and the experts, best first."""
    rng = np.random.default_rng(seed)
    upper = np.uint32(0xFFFF0000)
    routers = {layer: rng.normal(size=(E, H)).astype(np.float32) for layer in layers}
    offsets = bias * rng.normal(size=E)
    hidden, logits, experts = [], [], []
    for size in sizes:
        gate = rng.normal(size=(size, len(layers), H)).astype(np.float32)
        gate = (gate.view(np.uint32) & upper).view(np.float32)
        exact = np.stack([gate[:, n] @ routers[each].T for n, each in enumerate(layers)], axis=1)
        hidden.append(gate)
        logits.append((exact.view(np.uint32) & upper).view(np.float32))
        scores = 1 / (1 + np.exp(-exact)) + offsets
        experts.append(np.argsort(-scores, -1)[..., :2])
    return routers, offsets, hidden, logits, experts


SIZES = [5, *[1] * 8]


def test_predictors_run_on_what_was_captured(write):
    routers, bias, hidden, logits, experts = routed(SIZES, [1, 2, 3], bias=0.3)
    files = router_trace(experts, [1, 2, 3], logits=logits, hidden=hidden)
    files["router_state_rank0.pt"] = router_state(routers, bias)
    path = write(files)
    for given in (path, path / "router_trace_rank0.jsonl", sorted(path.iterdir())):
        trace = open_any(given)
        assert trace.facts.slot_order == "ranked"
        assert trace.facts.model.gating == "sigmoid"
        assert (trace.facts.model.n_embd, trace.facts.model.n_expert) == (H, E)
        assert np.array_equal(trace.layer_array(2, "router_matrix"), routers[2])
        assert np.allclose(trace.layer_array(2, "selection_bias"), bias)
        assert np.array_equal(trace.routing(["logits"])["logits"][:5], logits[0][:, 0])
    rows = {row.predictor: row for row in predict(trace, ["ctrl", "stale-gate"]).rows}
    assert rows["ctrl"].exact_rate == 1
    assert 0 < rows["stale-gate"].routings < rows["ctrl"].routings
    assert [np.sort(each, -1).tolist() for each in grids(trace)] == [
        np.sort(np.concatenate(experts), -1).tolist()
    ]


def test_without_logits_experts_are_sorted(write):
    *_, experts = routed(SIZES, [0, 1])
    trace = open_any(write(router_trace(experts, [0, 1])["router_trace_rank0.jsonl"]))
    assert trace.facts.slot_order == "sorted"
    assert same(trace, np.sort(np.concatenate(experts), -1))
    assert [ph for _, _, ph, *_ in steps(trace)] == [0] * 5 + [1] * 8


def test_a_prompt_after_decoded_tokens_begins_a_turn(write):
    *_, experts = routed([3, 1, 1, 4, 2, 1], [0, 1])
    trace = open_any(write(router_trace(experts, [0, 1])))
    turns = [(t, p, ph, s) for t, p, ph, s, _ in steps(trace)]
    assert turns[3:] == [
        (0, 1, 1, 3),
        (0, 2, 1, 4),
        *((1, 3, 0, s) for s in range(4)),
        (1, 4, 0, 4),
        (1, 4, 0, 5),
        (1, 5, 1, 6),
    ]


def test_a_sidecar_that_was_not_copied_is_told(write):
    _, _, hidden, logits, experts = routed(SIZES, [0, 1])
    files = router_trace(experts, [0, 1], logits=logits, hidden=hidden)
    del files["logits_rank0.bin"]
    trace = open_any(write(files))
    assert not trace.has("logits")
    assert trace.has("gate_input")
    assert "logits_rank0.bin is not beside the trace" in trace.warnings[0]
    files["hidden_states_rank0.bin"] = files["hidden_states_rank0.bin"][:-2]
    with pytest.raises(TraceError, match="it is cut"):
        open_any(write(files))


def test_forward_passes_of_one_step_are_passes(write):
    *_, experts = routed([3, 3], [0, 1])
    files = router_trace(experts, [0, 1])
    trace = files["router_trace_rank0.jsonl"].replace(b'"step": 1', b'"step": 0')
    opened = open_any(write(trace))
    assert [p for _, p, *_ in steps(opened)] == [0, 0, 0, 1, 1, 1]
    assert same(opened, np.sort(np.concatenate(experts), -1))


def test_ranks_that_repeat_each_other_count_once(write, monkeypatch):
    monkeypatch.setattr(lines, "PIECE_BYTES", 1000)
    *_, experts = routed(SIZES, [0, 1])
    files = {**router_trace(experts, [0, 1]), **router_trace(experts, [0, 1], rank=1)}
    assert same(open_any(write(files)), np.sort(np.concatenate(experts), -1))
    other = router_trace([*experts[:-1], 7 - experts[-1]], [0, 1], rank=1)
    with pytest.raises(TraceError, match="does not go on so"):
        open_any(write({**files, **other}))


def test_ranks_with_other_tokens_are_one_pass(write):
    *_, experts = routed([6, 4, 2], [0, 1])
    files = router_trace([each[: len(each) // 2] for each in experts], [0, 1])
    files |= router_trace([each[len(each) // 2 :] for each in experts], [0, 1], rank=1)
    trace = open_any(write(files))
    assert same(trace, np.sort(np.concatenate(experts), -1))
    assert [p for _, p, *_ in steps(trace)] == [0] * 6 + [1] * 4 + [2] * 2
    assert "--n-layer" in trace.facts.inferred["layers"]


def stages(sizes: list[int]) -> tuple[dict[str, bytes], list[np.ndarray], dict[int, np.ndarray]]:
    """Return the files of two stages with layers 1 and 2 of three each, and what they are of."""
    routers, _, _, logits, experts = routed(sizes, [1, 2, 4, 5])
    files = {}
    for rank, places in enumerate(([0, 1], [2, 3])):
        of_stage = [each[:, places] for each in experts]
        values = [each[:, places] for each in logits]
        files |= router_trace(of_stage, [1, 2], rank=rank, logits=values)
        mine = {n: routers[layer] for n, layer in zip((1, 2), ([1, 2], [4, 5])[rank], strict=True)}
        files[f"router_state_rank{rank}.pt"] = router_state(mine)
    return files, experts, routers


def test_stages_of_a_pipeline_are_told_by_their_routers(write):
    files, experts, routers = stages(SIZES)
    trace = open_any(write(files))
    assert trace.moe_layers.tolist() == [1, 2, 4, 5]
    assert trace.facts.model.n_layer == 6
    assert np.array_equal(trace.layer_array(4, "router_matrix"), routers[4])
    found = np.sort(grids(trace)[0], -1)
    assert np.array_equal(found, np.sort(np.concatenate(experts), -1))


def test_stages_of_a_pipeline_are_told_by_the_number_of_layers(write):
    files, experts, _ = stages(SIZES)
    files = {name: data for name, data in files.items() if name.startswith("router_trace")}
    trace = open_any(write(files), options=ImportOptions(n_layer=6))
    assert trace.moe_layers.tolist() == [1, 2, 4, 5]
    found = np.sort(grids(trace)[0], -1)
    assert np.array_equal(found, np.sort(np.concatenate(experts), -1))


@pytest.mark.parametrize("n_layer", [None, 6])
def test_stages_whose_layers_have_the_model_s_own_numbers_are_told_by_them(n_layer, write):
    *_, experts = routed([6, 4, 2], [1, 2, 5])
    files = {}
    for rank, (places, layers) in enumerate((([0, 1], [1, 2]), ([2], [5])) * 2):
        half = slice(rank // 2, None, 2)  # the ranks of a stage have other tokens
        files |= router_trace([each[half][:, places] for each in experts], layers, rank)
    trace = open_any(write(files), options=ImportOptions(n_layer=n_layer))
    assert trace.moe_layers.tolist() == [1, 2, 5]
    both = [np.concatenate((each[0::2], each[1::2])) for each in experts]
    assert same(trace, np.sort(np.concatenate(both), -1))
    assert [p for _, p, *_ in steps(trace)] == [0] * 6 + [1] * 4 + [2] * 2


def test_layers_of_further_tokens_are_left_out(write):
    *_, experts = routed(SIZES, [0, 1])
    rows = [json.loads(line) for line in router_trace(experts, [0, 1]).popitem()[1].splitlines()]
    further = [{**row, "block": "mtp", "mtp_idx": 0} for row in rows]
    trace = open_any(
        write(
            server_files.lines([each for pair in zip(rows, further, strict=True) for each in pair])
        )
    )
    assert same(trace, np.sort(np.concatenate(experts), -1))
    assert "18 records" in trace.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            b'"num_tokens": 1',
            b'"num_tokens": 2',
            "line 3: top_indices has another number of tokens",
        ),
        (b'"topk": 2', b'"topk": 3', "line 1: top_indices has another number of experts"),
        (b'"layer": 1', b'"layer": 40000', "line 2: layer is out of range"),
        (b'"layer": 1', b'"layer": "x"', "line 2: layer is .* where int64 is due"),
        (b'"step": 2', b'"step": 0', "step 0 follows step 1"),
        (b'"logit_bytes": 16', b'"logit_bytes": 18', "line 3: logit_shape and logit_bytes"),
        (b'"logit_offset": 0', b'"logit_offset": 9999', "refers to its byte"),
        (b'"rank": 0', b'"rank": 1', "import the files of one run"),
    ],
)
def test_a_wrong_line_is_named(old, new, words, write):
    _, _, _, logits, experts = routed(SIZES, [0, 1])
    files = router_trace(experts, [0, 1], logits=logits)
    trace = files["router_trace_rank0.jsonl"].replace(old, new, 1)
    with pytest.raises(TraceError, match=words):
        open_any(write({**files, "router_trace_rank0.jsonl": trace}))


# ---- large --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_large_recording_of_several_ranks(tmp_path):
    n_layer, layers = 60, [*range(3, 60)]
    table = np.tile(np.append(np.arange(256), np.arange(32)), (n_layer, 1))
    requests = [chosen(20 + n, len(layers), 256, 8) for n in range(50)]
    for rank in range(4):
        records = []
        for experts in requests:
            grid = all_layers(experts, layers, n_layer, -1)
            n_prompt = len(experts) - 10
            cuts = [list(range(n_prompt)), *([p] for p in range(n_prompt, len(experts)))]
            for n, positions in enumerate(cuts):
                at, mode = len(records) + 1, 2 if n else 1
                extends = None if n else [n_prompt]
                records.append(recorder_pass(at, grid[positions], positions, mode, extends, rank))
        (tmp_path / f"{rank}.pt").write_bytes(recorder_file(records, table))
    import_any(sorted(tmp_path.glob("*.pt")), tmp_path / "x.trace")
    trace = Trace.open(tmp_path / "x.trace")
    assert same(trace, *requests)
    assert trace.moe_layers.tolist() == layers
    assert trace.steps(["pass"])["pass"][-1] == 50 * 11 - 1


@pytest.mark.slow
def test_a_large_router_trace_of_several_ranks(tmp_path):
    """Two stages of 30 layers, two ranks each that share the tokens."""
    sizes = [size for n in range(50) for size in (20 + 2 * n, *[2] * 3, 1)]
    layers = [*range(3, 30)]
    steps_of = [chosen(size, 2 * len(layers), 256, 8) for size in sizes]
    for stage in range(2):
        mine = [each[:, stage * 27 : stage * 27 + 27] for each in steps_of]
        for part in range(2):
            half = [
                each[: (len(each) + 1) // 2] if part == 0 else each[(len(each) + 1) // 2 :]
                for each in mine
            ]
            for name, data in router_trace(half, layers, rank=2 * stage + part).items():
                (tmp_path / name).write_bytes(data)
    options = ImportOptions(n_layer=60, n_expert=256)
    import_any(tmp_path, tmp_path.parent / "x.trace", options)
    trace = Trace.open(tmp_path.parent / "x.trace")
    assert trace.moe_layers.tolist() == [*range(3, 30), *range(33, 60)]
    assert np.array_equal(np.concatenate(grids(trace)), np.sort(np.concatenate(steps_of), -1))

"""The universal forms: the same run, whatever the form and the order of its rows."""

import gzip

import numpy as np
import pandas as pd
import pytest
import runs_of_models as runs
from families import slow_unless

import tracekit
from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.trace import TraceError, UsageError

ORDERS = ("engine", "token", "layer", "slot", "random")
TABLES = {"csv": runs.as_csv, "parquet": runs.as_parquet, "jsonl": runs.as_jsonl}


@pytest.fixture
def write(tmp_path):
    def write(content: bytes, name: str = "run"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


# ---- the same run -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", TABLES)
def test_rows_of_slots_are_read_in_any_order(kind, order, write):
    run = runs.made()
    trace = open_any(write(TABLES[kind](runs.rows_of(run, order))))
    assert runs.is_of(trace, run)
    assert trace.facts.slot_order == "ranked"


@pytest.mark.parametrize("order", ["engine", "token", "layer", "random"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_rows_of_lists_are_read_in_any_order(kind, order, write):
    run = runs.made(seed=1)
    trace = open_any(write(TABLES[kind](runs.lists_of(run, order))))
    assert runs.is_of(trace, run)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("kind", TABLES)
def test_any_number_of_experts_a_routing(kind, k, write):
    run = runs.made(k=k, n_expert=32, seed=k)
    assert runs.is_of(open_any(write(TABLES[kind](runs.rows_of(run, "token")))), run)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays(save, write):
    run = runs.made()
    trace = open_any(write(runs.as_npz(run, save, n_expert=20, expert_bytes=7, model="mine")))
    assert runs.is_of(trace, run)
    assert (trace.n_expert, trace.facts.model.name) == (20, "mine")
    assert trace.expert_bytes.tolist() == [7] * 4


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "axes",
    [("tokens", "layers", "k"), ("layers", "tokens", "k"), ("k", "layers", "tokens")],
)
def test_the_axes_of_an_array_may_have_any_order(axes, order, write):
    run = runs.made()
    there = [("tokens", "layers", "k").index(axis) for axis in axes]
    moved = [np.asarray(a.transpose(there), order=order) for a in (run.experts, run.weights)]
    path = write(
        runs.saved(
            experts=moved[0],
            weights=moved[1],
            layers=run.layers,
            lengths=run.lengths,
            prompt_lengths=run.prompts,
        )
    )
    assert runs.is_of(open_any(path, options=ImportOptions(axes=axes)), run)


def test_dense_layers_of_an_axis_over_all_layers_are_dropped(write):
    run = runs.made(dense=2)
    for empty in (0, -1):
        all_layers = np.full((len(run.turn), 8, 2), empty)
        all_layers[:, run.layers] = run.experts
        path = write(
            runs.saved(experts=all_layers, lengths=run.lengths, prompt_lengths=run.prompts)
        )
        trace = open_any(path)
        assert runs.is_of(trace, run, weights=False)
        assert trace.n_layer == 8
        assert "n_layer" not in trace.facts.inferred


def test_with_one_expert_a_layer_of_zeros_is_ambiguous(write):
    experts = np.ones((4, 3, 1), np.int64)
    experts[:, 1] = 0
    path = write(runs.saved(np.save, experts))
    with pytest.raises(UsageError, match=r"does not say whether layer 1, .* --model PATH"):
        open_any(path)
    experts[:, 1] = -1
    assert open_any(write(runs.saved(np.save, experts))).moe_layers.tolist() == [0, 2]
    named = write(runs.saved(experts=np.abs(experts), layers=[0, 1, 2]))
    assert open_any(named).moe_layers.tolist() == [0, 1, 2]


def test_a_layer_without_experts_may_have_an_empty_list(write):
    run = runs.made()
    dense = {"layer": 0, "experts": [], "weights": []}
    rows = [{**row, **more} for row in runs.lists_of(run) for more in ({}, dense)]
    for kind in ("jsonl", "parquet"):
        assert runs.is_of(open_any(write(TABLES[kind](rows))), run)


def test_a_first_line_may_say_what_the_model_is(write):
    run = runs.made()
    model = {"model_id": "mine", "num_experts": 99, "num_hidden_layers": 7, "expert_bytes": 12}
    trace = open_any(write(runs.as_jsonl([model, *runs.rows_of(run)])))
    assert runs.is_of(trace, run)
    assert (trace.facts.model.name, trace.n_expert, trace.n_layer) == ("mine", 99, 7)
    assert trace.expert_bytes.tolist() == [12] * 4
    assert set(trace.facts.inferred) == {"passes"}


def test_a_routing_that_was_not_there_has_no_row(write):
    run = runs.made(prompts=1)
    experts = run.experts.copy()
    experts[: run.prompts[0] - 1, -1] = -1  # the last layer has the output row only
    lengths = {"lengths": run.lengths, "prompt_lengths": run.prompts}
    trace = open_any(write(runs.saved(experts=experts, layers=run.layers, **lengths)))
    missing = run.prompts[0] - 1
    assert trace.n_rows == experts.shape[0] * experts.shape[1] - missing
    experts[0, 0, 1] = -1
    with pytest.raises(TraceError, match="token 0, layer 1: slot 1 is -1 while others"):
        open_any(write(runs.saved(experts=experts, layers=run.layers, **lengths)))


@pytest.mark.parametrize("kind", TABLES)
def test_every_alias_is_read(kind, write):
    run = runs.made()
    rows = [
        {
            "request_id": f"prompt {row['prompt']}",
            "token_position": row["token"],
            "layer_idx": row["layer"],
            "rank": row["slot"],
            "expert_id": row["expert"],
            "gate_weight": row["weight"],
            "phase": {"prefill": "prompt", "decode": "generated"}[row["phase"]],
        }
        for row in runs.rows_of(run)
    ]
    assert runs.is_of(open_any(write(TABLES[kind](rows))), run)


def test_prompts_that_are_not_labelled_begin_where_tokens_begin_anew(write):
    run = runs.made(prompts=5)
    for order in ("engine", "token", "layer"):
        rows = [{k: v for k, v in r.items() if k != "prompt"} for r in runs.rows_of(run, order)]
        assert runs.is_of(open_any(write(runs.as_csv(rows))), run), order


def test_decoded_tokens_may_be_counted_from_0(write):
    run = runs.made()
    rows = runs.rows_of(run)
    for row in rows:
        if row["phase"] == "decode":
            row["token"] -= int(run.prompts[row["prompt"]])
    assert runs.is_of(open_any(write(runs.as_csv(rows))), run)


def test_a_prompt_may_be_read_in_chunks(write):
    run = runs.made(prompts=2, seed=4)
    expected = sum(-(-int(n) // 2) for n in run.prompts) + int((run.phase == 1).sum())
    for content in (runs.as_csv(runs.rows_of(run)), runs.as_npz(run)):
        trace = open_any(write(content), options=ImportOptions(chunk=2))
        assert len(np.unique(trace.routing(["pass"])["pass"])) == expected
        assert trace.n_decoded == int((run.phase == 1).sum())


def test_passes_that_a_file_numbers_are_kept(write):
    run = runs.made(prompts=1)
    rows = runs.rows_of(run)
    for row in rows:
        del row["phase"]
        row["pass"] = max(0, row["token"] - int(run.prompts[0]) + 1) * 10
    trace = open_any(write(runs.as_csv(rows)))
    assert runs.is_of(trace, run)
    assert "passes" not in trace.facts.inferred
    assert trace.facts.inferred["phases"].startswith("passes of several tokens")
    passes = np.maximum(0, run.step - run.prompts[0] + 1)
    grid = {"layers": run.layers, "weights": run.weights, "pass": passes}
    assert runs.is_of(open_any(write(runs.saved(experts=run.experts, **grid))), run)


def test_without_phases_every_token_counts_as_decoded(write):
    run = runs.made(prompts=1)
    trace = open_any(write(runs.saved(np.save, run.experts)))
    assert trace.n_decoded == len(run.turn)
    assert "taken as decoded" in trace.facts.inferred["phases"]


# ---- order of the slots -------------------------------------------------------------------------


def test_the_order_of_the_slots_is_kept(write):
    run = runs.made()
    order = lambda content: open_any(write(content)).facts.slot_order  # noqa: E731
    assert order(runs.saved(experts=run.experts)) == "unknown"
    assert order(runs.saved(experts=np.sort(run.experts))) == "sorted"
    assert order(runs.saved(experts=run.experts, slot_order="ranked")) == "ranked"
    assert order(runs.saved(experts=run.experts, weights=run.weights)) == "ranked"
    assert order(runs.as_csv(runs.rows_of(run, slots=False))) == "ranked"
    rows = runs.rows_of(run, slots=False)
    for row in rows:
        del row["weight"]
    assert order(runs.as_csv(rows)) == "unknown"


def test_weights_rank_the_slots(write):
    run = runs.made()
    reversed_slots = runs.Run(run.experts[:, :, ::-1], run.weights[:, :, ::-1], *_rest(run))
    assert runs.is_of(open_any(write(runs.as_npz(reversed_slots))), run)
    lists = runs.as_jsonl(runs.lists_of(reversed_slots))
    assert runs.is_of(open_any(write(lists)), run)


def test_unknown_weights_do_not_rank(write):
    run = runs.made()
    weights = run.weights.copy()
    weights[3, 1, 0] = np.nan
    trace = open_any(write(runs.saved(experts=run.experts, weights=weights)))
    assert trace.facts.slot_order == "unknown"
    assert np.isnan(trace.routing(["weights"])["weights"]).sum() == 1


def test_a_prompt_without_tokens_is_no_turn(write):
    run = runs.made()
    lengths = np.insert(run.lengths, 1, 0)
    prompts = np.insert(run.prompts, 1, 0)
    grid = {"layers": run.layers, "weights": run.weights}
    path = write(runs.saved(experts=run.experts, lengths=lengths, prompt_lengths=prompts, **grid))
    assert runs.is_of(open_any(path), run)
    assert open_any(path).warnings == []


def _rest(run):
    return run.layers, run.lengths, run.prompts, run.n_expert


# ---- several files, gzip ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
def test_several_files_are_turns_of_one_run(kind, write):
    run = runs.made(prompts=3)
    rows = runs.rows_of(run)
    paths = [
        write(TABLES[kind]([row for row in rows if row["prompt"] == turn]), f"part{turn}")
        for turn in range(3)
    ]
    assert runs.is_of(open_any(paths), run)
    folder = paths[0].parent / "all"
    folder.mkdir()
    for path in paths:
        path.rename(folder / path.name)
    assert runs.is_of(open_any(folder), run)


@pytest.mark.parametrize("order", ["engine", "token"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_file_may_go_on_with_the_prompt_of_the_one_before(kind, order, write):
    run = runs.made(prompts=2, layers=2)
    rows = runs.rows_of(run, order)
    for left_out in ("", "prompt"):
        taken = [{name: row[name] for name in row if name != left_out} for row in rows]
        for cut in range(1, len(taken) - 2, 23):
            parts = [taken[:cut], taken[cut : cut + 2], taken[cut + 2 :]]
            trace = open_any([write(TABLES[kind](part), f"{n}") for n, part in enumerate(parts)])
            assert runs.is_of(trace, run)
            assert trace.warnings == []


@pytest.mark.parametrize("further", [(), ("pass",)])
@pytest.mark.parametrize("by", ["layer", "token"])
def test_files_may_hold_parts_of_several_prompts(by, further, write):
    rows = [
        {
            "prompt": prompt,
            "layer": layer,
            "token": token,
            "pass": token,
            "slot": slot,
            "expert": slot,
        }
        for token in range(6)
        for prompt in ("a", "b", "c")
        if token < 4 or prompt != "b"
        for layer in (0, 1)
        for slot in (0, 1)
    ]
    names = {*further, "prompt", "layer", "token", "slot", "expert"}
    parts = [
        [{name: row[name] for name in row if name in names} for row in rows if row[by] in values]
        for values in ([(0,), (1,)] if by == "layer" else [(0, 1, 2), (3,), (4, 5)])
    ]
    trace = open_any([write(runs.as_csv(part), f"{n}") for n, part in enumerate(parts)])
    assert np.bincount(trace.routing(["turn"])["turn"]).tolist() == [12, 8, 12]
    assert trace.warnings == []


@pytest.mark.parametrize("labels", [{}, {"prompt": 7}])
def test_files_whose_tokens_are_counted_are_turns_of_their_own(labels, write):
    rows = [{**labels, "layer": layer, "experts": [2, 1]} for _ in range(3) for layer in (1, 2)]
    trace = open_any([write(runs.as_jsonl(rows), name) for name in "ab"])
    at = trace.routing(["turn", "step"])
    assert at["turn"].tolist() == [0] * 6 + [1] * 6
    assert at["step"].tolist() == [0, 0, 1, 1, 2, 2] * 2


def test_files_of_a_folder_stand_in_the_order_of_their_numbers(write, tmp_path):
    (tmp_path / "run").mkdir()
    for token in range(11):
        rows = [{"layer": 0, "token": token, "slot": slot, "expert": slot} for slot in (0, 1)]
        write(runs.as_csv(rows), f"run/step_{token}.csv")
    trace = open_any(tmp_path / "run")
    assert not trace.routing(["turn"])["turn"].any()
    assert trace.warnings == []


def test_runs_of_late_tokens_are_turns_though_their_passes_are_counted_on(write):
    def rows(tokens, first_pass):
        return [
            {"layer": layer, "token": token, "pass": n, "slot": slot, "expert": slot}
            for n, token in enumerate(tokens, first_pass)
            for layer in (0, 1)
            for slot in (0, 1)
        ]

    parts = [rows(range(12), 0), rows(range(8, 20), 12)]
    trace = open_any([write(runs.as_csv(part), f"{n}") for n, part in enumerate(parts)])
    at = trace.routing(["turn", "step"])
    assert [at["step"][at["turn"] == turn].min() for turn in (0, 1)] == [0, 8]


@pytest.mark.parametrize("kind", TABLES)
def test_files_of_a_cut_prompt_in_the_wrong_order_are_refused(kind, write):
    rows = runs.rows_of(runs.made(prompts=3, layers=2), "token")
    middle = next(n for n, row in enumerate(rows) if (row["prompt"], row["token"]) == (1, 2))
    parts = [
        write(TABLES[kind](part), n) for n, part in (("a", rows[:middle]), ("b", rows[middle:]))
    ]
    assert len(np.unique(open_any(parts).routing(["turn"])["turn"])) == 3
    with pytest.raises(TraceError) as caught:
        open_any(parts[::-1])
    assert str(caught.value) == (
        f"{parts[0]} ends within prompt 1, and {parts[1]} goes on with it; give the files in the order "
        "in which they were written."
    )


@pytest.mark.parametrize("kind", TABLES)
def test_runs_that_call_their_prompts_alike_are_turns_of_their_own(kind, write):
    rows = runs.rows_of(runs.made(prompts=3, layers=2), "token")
    trace = open_any([write(TABLES[kind](rows), name) for name in "ab"])
    assert len(np.unique(trace.routing(["turn"])["turn"])) == 6
    assert trace.warnings == []


def test_what_is_wrong_in_a_file_that_goes_on_is_named_there(write):
    rows = runs.rows_of(runs.made())
    rows[9]["expert"] = rows[8]["expert"]
    paths = [write(TABLES["parquet"](part), f"{n}") for n, part in enumerate((rows[:6], rows[6:]))]
    with pytest.raises(TraceError, match=rf"{paths[1]}, row 3, column expert"):
        open_any(paths)


def test_files_of_two_formats_are_no_run(write):
    run = runs.made()
    paths = [write(runs.as_npz(run), "a"), write(runs.as_csv(runs.rows_of(run)), "b")]
    with pytest.raises(
        TraceError, match="a and 1 more are files of several formats, or of several runs; name"
    ):
        open_any(paths)


# ---- in memory ----------------------------------------------------------------------------------


def test_arrays_in_memory_are_the_same_trace_as_in_a_file(write):
    run = runs.made()
    lengths = {"lengths": run.lengths, "prompt_lengths": run.prompts}
    trace = tracekit.from_arrays(run.experts, layers=run.layers, weights=run.weights, **lengths)
    assert trace.digest == open_any(write(runs.as_npz(run))).digest
    ends = np.cumsum(run.lengths)[:-1]
    parts = np.split(run.experts, ends)
    listed = tracekit.from_arrays(
        parts, layers=run.layers, weights=run.weights, prompt_lengths=run.prompts
    )
    assert listed.digest == trace.digest


def test_a_data_frame_is_the_same_trace_as_its_file(write):
    run = runs.made()
    frame = pd.DataFrame(runs.rows_of(run))
    trace = tracekit.from_arrays(frame, expert_mib=2, model="mine")
    assert runs.is_of(trace, run)
    assert trace.expert_bytes.tolist() == [2 << 20] * 4
    assert trace.facts.model.name == "mine"
    lists = pd.DataFrame(runs.lists_of(run))
    assert runs.is_of(tracekit.from_arrays(lists), run)


IDS = np.array([[[0, 1], [2, 3]], [[1, 0], [3, 2]]])
WRONG_ARRAYS = {
    "no numbers": ({"experts": "x"}, "three axes|whole numbers"),
    "a float": ({"experts": IDS * 1.0}, "array of float64"),
    "two axes": ({"experts": IDS[0]}, "whole numbers \\[tokens, layers, k\\]"),
    "ragged": ({"experts": [[1, 2], [3]]}, "experts takes an array of numbers"),
    "objects": (
        {"experts": IDS, "weights": np.array([{}, 1])},
        r"weights is an array of Python's objects, not of numbers; give weights\.astype\(int\)",
    ),
    "no frame": ({"experts": pd.DataFrame({"layer": [1]})}, "lacks a column for token, experts"),
    "lengths": ({"experts": IDS, "lengths": [3]}, "lengths add up to 3 tokens"),
    "prompts": ({"experts": IDS, "prompt_lengths": [1, 1]}, "prompt_lengths has 2 prompts"),
    "layers": ({"experts": IDS, "layers": [3, 1]}, "layers does not ascend"),
    "weights": ({"experts": IDS, "weights": IDS[:1] * 0.1}, "weights is an array of float64"),
    "a mask": (
        {"experts": np.eye(4, dtype=np.uint8)[IDS].sum(axis=2)},
        "holds only 0 and 1, as a mask of the selected experts does",
    ),
    "twice": ({"experts": IDS * 0 + 5}, "expert 5 stands twice"),
    "too large": ({"experts": IDS + 70000}, "70000 is no whole number from 0 to 65535"),
    "n_expert": ({"experts": IDS, "n_expert": 3}, "expert 3 is not below the model's n_expert = 3"),
    "logits": (
        {"experts": IDS, "logits": np.zeros((2, 2, 9)), "n_expert": 8},
        "has the logits of 9 experts, but the model has 8; correct n_expert",
    ),
    "n_layer": ({"experts": IDS, "n_layer": 1}, "1 is no layer of a model with 1 of them"),
    "top_k": ({"experts": IDS, "top_k": 3}, "2 experts a routing, not the top_k = 3"),
    "order": ({"experts": IDS, "slot_order": "best"}, "slot_order 'best' is none of ranked"),
    "mib": ({"experts": IDS, "expert_mib": -1}, "expert_mib takes a size in MiB above 0"),
    "axes": ({"experts": IDS, "axes": ("tokens", "k")}, "axes takes the three words"),
    "sizes": ({"experts": IDS, "expert_bytes": [1]}, "expert_bytes has 1 sizes"),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_arrays_that_do_not_fit_are_refused_with_one_sentence(case):
    arguments, sentence = WRONG_ARRAYS[case]
    with pytest.raises((TraceError, UsageError), match=sentence):
        tracekit.from_arrays(**arguments)


# ---- gzip, and import as a stream ---------------------------------------------------------------


@pytest.mark.parametrize("kind", slow_unless([*TABLES, "npz"], "npz"))
def test_a_large_run_streams_to_the_same_trace(kind, write, tmp_path, monkeypatch):
    """Chunks of a few passes, and pieces of a few lines, make the trace that the whole makes."""
    run = runs.made(prompts=6, layers=5, k=4, seed=9)
    rows = runs.rows_of(run)
    content = runs.as_npz(run) if kind == "npz" else TABLES[kind](rows)
    expected = open_any(write(content))
    for module, name, value in (
        ("rows", "GATHERED_SLOTS", 50),
        ("lines", "PIECE_BYTES", 211),
        ("universal_tables", "BATCH_ROWS", 13),
        ("array_run", "BLOCK_VALUES", 60),
    ):
        monkeypatch.setattr(f"tracekit.formats.{module}.{name}", value)
    import_any(write(gzip.compress(content)), tmp_path / "x.trace")
    trace = open_any(tmp_path / "x.trace")
    assert runs.is_of(trace, run)
    assert trace.digest == expected.digest
    assert trace.facts == expected.facts

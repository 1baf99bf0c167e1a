"""What counts say: popularity, concentration, what pinning would hit; and how a model's file completes them."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import run
from counts_samples import COUNTS_SAMPLES, TABLE, per_pass
from format_samples import saved
from model_file_samples import CONFIG, f32, gguf
from torch_writer import T, saved_by_torch

import tracekit
from tracekit import analysis
from tracekit.analysis.pinning import hottest_experts, that_fit
from tracekit.formats import ExpertCounts, open_any, open_counts
from tracekit.formats.counts.with_model import with_model
from tracekit.model_files import read_model
from tracekit.trace import TraceError, UsageError, synthesize
from tracekit.trace.schema import DECODE

MIB = 1 << 20


@pytest.fixture(scope="module")
def trace():
    return synthesize(4, 16, 2, 40, 2, 6)


@pytest.fixture(scope="module")
def counts(trace):
    """The counts of a trace, as a tool that keeps no order would have them."""
    table = analysis.expert_popularity(trace)["selections"].to_numpy().reshape(-1, trace.n_expert)
    return ExpertCounts(table.copy(), tuple(trace.moe_layers.tolist()), "some file", "some format")


@pytest.fixture
def sample(tmp_path):
    def write(name: str) -> Path:
        path = tmp_path / name
        files = COUNTS_SAMPLES[name].files
        if isinstance(files, bytes):
            path.write_bytes(files)
        else:
            path.mkdir()
            for inside, data in files.items():
                (path / inside).write_bytes(data)
        return path

    return write


# ---- analysis -----------------------------------------------------------------------------------


def test_popularity_of_counts_is_that_of_their_trace(trace, counts):
    of_trace, of_counts = map(analysis.expert_popularity, (trace, counts))
    pd.testing.assert_frame_equal(of_counts, of_trace, check_dtype=False)


def test_concentration_of_counts_lacks_the_weights(counts):
    frame = analysis.routing_concentration(counts)
    share = counts.counts / counts.counts.sum(axis=1, keepdims=True)
    bits = -(share * np.log2(np.where(share > 0, share, 1))).sum(axis=1)
    assert frame["load_entropy_bits"].to_numpy() == pytest.approx(bits)
    assert frame["load_entropy"].to_numpy() == pytest.approx(bits / 4)
    assert frame[["routings", "top1_share", "weight_entropy"]].isna().all(axis=None)


def test_a_phase_of_counts_is_refused(counts):
    with pytest.raises(UsageError, match="counts all tokens together"):
        analysis.expert_popularity(counts, "decode")


def test_a_plot_that_needs_the_order_refuses_counts(counts):
    from tracekit.plots.kinds import KINDS, Choices

    for kind in KINDS.values():
        if kind.takes_counts:
            assert kind.draw(kind.compute(counts, Choices())).get_title(loc="left")
        else:
            with pytest.raises(TraceError, match="some file holds counts"):
                kind.compute(counts, Choices())
    assert {kind.name for kind in KINDS.values() if kind.takes_counts} == {
        "popularity", "popularity-sorted", "concentration", "pinning",
    }  # fmt: skip


# ---- pinning ------------------------------------------------------------------------------------


def test_the_hottest_experts_are_those_selected_most():
    counts = ExpertCounts(TABLE[1:].copy(), (1, 2), "a", "b")
    frame = hottest_experts(counts)
    chosen = list(zip(frame["layer"], frame["expert"], frame["selections"], strict=True))
    assert chosen == [
        (1, 0, 5), (1, 3, 4), (2, 2, 4), (2, 1, 3), (2, 0, 2), (1, 1, 1), (2, 3, 1), (1, 2, 0),
    ]  # fmt: skip
    expected = np.array([5, 9, 13, 16, 18, 19, 20, 20]) / 20
    assert frame["hit_rate"].to_numpy() == pytest.approx(expected)
    assert frame["pinned_bytes"].isna().all()


def test_layers_that_saw_fewer_tokens_count_as_much():
    counts = ExpertCounts(np.array([[9, 1], [3, 7]]) * [[1], [100]], (0, 1), "a", "b")
    frame = hottest_experts(counts)
    assert list(zip(frame["layer"], frame["expert"], strict=True)) == [
        (0, 0), (1, 1), (1, 0), (0, 1),
    ]  # fmt: skip
    assert frame["hit_rate"].to_numpy() == pytest.approx([0.45, 0.8, 0.95, 1.0])


def test_the_estimate_is_what_independent_tokens_hit():
    """Pinned experts do hit that share of the lookups where tokens are drawn independently."""
    rng = np.random.default_rng(0)
    weights = rng.random((3, 8)) ** 3
    drawn = np.stack([rng.choice(8, 20_000, p=row / row.sum()) for row in weights], axis=1)
    halves = np.split(drawn, 2)
    table = np.stack([np.bincount(halves[0][:, n], minlength=8) for n in range(3)])
    fits = that_fit(hottest_experts(ExpertCounts(table, (0, 1, 2), "a", "b")), cache_slots=3)
    assert fits.groupby("layer").size().tolist() == [3, 3, 3]
    pinned = set(zip(fits["layer"], fits["expert"], strict=True))
    hits = np.mean([(n, e) in pinned for row in halves[1].tolist() for n, e in enumerate(row)])
    assert fits["hit_rate"].iloc[-1] == pytest.approx(hits, abs=0.01)


def test_experts_of_other_sizes_are_ranked_by_hits_per_byte():
    counts = ExpertCounts(np.array([[6, 4], [7, 3]]), (0, 5), "a", "b")
    frame = hottest_experts(counts, {0: 100, 5: 200})
    assert list(zip(frame["layer"], frame["expert"], strict=True)) == [
        (0, 0), (0, 1), (5, 0), (5, 1),
    ]  # fmt: skip
    assert frame["pinned_bytes"].tolist() == [100, 200, 400, 600]
    for budget, chosen in ((99, []), (150, [(0, 0)]), (399, [(0, 0), (0, 1)]), (400, [(5, 0)])):
        fits = that_fit(frame, cache_bytes=budget)
        assert [*zip(fits["layer"], fits["expert"], strict=True)][-1:] == chosen[-1:]
        assert fits["expert_bytes"].sum() <= budget


def test_a_large_expert_that_does_not_fit_leaves_room_for_a_small_one():
    counts = ExpertCounts(np.array([[99, 1], [60, 40]]), (0, 1), "a", "b")
    frame = hottest_experts(counts, {0: 100, 1: 80})
    fits = that_fit(frame, cache_bytes=90)
    assert list(zip(fits["layer"], fits["expert"], strict=True)) == [(1, 0)]
    assert fits["hit_rate"].tolist() == [0.3]


def test_a_budget_in_bytes_needs_sizes(counts):
    with pytest.raises(UsageError, match="give it with --expert-mib or --model"):
        that_fit(hottest_experts(counts), cache_bytes=MIB)
    with pytest.raises(UsageError, match="expert_bytes has no size of layer 1"):
        hottest_experts(counts, {0: 5})


def test_the_sizes_of_a_trace_are_its_own(trace):
    frame = hottest_experts(trace)
    assert frame["pinned_bytes"].iloc[-1] == trace.expert_bytes.sum() * trace.n_expert
    decode = trace.routing(["phase"])["phase"] == DECODE
    assert decode.any()


# ---- the command line ---------------------------------------------------------------------------


def test_info_of_counts(sample):
    path = sample("imatrix")
    done = run("info", path)
    assert (
        done.out
        == f"""\
counts    {path} (imatrix: how often each expert was used)
model     2 layers with experts (1 to 2), 4 experts each, 2 used per token
tokens    5
used      20 selections; 1 expert never selected
lacks     the order of the selections, so nothing can be replayed or predicted
pinning   hits with the hottest experts in memory, an estimate: as if each token selected by these \
frequencies, whatever was selected before it
          1 expert, 12 %: about 25.0 % of the lookups
          2 experts, 25 %: about 45.0 % of the lookups
          4 experts, 50 %: about 80.0 % of the lookups
          6 experts, 75 %: about 95.0 % of the lookups
"""
    )


def test_info_lists_the_experts_that_fit(sample):
    path = sample("coli-usage")
    by_bytes = run("info", path, "--cache-mib", "1.6", "--expert-mib", "0.5").out
    assert "pinned    3 experts (1.50 MiB): about 65.0 % of the lookups\n" in by_bytes
    assert by_bytes.endswith("          layer 1: 0 3\n          layer 2: 2\n")
    by_slots = run("info", path, "--cache-slots", "1").out
    assert "pinned    2 experts: about 45.0 % of the lookups\n" in by_slots
    assert by_slots.endswith("          layer 1: 0\n          layer 2: 2\n")
    facts = json.loads(run("info", path, "--cache-slots", "1", "--format", "json").out)
    assert facts["schema"] == "tracekit.counts/1"
    assert (facts["format"], facts["layers"], facts["n_expert"]) == ("coli-usage", [1, 2], 4)
    assert facts["pinning"]["basis"].startswith("an estimate")
    fitting = facts["pinning"]["fitting"]
    assert (fitting["pinned"], fitting["hit_rate"]) == (2, 0.45)
    assert fitting["hottest"] == [
        {"layer": 1, "expert": 0, "selections": 5, "share": 0.5},
        {"layer": 2, "expert": 2, "selections": 4, "share": 0.4},
    ]


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["--cache-mib", "1"], "The size of an expert is not known", 2),
        (["--cache-mib", "1", "--cache-slots", "1"], "not as both", 2),
        (["--cache-slots", "-1"], "experts of every layer, from 0 to all 4, not -1", 2),
        (["--cache-slots", "5"], "experts of every layer, from 0 to all 4, not 5", 2),
        (["--cache-mib", "nan"], "--cache-mib takes a size in MiB", 2),
        (["--cache-mib", "1", "--expert-mib", "0"], "expert_mib takes a size in MiB above 0", 2),
    ],
)
def test_a_budget_that_cannot_be_is_refused(sample, options, words, code):
    done = run("info", sample("coli-usage"), *options)
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_info_of_a_trace_lists_the_experts_that_fit():
    name = "bundled:tiny-moe-64e.trace"
    assert "pinn" not in run("info", name).out
    facts = json.loads(run("info", name, "--cache-mib", "1", "--format", "json").out)
    fitting = facts["pinning"]["fitting"]
    assert fitting["pinned"] == MIB // 13056
    assert facts["schema"] == "tracekit.info/1"
    assert run("info", name, "--expert-mib", "1").code == 2


# ---- a model's file -----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG | {"num_experts": 4}))
    return config


def test_a_model_gives_layers_sizes_and_a_name(sample, model):
    """EPLB's array has an index where the model's own numbers are due."""
    done = run("info", sample("eplb"), "--model", model, "--cache-mib", "0.001")
    assert "2 layers with experts (1 to 2), 4 experts each, 2 used per token" in done.out
    assert "the index in the array, among the layers with experts" in done.out
    assert "pinned    2 experts" in done.out
    assert "The size of an expert is estimated from config.json" in done.err


def test_a_model_gives_the_experts_that_were_never_used(model, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("layer_id,expert_id,count\n1,0,3\n2,1,3\n")
    counts = with_model(open_counts(path), read_model(model))
    assert counts.counts.tolist() == [[3, 0, 0, 0], [0, 3, 0, 0]]
    assert (counts.inferred, counts.top_k) == ({}, 2)


@pytest.mark.parametrize(
    ("table", "layers", "top_k", "words"),
    [
        (np.ones((1, 5), int), (1,), None, "counts 5 experts a layer, and {} has 4"),
        (np.ones((1, 4), int), (0,), None, "counts experts of layer 0, and {} has none there"),
        (np.ones((1, 4), int), (1,), 3, "says that a token uses 3 experts, and {} 2"),
    ],
)
def test_counts_of_another_model_are_refused(model, table, layers, top_k, words):
    with pytest.raises(TraceError) as error:
        with_model(ExpertCounts(table, layers, "a", "b", top_k=top_k), read_model(model))
    assert words.format(model) in str(error.value)


# ---- files --------------------------------------------------------------------------------------


def test_an_old_imatrix_is_refused_since_it_has_no_counts(tmp_path):
    path = tmp_path / "imatrix.dat"
    name = b"blk.0.ffn_down_exps.weight"
    path.write_bytes(
        b"\1\0\0\0" + len(name).to_bytes(4, "little") + name + b"\1\0\0\0\2\0\0\0" + b"\0" * 8
    )
    for read in (open_counts, open_any):
        with pytest.raises(TraceError) as error:
            read(path)
        assert "keeps means of squares and no counts of experts" in str(error.value)
    assert run("info", path).code == 3


def test_an_imatrix_whose_weights_were_counted_differently_says_so(tmp_path):
    tensors = {
        f"blk.0.ffn_{name}_exps.weight.counts": f32(np.array([[n], [2.0]]))
        for name, n in (("gate", 1), ("up", 3))
    }
    path = tmp_path / "imatrix.gguf"
    path.write_bytes(gguf({"general.type": "imatrix"}, tensors))
    counts = open_counts(path)
    assert counts.counts.tolist() == [[3, 2]]
    assert len(counts.warnings) == 1
    assert "counts the weights of layer 0 differently" in run("info", path).err


def test_an_imatrix_of_a_dense_model_is_refused(tmp_path):
    path = tmp_path / "imatrix.gguf"
    tensors = {"blk.0.ffn_up.weight.counts": f32(np.ones((1, 1)))}
    path.write_bytes(gguf({"general.type": "imatrix"}, tensors))
    with pytest.raises(TraceError, match="counts no experts, so it is of a dense model"):
        open_counts(path)


def test_files_of_several_ranks_are_added(sample, tmp_path):
    path = sample("sglang-csv")
    other = tmp_path / "other.csv"
    other.write_bytes(path.read_bytes())
    assert open_counts([path, other]).counts.tolist() == (2 * TABLE[1:]).tolist()


def test_a_pass_that_several_ranks_report_counts_once(tmp_path):
    for rank in range(2):
        (tmp_path / f"{rank}.pt").write_bytes(per_pass(rank))
    for named in (tmp_path / "0.pt", tmp_path):
        counts = open_counts(named)
        assert counts.counts.tolist() == TABLE[1:].tolist()
        assert (counts.layers, counts.format) == ((1, 2), "sglang-counts")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"last_physical_to_logical_map": None}, "last_physical_to_logical_map is no table"),
        ({"last_physical_to_logical_map": T(np.full((3, 4), 1 << 20))}, "that no model has"),
        ({"last_physical_to_logical_map": T(np.zeros((3, 9), int))}, "has the shape (3, 4)"),
        ({"records": [{"global_physical_count": T(np.ones((3, 4)))}]}, "is no table of whole"),
        ({"records": [{"global_physical_count": T(-TABLE)}]}, "has no forward_pass_id"),
        (
            {"records": [{"forward_pass_id": 1, "global_physical_count": T(-TABLE)}]},
            "holds -5 to 0, which are no counts",
        ),
    ],
)
def test_records_that_cannot_be_are_refused(tmp_path, changes, words):
    record = {"forward_pass_id": 1, "global_physical_count": T(TABLE)}
    sound = {"records": [record], "last_physical_to_logical_map": T(np.array([[0, 1, 2, 3]] * 3))}
    path = tmp_path / "x.pt"
    path.write_bytes(saved_by_torch(sound))
    assert open_counts(path).counts.tolist() == TABLE[1:].tolist()
    path.write_bytes(saved_by_torch(sound | changes))
    with pytest.raises(TraceError) as error:
        open_counts(path)
    assert words in str(error.value)


def test_means_are_counted_in_millionths(tmp_path):
    path = tmp_path / "load.npy"
    path.write_bytes(saved(np.save, np.array([[0.5, 0.25]])))
    counts = open_counts(path)
    assert counts.counts.tolist() == [[500_000, 250_000]]
    assert counts.inferred["counts"] == "values in millionths, rounded"


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 1e300])
def test_what_is_no_count_is_refused(tmp_path, wrong):
    path = tmp_path / "load.npy"
    path.write_bytes(saved(np.save, np.array([[1.0, wrong]])))
    with pytest.raises(TraceError, match="which is no count"):
        open_counts(path)


def test_counts_are_opened_by_the_package(sample):
    assert tracekit.open_counts(str(sample("imatrix"))).n_tokens == 5


# ---- samples that are true to the tools, where they are at hand ---------------------------------

SHARED = Path(os.environ.get("TRACEKIT_SHARED", Path(__file__).parents[2] / "shared")) / "formats"
FILES = {
    "llamacpp/imatrix.gguf": 1,
    "sglang/expert_distribution_rank0_timestamp1744347750.37.csv": 1,
    "sglang/stat": 1,
    "sglang/per_pass": 1,
    "trtllm": 1,
    "colibri/.coli_usage": 1,
    "eplb/weight.npy": 1,
    "moe_infinity/eam.npy": 2,
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the samples of formats are not at hand")
@pytest.mark.parametrize("name", FILES)
def test_a_sample_of_a_tool_holds_the_routing_that_is_expected(name):
    expected = json.loads((SHARED / "expected.json").read_text())
    ids = np.array(expected["ids"])
    table = [np.bincount(ids[:, n].ravel(), minlength=8) for n in range(ids.shape[1])]
    counts = open_counts(SHARED / name)
    assert counts.counts.tolist() == (FILES[name] * np.array(table)).tolist()
    assert counts.layers == (tuple(expected["layers"]) if "eplb" not in name else (0, 1, 2))

"""Traces that do not say how large an expert is: hit rates at shares of the bank, no bytes."""

import json

import numpy as np
import pandas as pd
import pytest
import runs_of_models as runs
from cli_helpers import run

import tracekit
from tracekit.trace.errors import MissingDataError, TraceError

FRACTIONS = [0, 0.1, 0.25, 0.5, 1]


def of(run_, **more):
    lengths = {"lengths": run_.lengths, "prompt_lengths": run_.prompts}
    return tracekit.from_arrays(run_.experts, layers=run_.layers, **lengths, **more)


@pytest.fixture(scope="module")
def made():
    return runs.made(prompts=4, layers=5, k=3, n_expert=20, seed=3)


def test_hit_rates_are_those_of_equal_sizes(made):
    policies = ["lru", "layer-lru", "belady", "bound"]
    unsized = tracekit.replay(of(made), policies, cache_fraction=FRACTIONS, per_layer=True)
    sized = tracekit.replay(
        of(made, expert_bytes=1000), policies, cache_fraction=FRACTIONS, per_layer=True
    )
    rates = ["policy", "hits", "hits_decode", "hit_rate_decode", "gap_to_bound", "lookups"]
    pd.testing.assert_frame_equal(unsized.frame[rates], sized.frame[rates])
    assert np.allclose(unsized.frame["cache_fraction"], sized.frame["cache_fraction"])
    assert unsized.layers["hits"].equals(sized.layers["hits"])
    assert np.allclose(sized.frame["cache_fraction"].to_numpy(float)[:5], FRACTIONS, atol=0.005)


def test_no_figure_is_in_bytes(made):
    result = tracekit.replay(of(made), ["lru", "bound", "prefetch"], params=_PREV, per_layer=True)
    of_bytes = [c for c in result.frame if c.endswith("_bytes") or "_bytes_" in c or "mib" in c]
    assert {"cache_bytes", "cache_mib", "read_bytes", "peak_resident_bytes_decode"} <= set(of_bytes)
    assert {"speculative_wasted_bytes", "demand_bytes_decode"} <= set(of_bytes)
    assert result.frame[of_bytes].isna().all().all()
    assert result.layers[["read_bytes", "cache_mib"]].isna().all().all()
    document = json.loads(json.dumps(result.to_json()))
    assert document["config"]["bank_bytes"] is None
    assert document["config"]["cache_bytes"] is None
    assert document["config"]["cache_fraction"] == [0.1, 0.25, 0.5]
    assert all(row["cache_bytes"] is None for row in document["results"])


_PREV = {"prefetch.predictor": "prev-token"}


def test_the_table_says_so_once(made, tmp_path):
    path = tmp_path / "run.npz"
    path.write_bytes(runs.as_npz(made))
    done = run("replay", path, "--policy", "lru,belady", "--cache-fraction", "0.2")
    assert done.code == 0
    assert done.out.count("all are taken for equal") == 1
    assert "100 experts of unknown size, taken for equal" in done.out
    assert "`tracekit import` takes the sizes, with --model PATH or --expert-mib M." in done.out
    (lru,) = [line for line in done.out.split("\n") if line.startswith("lru ")]
    assert lru.split()[1:3] == ["-", "20.00"]
    layers = run("replay", path, "--policy", "lru", "--cache-fraction", "0.2", "--per-layer").out
    assert "decode hit rate of each layer, %, at a cache of 20.00 % of all experts" in layers


@pytest.mark.parametrize(
    "flags", [("--cache-mib", "3"), ("--cache-fraction", "0.2", "--flash-mib-s", "2000")]
)
def test_what_is_in_mib_is_refused(flags, made, tmp_path):
    path = tmp_path / "run.npz"
    path.write_bytes(runs.as_npz(made))
    done = run("replay", path, *flags)
    assert done.code == 1
    assert "--model PATH or --expert-mib M" in done.err
    assert done.out == ""


def test_sizes_of_only_some_layers_are_no_sizes(made):
    trace = of(made, expert_bytes=[5, 0, 5, 5, 5])
    with pytest.raises(TraceError, match="how many bytes an expert of layer 2 has"):
        tracekit.replay(trace, ["lru"], cache_fraction=0.5)


@pytest.mark.slow
def test_the_rest_runs(made, tmp_path):
    path = tmp_path / "run.npz"
    path.write_bytes(runs.as_npz(made))
    for args in (
        ("info",),
        ("predict", "--predictor", "prev-token,static-hot"),
        ("plot", "popularity", "-o", tmp_path / "a.png"),
        ("plot", "concentration", "-o", tmp_path / "b.png"),
        ("plot", "overlap", "-o", tmp_path / "c.png"),
        ("report", "-o", tmp_path / "r.html"),
    ):
        command, *flags = args
        kind = flags[:1] if command == "plot" else []
        done = run(command, *kind, path, *flags[len(kind) :])
        assert done.code == 0, done.err
    assert "--expert-mib M" in (tmp_path / "r.html").read_text()
    refused = run("plot", "curves", path, "-o", tmp_path / "d.png")
    assert (refused.code, "--expert-mib M" in refused.err) == (3, True)


# ---- the rank of the slots ----------------------------------------------------------------------


def test_what_needs_the_rank_says_so(made):
    for trace, words in (
        (of(made), "has them in an order that its source does not say; weights would rank them"),
        (
            tracekit.from_arrays(np.sort(made.experts), layers=made.layers),
            "has them in the order of the expert ids; weights would rank them",
        ),
    ):
        with pytest.raises(MissingDataError, match=words):
            tracekit.replay(trace, ["fewer-experts"])
        result = tracekit.replay(trace, ["lru", "fewer-experts"])
        assert [row.policy for row in result.rows] == ["lru"] * 3
        assert any(note.startswith("Left out: fewer-experts") for note in result.notes)
        assert any("Which expert of a routing is the heaviest" in note for note in result.notes)
    ranked = of(made, weights=made.weights)
    result = tracekit.replay(ranked, ["fewer-experts"])
    assert not any("heaviest" in note for note in result.notes)

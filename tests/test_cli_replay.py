"""``tracekit replay``: its table, its records in every format, its options."""

import csv
import io
import json
import os

import pyarrow.parquet as pq
import pytest
from cli_helpers import csv_lines, run, run_process, write_csv

KEYS = {
    *("policy", "params", "cache_bytes", "cache_mib", "lookups", "hits", "hit_rate_cumulative"),
    *("lookups_decode", "hits_decode", "hit_rate_decode", "read_bytes", "read_bytes_decode"),
    *("peak_resident_bytes", "peak_resident_bytes_decode", "over_budget", "over_budget_decode"),
}


@pytest.fixture
def small(tmp_path):
    return write_csv(tmp_path / "small.csv")


def results(*args):
    done = run("replay", *args, "--format", "json")
    assert done.code == 0, done.err
    return json.loads(done.out)["results"]


def test_the_default_table_compares_lru_with_the_best(small):
    done = run("replay", small)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        f"{small}: small, 2 MoE layers × 8 experts, 2 used per token and layer\n"
        "expert bank 20.00 MiB, token cycle 5.00 MiB, 5 decoded tokens\n"
        "expert lookups: 20 decode, 27 cumulative\n"
    )
    rows = [line.split() for line in done.out.splitlines()]
    assert [row[:3] for row in rows if row and row[0] in ("lru", "belady", "bound")] == [
        [policy, *cache]
        for cache in (("2^", "10.00"), ("5", "25.00"), ("10", "50.00"))
        for policy in ("lru", "belady", "bound")
    ]
    assert (
        "One token cycle, the bytes a token touches over all layers, is 5 MiB; under it: 2 MiB."
        in done.out
    )


def test_only_marks_that_occur_are_explained(small):
    out = run("replay", small, "--policy", "lru", "--cache-mib", "10").out
    assert "^" not in out
    assert "*" not in out
    assert "bound:" not in out
    assert "knows the future" not in out


def test_without_sizes_the_recorded_budget_counts(tmp_path):
    lines = csv_lines()
    lines.insert(1, "# cache_mib=6")
    recorded = results(write_csv(tmp_path / "x.csv", lines))
    assert [(r["policy"], r["cache_mib"]) for r in recorded] == [
        ("lru", 6),
        ("belady", 6),
        ("bound", 6),
    ]


def test_sizes_and_policies_repeat_or_take_commas(small):
    found = results(
        *(small, "--policy", "lru,lfu", "--policy", "belady"),
        *("--cache-mib", "0,8.5", "--cache-mib", "10", "--cache-fraction", "1"),
    )
    assert list(dict.fromkeys(r["policy"] for r in found)) == ["lru", "lfu", "belady"]
    assert list(dict.fromkeys(r["cache_mib"] for r in found)) == [0, 8.5, 10, 20]


def test_json_carries_configuration_provenance_and_results(small):
    done = run("replay", small, "--policy", "lru,bound", "--cache-mib", "10", "--format", "json")
    document = json.loads(done.out)
    assert list(document) == ["schema", "config", "provenance", "notes", "results"]
    assert document["schema"] == "tracekit.replay/1"
    assert document["config"]["seed"] == 0
    assert len(document["provenance"]["trace_digest"]) == 64
    lru, bound = document["results"]
    assert set(lru) >= KEYS
    assert lru["cache_bytes"] == 10 << 20
    assert lru["hits_decode"] / lru["lookups_decode"] == lru["hit_rate_decode"] == 0.5
    assert bound["peak_resident_bytes"] is None
    assert bound["over_budget"] is None


def test_every_format_has_the_same_records(small, tmp_path):
    args = (small, "--policy", "lru,bound,random", "--cache-mib", "4,10", "-q")
    wanted = results(*args)
    for record in wanted:
        record["params"] = " ".join(f"{k}={v}" for k, v in record["params"].items())
    path = tmp_path / "out.parquet"
    assert run("replay", *args, "-o", path).code == 0
    assert pq.read_table(path).to_pylist() == wanted
    text = run("replay", *args, "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [{k: _as_csv(v) for k, v in record.items()} for record in wanted] == rows


def _as_csv(value):
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_several_values_of_a_parameter_are_several_variants(small):
    found = results(
        *(small, "--policy", "random", "--param", "random.seed=3,4", "--cache-mib", "6"),
    )
    assert [r["params"] for r in found] == [{"seed": 3}, {"seed": 4}]
    table = run("replay", small, "--policy", "random", "--param", "random.seed=3,4").out
    assert "random seed=3" in table
    assert "random seed=4" in table


def test_static_replays_lossy_policies_both_ways(small):
    args = (small, "--policy", "lru,drop-cold", "--cache-mib", "10", "--static")
    found = results(*args, "--param", "drop-cold.frac=0.5")
    assert [r["params"] for r in found] == [
        {},
        {"frac": 0.5, "static": False},
        {"frac": 0.5, "static": True},
    ]
    done = run("replay", small, "--policy", "lru", "--static")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "Error: --static is for policies that drop experts, such as drop-cold; add one.\n"
    )


def test_the_seed_option_reaches_policies_that_draw(small):
    (found,) = results(small, "--policy", "random", "--seed", "7", "--cache-mib", "6")
    assert found["params"] == {"seed": 7}


def test_every_format_has_the_layers(small):
    args = (small, "--policy", "lru,bound", "--cache-mib", "10", "--per-layer")
    lru, bound = results(*args)
    assert [layer["layer"] for layer in lru["layers"]] == [0, 1]
    assert sum(layer["hits_decode"] for layer in lru["layers"]) == lru["hits_decode"]
    assert [layer["hits_decode"] for layer in bound["layers"]] == [None, None]
    rows = list(csv.DictReader(io.StringIO(run("replay", *args, "--format", "csv").out)))
    assert [(r["policy"], r["cache_mib"], r["layer"]) for r in rows] == [
        *(("lru", "10.0", layer) for layer in ("", "0", "1")),
        *(("bound", "10.0", layer) for layer in ("", "0", "1")),
    ]
    table = run("replay", *args).out
    layers = table.partition("decode hit rate of each layer, %, at a cache of 10 MiB\n")[2]
    assert layers.split("\n")[:3] == ["layer    lru", "    0  40.00", "    1  60.00"]


def test_a_replay_is_compared_with_the_recording(small):
    # The file says that every lookup missed, as a cache of nothing would have it.
    (nothing,) = results(small, "--policy", "lru", "--cache-mib", "0", "--validate")
    assert nothing["validation"] == {"lookups": 20, "mismatches": 0}
    args = (small, "--policy", "lru,bound", "--cache-mib", "10", "--validate")
    lru, bound = results(*args)
    assert lru["validation"] == {"lookups": 20, "mismatches": 10}
    assert "validation" not in bound
    assert "10 of 20\n" in run("replay", *args).out


def test_predictors_are_scored_beside_policies(small):
    args = (small, "--policy", "lru,prev-token", "--cache-mib", "10")
    lru, scored = results(*args)
    assert (lru["policy"], "predictor" in lru) == ("lru", False)
    assert (scored["predictor"], "policy" in scored) == ("prev-token", False)
    assert scored["routings"] + scored["unscored"] == 10
    table = run("replay", *args).out
    assert table.index("policy") < table.index("prev-token")


def test_predictors_alone_give_the_json_of_predict(small):
    done = run("replay", small, "--policy", "prev-token", "--format", "json")
    assert json.loads(done.out)["schema"] == "tracekit.predict/1"


@pytest.mark.slow  # test_own_modules runs one
def test_a_class_of_the_user_is_found_in_the_current_directory(small, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from tracekit.policies import LRU\n"
        "from tracekit.predictors import PrevToken\n"
        "class MyPolicy(LRU):\n    name = 'mine'\n"
        "class MyPredictor(PrevToken):\n    name = 'my-guess'\n"
    )
    done = run_process(
        *("replay", small, "--policy", "mine:MyPolicy,mine:MyPredictor", "--format", "json"),
        *("--cache-mib", "10"),
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    policy, predictor = json.loads(done.out)["results"]
    assert (policy["policy"], policy["hits"]) == ("mine", 10)
    assert predictor["predictor"] == "my-guess"


def test_verbose_names_the_seed(small):
    assert run("replay", small, "-v").err.startswith("seed 0; took ")


def test_the_published_run_of_a_phone(phone_traces):
    trace = phone_traces / "traces" / "qwen.route.csv"
    args = (trace, "--policy", "lru", "--cache-mib", "4000", "--validate")
    (record,) = results(*args)
    assert record["validation"] == {"lookups": 36_864, "mismatches": 0}
    assert round(100 * record["hit_rate_cumulative"], 2) == 74.88
    assert "0 of 36864" in run("replay", *args).out


def test_flash_time_follows_from_the_bytes_read(small):
    plain, timed = (
        run("replay", small, "--policy", "lru", "--cache-mib", "4", *rate)
        for rate in ((), ("--flash-mib-s", "500"))
    )
    of_plain, of_timed = (
        out.out.split("\n\n")[1].split("\n")[-1].split() for out in (plain, timed)
    )
    read, busy = float(of_timed[6]), float(of_timed[7])
    assert of_timed[:7] + of_timed[8:] == of_plain
    assert busy == pytest.approx(read / 500 * 1000, rel=0.01)
    assert "at 500 MiB a second" in timed.out
    refused = run("replay", small, "--flash-mib-s", "0")
    assert (refused.code, refused.err) == (2, "Error: flash_mib_s takes a rate above 0, not 0.0.\n")


def test_a_parameter_reaches_the_predictor_it_names(small):
    learned, given = (
        json.loads(run("replay", small, "--policy", "layer-lag", *param, "--format", "json").out)
        for param in ((), ("--param", "layer-lag.lag=1"))
    )
    assert given["config"]["params"] == {"layer-lag.lag": "1"}
    assert given["results"][0]["unscored"] < learned["results"][0]["unscored"]
    refused = run("replay", small, "--policy", "layer-lag", "--param", "lru.size=1")
    assert (refused.code, "set for 'lru', which is not replayed" in refused.err) == (2, True)


OWN = """
from tracekit.policies import PlainPolicy
from tracekit.predictors import Predictor

class Raises(PlainPolicy):
    name = "raises"
    def victim(self, evictable):
        return {}["nothing"]

class Guess(Predictor):
    name = "guess"
    def scores(self, block, layer):
        return 1 / 0

class Odd(PlainPolicy):
    name = "odd"
    def __init__(self, one, two, three):
        pass
    def victim(self, evictable):
        return evictable[0]

class Lacking(PlainPolicy):
    name = "lacking"

class Acting(Raises):
    name = "acting"
    needs_predictor = True
"""


@pytest.mark.parametrize(
    ("cls", "code", "sentence"),
    [
        pytest.param(
            "Raises",
            1,
            "victim() in {file}, line 8, raised KeyError: 'nothing'; TRACEKIT_DEBUG=1",
            marks=pytest.mark.slow,
        ),
        ("Guess", 1, "scores() in {file}, line 13, raised ZeroDivisionError: division by zero;"),
        pytest.param(
            "Odd", 2, "own:Odd cannot be made of its Params alone", marks=pytest.mark.slow
        ),
        pytest.param(
            "Lacking",
            2,
            "'own:Lacking' lacks victim, which every policy has; write it.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "Acting",
            2,
            "'acting' needs a predictor, so its Params need fields predictor and horizon",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fault_in_a_users_class_is_explained(small, tmp_path, cls, code, sentence):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    arguments = ("replay", small, "--cache-mib", "0", "--policy", f"own:{cls}")
    done = run_process(*arguments, cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert sentence.format(file=file) in done.err


@pytest.mark.slow
@pytest.mark.parametrize("cls", ["Raises", "Odd"])
def test_a_fault_in_a_users_class_is_traced_if_asked_for(small, tmp_path, cls):
    (tmp_path / "own.py").write_text(OWN)
    debug = {**os.environ, "TRACEKIT_DEBUG": "1"}
    arguments = ("replay", small, "--cache-mib", "0", "--policy", f"own:{cls}")
    assert "Traceback" in run_process(*arguments, cwd=tmp_path, env=debug).err


@pytest.mark.slow
def test_a_module_that_does_not_load(small, tmp_path):
    (tmp_path / "own.py").write_text("x = nowhere")
    done = run_process("replay", small, "--policy", "own:Mine", cwd=tmp_path)
    assert done.code == 2
    assert "cannot be loaded: NameError: name 'nowhere' is not defined." in done.err

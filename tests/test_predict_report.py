"""The report, the frames, the JSON and the command; the phone traces; a predictor of one's own."""

import json
import re
import subprocess
import sys
from textwrap import dedent, indent

import numpy as np
import pytest
from cli_helpers import run
from predict_traces import toy, trace_of

import tracekit.predictors.base
from tracekit.figures import Unit
from tracekit.predictors import PREDICTORS, Predictor
from tracekit.scoring import predict
from tracekit.scoring.predict import default_predictors
from tracekit.scoring.rows import COLUMNS, LAYER_COLUMNS
from tracekit.scoring.text import percent
from tracekit.stats.bootstrap import Bootstrap
from tracekit.stats.units import Units
from tracekit.trace import UsageError


@pytest.fixture(scope="module")
def result():
    trace = trace_of(toy(turns=(50, 40, 45)))
    return predict(trace, ["stale-gate", "prev-token", "ctrl"], horizons=(1, 2), named=[8])


def test_headline(result):
    stale, far, prev, ctrl = result.records
    shown = [
        (name, f"{100 * r['slot_accuracy']:.1f}", f"{100 * r['exact_rate']:.1f}")
        for name, r in (
            ("stale-gate", stale),
            ("stale-gate at horizon 2", far),
            ("prev-token", prev),
            ("ctrl", ctrl),
        )
    ]
    assert result.headline() == " | ".join(f"{n} {a} % ({b} %)" for n, a, b in shown)
    assert "\n" not in result.headline()


def test_a_result_says_what_it_is(result):
    assert repr(result).endswith(": stale-gate, stale-gate at horizon 2, prev-token, ctrl>")


def test_text_report(result):
    text = result.to_text()
    assert text.startswith(result.headline())
    assert "stale-gate: 405 routings, 1620 slots, 135 unscored, 95 % interval " in text
    assert "prev-token: 528 routings, 2112 slots, 12 unscored" in text
    table = [line.split() for line in text.splitlines()]
    assert ["layer", "stale", "stale+2", "prev", "ctrl", "tokens"] in table
    at = table.index(["layer", "stale", "stale+2", "prev", "ctrl", "tokens"])
    rows = table[at + 1 : at + 5]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert [row[1] == "-" for row in rows] == [True, False, False, False]
    assert [row[2] == "-" for row in rows] == [True, True, False, False]
    assert all(row[4:] == ["100.0", "135"] for row in rows)
    assert ["named", "4", "8", "mass", "4", "mass", "8"] in table
    assert "Accuracy is not speed" in text


def test_the_advice_names_what_was_scored():
    advice = predict(trace_of(toy()), ["prev-token", "ctrl"]).sentences()[-1]
    assert (
        "replay with --policy lru,retention,prefetch --param retention.predictor=prev-token "
        "--param prefetch.predictor=prev-token to see"
    ) in advice


def test_two_sentences_say_what_the_figures_say(result):
    stale, far, prev, _ = result.records
    first, second = result.sentences()
    assert first.startswith(
        f"stale-gate names {percent(stale['slot_accuracy'])} % of the selected experts where "
        f"repeating the previous token names {percent(prev['slot_accuracy'])} %;"
    )
    below = [
        layer["layer"]
        for layer in stale["layers"]
        if layer["ci95"] and layer["ci95"][1] < stale["slot_accuracy"]
    ]
    assert sorted(int(n) for n in re.findall(r"(\d+) \(\d", first)) == below
    assert second.startswith("Accuracy is not speed")
    assert (
        f"  stale-gate at horizon 2: {percent(far['slot_accuracy'])} % of selected experts, "
        f"{percent(far['gate_mass'])} % of router weight, {percent(far['exact_rate'])} % of "
        "routings unchanged"
    ) in result.to_text()


def test_a_broken_control_is_said_first_and_loudly():
    run = toy(turns=(60,))
    run.matrix[2] = run.matrix[2][::-1]  # the probe reads another matrix than the model
    result = predict(trace_of(run), ["stale-gate", "ctrl"])
    text = result.to_text()
    ctrl = result.record("ctrl")
    assert text.startswith("CTRL IS BELOW 100 %: the fresh-gate control names only ")
    assert f"in layers 2 ({percent(ctrl['layers'][2]['slot_accuracy'])} %);" in text
    assert "against ctrl, not against 100 %" in text
    assert result.sentences()[0].startswith("CTRL IS BELOW 100 %")
    assert [x["slot_accuracy"] for x in ctrl["layers"]][:2] == [1.0, 1.0]


def test_only_a_whole_is_written_as_one():
    assert percent(1.0) == "100.0"
    assert percent(0.99996) == "99.996"
    assert percent(0.9994) == "99.9"
    assert percent(0.0) == "0.0"
    assert percent(None) == "-"


def test_json(result):
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == "tracekit.predict/1"
    assert document["config"]["horizons"] == [1, 2]
    assert document["config"]["seed"] == 0
    assert document["provenance"]["trace_digest"] == result.trace.digest
    first = document["results"][0]
    assert {"predictor", "horizon", "routings", "slots", "hits", "slot_accuracy"} <= set(first)
    assert {"exact_rate", "unscored", "ci95", "layers"} <= set(first)
    assert first["layers"][0]["slot_accuracy"] is None
    assert first["layers"][0]["ci95"] is None
    assert first["layers"][0]["unscored"] == 135
    assert document["results"][2]["horizon"] is None


def test_frames(result):
    frame = result.frame
    assert frame["predictor"].tolist() == ["stale-gate", "stale-gate", "prev-token", "ctrl"]
    assert (frame["hits"] / frame["slots"] == frame["slot_accuracy"]).all()
    assert (frame["recall_8"] >= frame["slot_accuracy"]).all()
    layers = result.layers
    assert len(layers) == 4 * 4
    assert layers.query("predictor == 'stale-gate' and layer == 0")["slot_accuracy"].isna().all()


def test_every_column_is_declared(result):
    named = [4, 8]
    for frame, columns, more in (
        (result.frame, COLUMNS, []),
        (result.layers, LAYER_COLUMNS, ["predictor", "horizon"]),
    ):
        declared = [
            name
            for figure in columns
            for name in (
                [f"{figure.name}_{m}" for m in named]
                if figure.unit is Unit.MAPPING
                else [figure.name]
            )
        ]
        assert list(frame) == [*more, *declared]
        nullable = {figure.name for figure in columns if figure.nullable}
        missing = {name for name in frame if name not in more and frame[name].isna().any()}
        assert missing - {"recall_4", "recall_8", "mass_named_4", "mass_named_8"} <= nullable


def test_a_row_is_what_the_record_says(result):
    for row, record in zip(result.rows, result.records, strict=True):
        assert row.recall == {int(m): rate for m, rate in record["recall"].items()}
        assert list(row.ci95) == record["ci95"]
        assert [layer.hits for layer in row.layers] == [x["hits"] for x in record["layers"]]
        assert result.row(row.predictor, row.horizon) is row
        assert result.record(row.predictor, row.horizon) == record
    with pytest.raises(UsageError, match="ctrl at horizon 2 is not in this result"):
        result.row("ctrl", 2)


# ---- intervals --------------------------------------------------------------------------------


def test_units_are_stretches_of_one_turn():
    units = Units.of(np.array([3, 5]), np.array([40, 16]))
    assert units.tokens == 16
    assert units.turn.tolist() == [3, 3, 3, 5]
    long = Units.of(np.array([0]), np.array([1_000_000]))
    assert len(long) <= 4096


def test_interval_holds_the_estimate_and_narrows():
    rng = np.random.default_rng(1)

    def interval(n):
        hits = rng.binomial(64, 0.7, (n, 1))
        low, high = Bootstrap(np.zeros(n, np.int32), 0).interval(hits, np.full((n, 1), 64))
        assert low[0] < hits.sum() / (64 * n) < high[0]
        return high[0] - low[0]

    assert interval(400) < interval(25)


@pytest.mark.slow  # two hundred intervals
def test_interval_covers_as_often_as_it_says():
    # Units whose rates differ, as stretches of text do: a normal interval of single routings would
    # be far too narrow.
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        rates = np.clip(rng.normal(0.6, 0.1, 40), 0, 1)
        hits = rng.binomial(128, rates)[:, None]
        low, high = Bootstrap(np.zeros(40, np.int32), 0).interval(hits, np.full((40, 1), 128))
        covered += low[0] <= 0.6 <= high[0]
    assert 0.88 <= covered / 200 <= 0.99


def test_turns_are_drawn_where_there_are_ten():
    # All units of a turn agree, so the turns are the only independent draws.
    turn = np.repeat(np.arange(12), 50).astype(np.int32)
    rate = np.random.default_rng(3).uniform(0.3, 0.9, 12)[turn]
    hits = np.round(rate * 100).astype(int)[:, None]
    slots = np.full((600, 1), 100)
    low, high = Bootstrap(turn, 0).interval(hits, slots)
    alone_low, alone_high = Bootstrap(np.zeros(600, np.int32), 0).interval(hits, slots)
    assert high[0] - low[0] > 3 * (alone_high[0] - alone_low[0])


def test_too_little_to_draw_from_has_no_interval():
    record = predict(trace_of(toy(turns=(40,))), ["ctrl"]).records[0]
    assert record["ci95"] is None
    assert predict(trace_of(toy(turns=(64,))), ["ctrl"]).records[0]["ci95"] == [1.0, 1.0]


def test_difference_is_paired():
    trace = trace_of(toy(turns=(80, 80, 80)))
    result = predict(trace, ["stale-gate", "stale-gate-renorm", "prev-token"])
    stale, renorm, _ = result.records
    gain, low, high = result.difference("stale-gate-renorm", "stale-gate")
    assert gain == pytest.approx(renorm["slot_accuracy"] - stale["slot_accuracy"])
    assert low < gain < high
    assert result.difference("stale-gate", "stale-gate") == (0, 0, 0)
    # Against prev-token only the routings that both scored in full count.
    gain, _, _ = result.difference("stale-gate", "prev-token")
    assert gain > 0.2


# ---- the phone traces -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prev", "hot"), [("qwen", "38.0", "37.6"), ("gptoss", "17.9", "26.7")]
)
def test_published_accuracies(phone_traces, name, prev, hot):
    from tracekit.formats import open_any

    trace = open_any(phone_traces / "traces" / f"{name}.route.csv")
    result = predict(trace, ["prev-token", "static-hot-insample", "static-hot"])
    shown = [percent(record["slot_accuracy"]) for record in result.records]
    assert shown[:2] == [prev, hot]
    assert result.records[2]["slot_accuracy"] < result.records[1]["slot_accuracy"]


# ---- a predictor of one's own -----------------------------------------------------------------


def test_the_documented_example_runs(tmp_path, monkeypatch):
    text = tracekit.predictors.base.__doc__
    lines = [line[4:] for line in text.splitlines() if line.startswith((">>> ", "... "))]
    (tmp_path / "same_ids.py").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = toy(turns=(12, 8))
    (record,) = predict(trace_of(run), ["same_ids:SameIds"]).records
    same = [
        len(set(run.experts[t, layer]) & set(run.experts[t, layer - 1]))
        for t in range(20)
        for layer in range(1, 4)
    ]
    assert record["predictor"] == "same-ids"
    assert record["hits"] == sum(same)
    assert record["unscored"] == 20
    assert len(lines) < 20


def test_parameters_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "shifted.py").write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "from tracekit.predictors import Predictor\n"
        "@dataclass(frozen=True)\n"
        "class ShiftedParams:\n"
        "    first: int = 0\n"
        "class Shifted(Predictor):\n"
        "    name, summary, Params = 'shifted', 'k ids from the first', ShiftedParams\n"
        "    def scores(self, block, layer):\n"
        "        ids = (np.arange(self.routers.n_expert) - self.params.first) % 16\n"
        "        return np.tile(-ids.astype(np.float32), (len(block), 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = toy(turns=(20,))
    for given, first in (({}, 0), ({"shifted.first": "12"}, 12)):
        (record,) = predict(trace_of(run), ["shifted:Shifted"], params=given).records
        assert record["hits"] == np.isin(run.experts, np.arange(first, first + 4)).sum()
    for params, sentence in (
        ({"shifted.last": 1}, "shifted has no parameter 'last'; it has: first."),
        ({"ctrl.first": 1}, "A parameter is set for 'ctrl', which is not scored here."),
        ({"shifted.first": "x"}, "shifted.first takes a whole number, not 'x'."),
    ):
        with pytest.raises(UsageError) as error:
            predict(trace_of(run), ["shifted:Shifted"], params=params)
        assert str(error.value) == sentence


class LowestIds(Predictor):
    name = "lowest-ids"
    summary = "ids 0 to k"

    def scores(self, block, layer):
        return np.tile(-np.arange(16, dtype=np.float32), (len(block), 1))


def test_a_predictor_of_ones_own_is_a_rival_under_its_own_name():
    result = predict(trace_of(toy()), [LowestIds, "ctrl", "random-guess", "oracle"])
    assert [row.short_label for row in result.rows] == ["lowest-ids", "ctrl", "random", "oracle"]
    assert [row.scored.is_rival() for row in result.rows] == [True, False, False, False]
    assert result.sentences()[0].startswith("lowest-ids names ")
    # A policy could not find it by its name.
    assert "retention.predictor" not in result.sentences()[-1]


def test_the_default_table_follows_the_registry():
    scored = [cls.name for cls in default_predictors()]
    assert scored == [cls.name for cls in PREDICTORS if cls.by_default]
    assert scored[:3] == ["stale-gate", "prev-token", "ctrl"]
    assert "oracle" not in scored
    assert predict(trace_of(toy())).config["predictors"] == scored


# ---- the command ------------------------------------------------------------------------------


def command(*arguments, cwd, name="predict"):
    return subprocess.run(
        [sys.executable, "-m", "tracekit", name, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    from tracekit.trace import write_trace

    path = tmp_path_factory.mktemp("predict") / "toy.trace"
    write_trace(trace_of(toy(turns=(20, 20))), path)
    return path


def test_command_prints_the_report(recorded):
    done = run("predict", recorded)
    assert done.code == 0, done.err
    assert done.out.startswith("stale-gate ")
    assert "ctrl 100.0 % (100.0 %)" in done.out.splitlines()[0]


def test_command_writes_every_layer_as_csv(recorded):
    done = run(
        *("predict", recorded),
        *("--predictor", "stale-gate,prev-token", "--horizon", "1,2", "--named", "4,8"),
        *("--per-layer", "--format", "csv", "--jobs", "1"),
    )
    assert done.code == 0, done.err
    header, *rows = done.out.splitlines()
    assert header.startswith("predictor,horizon,routings,slots,hits,slot_accuracy,")
    assert {"ci95_low", "ci95_high", "recall_8", "layer"} <= set(header.split(","))
    assert len(rows) == 3 * (1 + 4)


@pytest.mark.slow
def test_command_takes_a_class_from_the_current_folder(recorded):
    source = indent(
        dedent("""
        def scores(self, block, layer):
            return np.tile(-np.arange(16, dtype=np.float32), (len(block), 1))
        """),
        "    ",
    )
    module = recorded.parent / "lowest_ids.py"
    module.write_text(
        "import numpy as np\nfrom tracekit.predictors import Predictor\n\n"
        f"class Lowest(Predictor):\n    name = 'lowest'\n    summary = 'ids 0 to k'\n{source}"
    )
    done = command(recorded, "--predictor", "lowest_ids:Lowest", cwd=recorded.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lowest ")


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("name", ["predict", "replay"])
@pytest.mark.parametrize("owner", ["chosen", "chosen_ids:Chosen"])
def test_a_parameter_of_a_predictor_is_taken_as_it_is_written(recorded, name, owner):
    (recorded.parent / "chosen_ids.py").write_text(
        dedent("""
        from dataclasses import dataclass

        import numpy as np

        from tracekit.predictors import Predictor

        @dataclass(frozen=True)
        class ChosenParams:
            ids: str = ""

        class Chosen(Predictor):
            name = "chosen"
            summary = "ids that are given"
            Params = ChosenParams

            def scores(self, block, layer):
                text, ids = self.params.ids.split("=")
                assert text == " the ids", text
                scores = np.zeros((len(block), self.routers.n_expert), np.float32)
                scores[:, [int(i) for i in ids.split(", ")]] = 1
                return scores
        """)
    )
    option = "--predictor" if name == "predict" else "--policy"
    value = " the ids=7, 5, 5, 3, 9"
    done = command(
        *(recorded, option, "chosen_ids:Chosen", "--param", f"{owner}.ids={value}"),
        *("--format", "json"),
        cwd=recorded.parent,
        name=name,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["config"]["params"] == {f"{owner}.ids": value}
    experts = toy(turns=(20, 20)).experts
    assert document["results"][0]["hits"] == np.isin(experts, [3, 5, 7, 9]).sum()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--predictor", "combin"], 2, "did you mean 'combined'?"),
        (["--horizon", "0"], 2, "--horizon takes a whole number, 1 or more, not '0'."),
        (["--horizon", "4"], 2, "reaches past the model: it has 4 MoE layers"),
        (["--named", "1e3"], 2, "--named takes a whole number, 1 or more, not '1e3'."),
        (["--named", "99"], 2, "99 experts cannot be named: the model has 16"),
        (["--train", "nowhere.trace"], 3, "nowhere.trace"),
    ],
)
def test_command_refuses_in_a_sentence(recorded, arguments, code, sentence):
    done = run("predict", recorded, *arguments)
    assert sentence in done.err
    assert done.code == code
    assert "Traceback" not in done.err
    assert done.out == ""


def test_an_advice_to_act_names_what_acts():
    trace = trace_of(toy(), drop=("gate_input",))
    assert (
        "prefetch.predictor=static-hot"
        in predict(trace, ["prev-token", "static-hot"]).sentences()[-1]
    )


def test_parameters_in_a_name_are_given_apart_here():
    with pytest.raises(
        UsageError, match=r"given apart here: oracle, and --param oracle\.accuracy=1"
    ):
        predict(trace_of(toy()), ["oracle@accuracy=1"])

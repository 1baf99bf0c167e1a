"""Advice: plain findings, every figure of which is found by the command that it names."""

import csv
import json
import re
import shlex

import pytest
from cli_helpers import run
from timed_runs import timed

import tracekit
from tracekit.advice.advise import advise
from tracekit.datasets import resolve
from tracekit.trace import synthesize
from tracekit.trace.errors import MissingDataError, UsageError
from tracekit.trace.writer import write_trace


def records_of(command, folder):
    """Run a command of a finding; return the records that it prints or writes."""
    words = shlex.split(command)[1:]
    if "-o" in words:
        path = folder / "numbers.csv"
        words[words.index("-o") + 1] = str(path)
        assert run(*words, "--force").code == 0
        with path.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))
    done = run(*words, "--format", "json")
    assert done.code == 0, done.err
    return json.loads(done.out)["results"]


def check_every_number(advice, folder):
    """Find each figure by its command; return how many there are."""
    results = {}
    numbers = [number for finding in advice.findings for number in finding.numbers]
    for number in numbers:
        if number.command not in results:
            results[number.command] = records_of(number.command, folder)
        found = [
            record
            for record in results[number.command]
            if all(
                record.get(name) == value or str(record.get(name)) == str(value)
                for name, value in number.row.items()
            )
        ]
        assert len(found) == 1, number
        assert float(found[0][number.column]) == pytest.approx(number.value), number
    return len(numbers)


def check_texts(advice):
    """The figures are in the sentences as they are written, and no other digits of a rate are."""
    for finding in advice.findings:
        for number in finding.numbers:
            assert number.text in finding.sentence, number
        rates = re.findall(r"[\d.]+ %", re.sub(r"\([^)]*\)|95 %", "", finding.sentence))
        assert set(rates) <= {n.text for n in finding.numbers} | {
            n.text.lstrip("+") for n in finding.numbers
        }


@pytest.fixture(scope="module")
def bundled():
    path = resolve("bundled:tiny-moe-64e.trace")
    return advise(tracekit.open_trace(path), where=str(path))


@pytest.mark.slow
def test_every_number_is_found_by_its_command(tmp_path):
    path = tmp_path / "small.trace"
    write_trace(synthesize(4, 16, 2, 120, n_turns=3, prefill=4, expert_bytes=1 << 20), path)
    advice = advise(tracekit.open_trace(path), where=str(path))
    assert check_every_number(advice, tmp_path) > 15
    check_texts(advice)


@pytest.mark.slow
def test_every_number_of_the_bundled_trace_too(bundled, tmp_path):
    assert check_every_number(bundled, tmp_path) > 30
    check_texts(bundled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen", "gptoss"])
def test_every_number_of_a_phone_too(phone_traces, tmp_path, name):
    path = tmp_path / f"{name}.trace"
    source = phone_traces / "traces" / f"{name}.route.csv"
    metrics = phone_traces / "traces" / f"{name}.metrics"
    assert run("import", source, "--metrics", metrics, "-o", path).code == 0
    advice = advise(tracekit.open_trace(path), where=str(path))
    assert check_every_number(advice, tmp_path) > 20
    check_texts(advice)
    timed = any("ms instead of" in finding.sentence for finding in advice.findings)
    assert timed != any(sentence.startswith("Time: ") for sentence in advice.lacking)


@pytest.mark.slow
def test_it_reads_as_a_page(bundled):
    text = bundled.to_text()
    topics = ["Policy", "Cache size", "Reading ahead", "Retention", "What would say more"]
    lines = text.split("\n")
    assert [line for line in lines if line in topics] == topics
    assert "build follow" in text
    assert "\n    tracekit replay " in text
    prose = [line for line in lines[2:] if not line.startswith("    tracekit")]
    assert max(map(len, prose)) <= 100


@pytest.mark.usefixtures("fewer_ranked")
def test_the_command_prints_text_and_json(tmp_path):
    write_trace(synthesize(3, 8, 2, 60, n_turns=2, expert_bytes=1 << 20), tmp_path / "x.trace")
    done = run("advise", tmp_path / "x.trace", "--cache-mib", "6")
    assert done.code == 0
    assert "cache 6 MiB of 24 MiB" in done.out
    document = json.loads(run("advise", tmp_path / "x.trace", "--format", "json").out)
    assert document["schema"] == "tracekit.advise/1"
    assert document["findings"][0]["topic"] == "policy"
    assert document["findings"][0]["numbers"][0]["column"] == "hit_rate_decode"


@pytest.mark.slow
def test_parameters_reach_the_policies_and_the_commands(tmp_path):
    path = tmp_path / "x.trace"
    write_trace(synthesize(4, 16, 2, 120, n_turns=3, prefill=4, expert_bytes=1 << 20), path)
    params = {"prefetch.spec_max": ["1"], "prefetch.horizon": ["1", "3"]}
    advice = advise(tracekit.open_trace(path), where=str(path), params=params)
    ahead = next(f for f in advice.findings if f.topic == "reading ahead")
    assert "names 1 and 3 layers ahead" in ahead.sentence
    assert "--param prefetch.spec_max=1" in ahead.commands[0]
    assert any("at most 1 expert ahead" in finding.sentence for finding in advice.findings)
    assert check_every_number(advice, tmp_path) > 15
    check_texts(advice)


@pytest.mark.parametrize(
    ("param", "sentence"),
    [
        ("lur.a=1", "is set for 'lur', which advise does not try; it tries "),
        ("prefetch.spec_max=1,2", "one value of prefetch.spec_max, not 2; several may be given of"),
        ("prefetch.horizon=far", "prefetch.horizon takes whole numbers of layers, not 'far'"),
    ],
)
def test_a_parameter_that_is_not_tried_is_refused(tmp_path, param, sentence):
    write_trace(synthesize(2, 8, 2, 30), tmp_path / "x.trace")
    done = run("advise", tmp_path / "x.trace", "--param", param)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert sentence in done.err


@pytest.mark.usefixtures("fewer_ranked")
def test_what_is_not_worth_building_is_no_base_of_the_rest(tmp_path):
    """LRU stays where a gain would not be felt, and the figures of the rest are of LRU."""
    advice = advise(timed(tmp_path), cache_bytes=150 << 20)
    first, *rest = advice.findings
    assert first.sentence.startswith("Keep LRU")
    assert all("with lru" in f.sentence or "lru hits" in f.sentence for f in rest[:1])
    retention = next(f for f in rest if f.topic == "retention")
    assert "The typical token takes" in retention.sentence
    assert any("makes no mistake" in f.sentence and " ms instead of" in f.sentence for f in rest)


@pytest.mark.usefixtures("fewer_ranked")
def test_where_nothing_beats_lru_it_says_keep_lru():
    """With a cache for almost everything, policies hardly differ."""
    trace = synthesize(2, 4, 2, 40, n_turns=2, prefill=4, expert_bytes=1 << 20)
    advice = advise(trace, cache_bytes=7 << 20)
    assert advice.findings[0].sentence.startswith("Keep LRU: at 7 MiB")
    assert "no other policy is shown to hit more" in advice.findings[0].sentence


@pytest.mark.parametrize(
    ("trace", "given", "error", "sentence"),
    [
        (
            synthesize(2, 4, 1, 30),
            {"cache_bytes": 1 << 40},
            UsageError,
            "holds all experts or none",
        ),
        (synthesize(2, 4, 1, 30), {"cache_bytes": 0}, UsageError, "holds all experts or none"),
    ],
)
def test_what_cannot_be_advised_is_refused(trace, given, error, sentence):
    with pytest.raises(error, match=sentence):
        advise(trace, **given)


def test_without_sizes_it_says_what_to_give(tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    experts = rng.permuted(np.tile(np.arange(8), (40, 2, 1)), axis=2)[:, :, :2]
    with pytest.raises(MissingDataError, match="takes --model PATH or --expert-mib M"):
        advise(tracekit.from_arrays(experts, n_expert=8, prompt_lengths=[8]))


@pytest.mark.usefixtures("fewer_ranked")
def test_a_model_of_one_layer_has_nothing_to_read_ahead():
    advice = advise(synthesize(1, 16, 2, 80, n_turns=2, prefill=4))
    assert {finding.topic for finding in advice.findings} <= {"policy", "cache size"}


@pytest.mark.slow  # a whole phone trace
def test_the_times_of_another_recording_are_in_the_commands(phone_traces, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    source = phone_traces / "traces" / "qwen.route.csv"
    metrics = phone_traces / "traces" / "qwen.metrics"
    timed = folder / "timed.trace"
    assert run("import", source, "--metrics", metrics, "-o", timed).code == 0
    advice = advise(
        tracekit.open_trace(source), where=str(source), calibrate=tracekit.open_trace(timed)
    )
    (command,) = (c for c in advice.findings[0].commands if " replay " in c)
    assert f"--calibrate '{timed}'" in command
    numbers = [n for n in advice.findings[0].numbers if n.column == "typical_ms"]
    records = records_of(command, tmp_path)
    for number in numbers:
        (found,) = (r for r in records if r["policy"] == number.row["policy"])
        assert found["typical_ms"] == pytest.approx(number.value)
    assert len(numbers) == 2


def test_what_is_no_memory_and_no_recording_with_times_is_refused():
    trace = synthesize(2, 4, 1, 30)
    with pytest.raises(UsageError, match="ram_mib takes a number"):
        advise(trace, ram_mib=-5)
    with pytest.raises(MissingDataError, match="has no wall_ms"):
        advise(trace, calibrate=synthesize(2, 4, 1, 30, seed=1))


@pytest.mark.slow
def test_a_number_and_its_unit_stay_on_one_line(bundled):
    assert not any(
        line.lstrip().startswith(("% ", "MiB ", "ms ")) for line in bundled.to_text().split("\n")
    )

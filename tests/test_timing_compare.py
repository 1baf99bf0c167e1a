"""Two configurations recorded in turns: what is shown, what is not, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pytest
from cli_helpers import run as command

import tracekit
from tracekit import plots
from tracekit.timing.effect import START_TOKENS, effect_of
from tracekit.trace import Trace, UsageError, synthesize
from tracekit.trace.errors import MissingDataError, TraceError
from tracekit.trace.schema import DECODE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE
from tracekit.trace.writer import write_trace

ABBA = np.array([False, True, True, False])


def drawn_runs(rng, is_b, change, noise=0.03, drift=0.0, n_tokens=64):
    """Times of tokens that differ among themselves, in runs that differ too, and drift."""
    tokens = rng.gamma(20, 10, n_tokens)
    of_run = np.exp(rng.normal(0, noise, len(is_b)) + drift * np.arange(len(is_b)))
    scatter = np.exp(rng.normal(0, 0.1, (len(is_b), n_tokens)))
    return tokens * of_run[:, None] * np.where(is_b, 1 + change, 1.0)[:, None] * scatter


def share_shown(is_b, change, n_tries):
    rng = np.random.default_rng(7)
    verdicts = [effect_of(drawn_runs(rng, is_b, change), is_b) for _ in range(n_tries)]
    return np.mean([effect.is_shown for effect in verdicts])


@pytest.mark.slow
def test_equal_configurations_are_rarely_told_apart_and_a_fifth_mostly_is():
    assert share_shown(ABBA, 0.0, 10_000) <= 0.055
    assert share_shown(ABBA, 0.2, 10_000) >= 0.70
    assert share_shown(np.tile(ABBA, 2), 0.2, 10_000) >= 0.97


@pytest.mark.slow  # hundreds of comparisons
def test_few_tries_show_the_same():
    assert share_shown(ABBA, 0.0, 400) <= 0.09
    assert share_shown(np.tile(ABBA, 2), 0.2, 200) >= 0.93


@pytest.mark.slow  # to import scipy.stats takes a second
def test_the_interval_is_that_of_a_t_test_between_runs():
    from scipy.stats import ttest_ind

    is_b = np.tile(ABBA, 2)
    effect = effect_of(drawn_runs(np.random.default_rng(0), is_b, 0.1), is_b)
    test = ttest_ind(effect.by_run[is_b], effect.by_run[~is_b]).confidence_interval(0.95)
    low, high = effect.interval
    assert np.log1p([low, high]) == pytest.approx([test.low, test.high])


def test_a_drift_over_the_runs_cancels():
    rng = np.random.default_rng(0)
    effect = effect_of(drawn_runs(rng, ABBA, 0.1, noise=0, drift=0.2, n_tokens=4000), ABBA)
    assert effect.change == pytest.approx(0.1, abs=0.01)


def test_the_parts_sum_to_the_difference_of_the_mean():
    rng = np.random.default_rng(0)
    wall = drawn_runs(rng, ABBA, 0.0)
    wall[ABBA, :START_TOKENS] += 40  # a slow start
    wall[1, 50] += 900  # a stall
    read = rng.uniform(1, 2, wall.shape)
    read[ABBA] += 3
    wall += 5 * read
    parts = effect_of(wall, ABBA, read, 5.0).parts
    made_of = [parts.bytes_ms, parts.typical_ms, parts.start_ms, parts.stalls_ms]
    assert sum(made_of) == pytest.approx(parts.total_ms)
    assert parts.total_ms == pytest.approx(wall[ABBA].mean() - wall[~ABBA].mean())
    assert parts.bytes_ms == pytest.approx(15, abs=2)
    assert parts.start_ms == pytest.approx(40 * START_TOKENS / wall.shape[1], abs=3)
    assert parts.stalls_ms > 4


@pytest.fixture(scope="module")
def routed():
    return synthesize(3, 8, 2, 80, prefill=5, expert_bytes=1 << 20)


def recording(routed, wall_ms, name, read_bytes=None, tokens=None):
    """A trace with the routing of `routed`, and with these figures of its decoded tokens."""
    steps = routed.table(STEPS_FILE)
    decoded = np.asarray(steps["phase"]) == DECODE
    given = {"wall_ms": wall_ms, "read_bytes": read_bytes, "token": tokens}
    for column, values in given.items():
        if values is None:
            continue
        of_all = np.full(len(steps), np.nan)
        of_all[decoded] = values
        field = steps.schema.field(column)
        array = pa.array(of_all, from_pandas=True).cast(field.type)
        steps = steps.set_column(steps.schema.get_field_index(column), field, array)
    tables = routed.table(LAYERS_FILE), routed.table(ROUTING_FILE), steps
    return Trace.from_tables(routed.facts, *tables, name=name)


@pytest.fixture(scope="module")
def recordings(routed):
    rng = np.random.default_rng(3)
    wall = drawn_runs(rng, ABBA, 0.3, noise=0.005, n_tokens=80)
    read = rng.integers(1, 9, 80) << 20
    return [
        recording(routed, ms, f"{name}.trace", read, np.arange(80))
        for ms, name in zip(wall, ("a1", "b1", "b2", "a2"), strict=True)
    ]


def test_a_difference_is_shown_and_said(recordings):
    found = tracekit.compare(recordings)
    assert [run.configuration for run in found.runs] == list("ABBA")
    assert found.effect.verdict == "slower"
    low, high = found.effect.interval
    assert low < 0.3 < high
    assert found.verdict.startswith("B is slower: its typical token takes ")
    text = found.to_text()
    assert "from 4 runs" in text
    assert "of that, what its bytes explain" in text
    ax = plots.plot_comparison(found)
    assert ax.get_title(loc="left")
    assert len(ax.get_lines()) == 3


def test_one_run_of_each_shows_nothing(recordings):
    found = tracekit.compare(recordings[:2])
    assert found.effect.verdict == "no difference shown"
    assert found.effect.interval is None
    assert "record A B B A" in found.verdict


def test_equal_runs_show_nothing_and_say_what_they_could_have(routed):
    wall = drawn_runs(np.random.default_rng(1), ABBA, 0.0, n_tokens=80)
    found = tracekit.compare([recording(routed, ms, f"{r}") for r, ms in enumerate(wall)])
    assert found.verdict.startswith("No difference is shown")
    assert f"a difference of {100 * found.effect.least_shown:.1f} % would" in found.verdict
    assert found.notes == [
        "What bytes explain is not told apart: a run does not say what its tokens read."
    ]


def test_what_cannot_be_compared_is_refused(routed, recordings):
    a, b = recordings[:2]
    with pytest.raises(UsageError, match="needs at least two"):
        tracekit.compare([a])
    with pytest.raises(UsageError, match="order takes ABBA or ABAB, not 'BA'"):
        tracekit.compare([a, b], "BA")
    with pytest.raises(UsageError, match="the same recording is given twice"):
        tracekit.compare([a, b, b, a])
    with pytest.raises(MissingDataError, match="does not give the time of every decoded token"):
        tracekit.compare([a, routed])
    times = np.linspace(1, 2, 80)
    tokens = np.arange(80)
    tokens[40] = 7
    with pytest.raises(TraceError, match=r"x parts from a1.trace in turn 0, step 45: the tokens"):
        tracekit.compare([a, recording(routed, times, "x", tokens=tokens)])
    other = synthesize(3, 8, 2, 80, prefill=5, expert_bytes=1 << 20, seed=1)
    with pytest.raises(TraceError, match=r"x routes otherwise than a1.trace in turn 0, step 0"):
        tracekit.compare([a, recording(other, times, "x", tokens=np.arange(80))])
    larger = synthesize(3, 16, 2, 80, prefill=5, expert_bytes=1 << 20)
    with pytest.raises(TraceError, match=r"x is of another model than a1\.trace"):
        tracekit.compare([a, recording(larger, times, "x", tokens=np.arange(80))])
    short = synthesize(3, 8, 2, 12, prefill=5, expert_bytes=1 << 20)
    runs = [recording(short, np.linspace(1, 2 + r, 12), f"{r}") for r in range(2)]
    with pytest.raises(UsageError, match="of which the first 16 do not count"):
        tracekit.compare(runs)


def test_the_command_prints_the_table_and_draws(recordings, tmp_path):
    paths = []
    for trace in recordings:
        write_trace(trace, tmp_path / trace.name)
        paths.append(tmp_path / trace.name)
    done = command("compare", *paths, "--plot", tmp_path / "runs.png")
    assert done.code == 0
    assert "B is slower" in done.out
    assert (tmp_path / "runs.png").stat().st_size > 5000
    document = json.loads(command("compare", *paths, "--format", "json").out)
    assert document["verdict"] == "slower"
    assert document["runs"][1]["configuration"] == "B"
    assert sum(document["parts"][p] for p in document["parts"] if p != "total_ms") == pytest.approx(
        document["parts"]["total_ms"]
    )
    wrong = command("compare", *paths, "--plot", tmp_path / "runs.txt")
    assert (wrong.code, wrong.out) == (2, "")
    assert "--plot takes a name that ends in" in wrong.err

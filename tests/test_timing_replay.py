"""``tracekit replay --time``: times of policies and budgets, their table, and what it refuses."""

import json

import numpy as np
import pyarrow as pa
import pytest
from cli_helpers import run
from timed_runs import LAYERS, lru_bytes, metrics, routed, timed, wall

import tracekit
from tracekit import replay
from tracekit.figures import MIB
from tracekit.formats.metrics import with_metrics
from tracekit.replaying.times import TIME_COLUMNS
from tracekit.timing import fit
from tracekit.trace import Trace, TraceError, TracekitError, UsageError, write_trace
from tracekit.trace.errors import MissingDataError

BUDGETS = (48, 96, 144)
ACTING = {"retention.predictor": "oracle", "prefetch.predictor": "oracle"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return timed(tmp_path_factory.mktemp("timed"))


@pytest.fixture(scope="module")
def result(trace):
    policies = ["lru", "belady", "bound", "retention", "prefetch", "drop-cold"]
    return replay(trace, policies, cache_mib=BUDGETS, params=ACTING, time=True)


def times(result, policy):
    return [row.time for row in result.rows if row.policy == policy]


def test_a_cache_of_another_size_takes_the_time_that_it_would(result):
    for time, mib in zip(times(result, "lru"), BUDGETS, strict=True):
        measured = wall(lru_bytes(routed(), mib), seed=7)
        assert time.typical_low_ms < np.median(measured) < time.typical_high_ms
        assert time.typical_ms == pytest.approx(np.median(measured), rel=0.03)
        assert time.mean_ms == pytest.approx(measured.mean(), rel=0.03)
        assert time.typical_tok_s == 1000 / time.typical_ms


def test_a_row_is_what_the_fit_says_of_its_bytes(trace, result):
    f = fit(trace)
    (time,) = [row.time for row in result.rows if row.policy == "lru" and row.cache_mib == 48]
    p = f.predict(read_bytes=lru_bytes(trace, 48))
    assert (time.typical_ms, time.p95_ms) == (p.typical_ms, p.p95_ms)
    assert (time.typical_low_ms, time.typical_high_ms) == (p.low_ms, p.high_ms)
    assert (time.mean_ms, time.reading_share) == (p.mean_ms, p.reading_share)


def test_a_bound_has_a_mean_that_no_policy_is_under(result):
    for bound, belady, lru in zip(
        *(times(result, name) for name in ("bound", "belady", "lru")), strict=True
    ):
        assert bound.typical_ms is None
        assert bound.mean_ms <= belady.mean_ms < lru.mean_ms


def test_gains_are_against_lru_and_may_not_be_measurable(result):
    for belady, lru in zip(times(result, "belady"), times(result, "lru"), strict=True):
        gain = lru.typical_ms / belady.typical_ms - 1
        assert belady.tok_s_above_lru == pytest.approx(gain)
        assert belady.is_measurable == (np.log1p(gain) >= 2 * 0.05)
    assert {time.is_measurable for time in times(result, "belady")} == {True, False}
    assert all(time.tok_s_above_lru is None for time in times(result, "lru"))


def test_reading_ahead_is_a_range_and_retention_a_limit(trace, result):
    f = fit(trace)
    for row in result.rows:
        time = row.time
        if row.policy == "prefetch":
            assert time.typical_fastest_ms < time.typical_slowest_ms
            saved = time.typical_slowest_ms - time.typical_fastest_ms
            useful = row.counters["speculative_useful_bytes"] / MIB / row.lookups_decode
            assert saved <= f.a_ms
            assert saved > 0 if useful else saved == 0
        elif row.policy == "retention":
            assert time.typical_fastest_ms == time.typical_slowest_ms
        if row.policy in ("prefetch", "retention"):
            assert (time.typical_ms, time.mean_ms, time.p95_ms) == (None, None, None)
            assert time.typical_low_ms < time.typical_fastest_ms
            assert time.typical_high_ms > time.typical_slowest_ms


def test_perfect_reading_ahead_hides_the_wait_of_each_layer(trace):
    row = replay(
        trace, "prefetch", params={"prefetch.predictor": "oracle"}, cache_mib=96, time=True
    ).rows[0]
    # Each MiB stalls for 1 ms, and a layer computes for about 40 / 6 ms: all that is useful hides.
    useful = row.counters["speculative_useful_bytes"] / MIB / 200
    saved = row.time.typical_slowest_ms - row.time.typical_fastest_ms
    assert saved == pytest.approx(useful, rel=0.35)
    assert useful / LAYERS < 40 / 6


def test_leaving_experts_out_is_refused(result):
    for time in times(result, "drop-cold"):
        assert time.typical_ms is None
        assert "left out in this run" in time.time_refusals


def test_the_rate_of_flash_follows_from_the_fit(trace, result):
    f = fit(trace)
    assert result.config["flash_mib_s"] == f.flash_mib_s
    row = result.rows[0]
    busy = f.b_ms_per_mib * row.read_bytes_decode / MIB / 200
    assert row.flash_ms_per_token_decode == pytest.approx(busy)
    given = replay(trace, "lru", cache_mib=48, time=True, flash_mib_s=500)
    assert given.config["flash_mib_s"] == 500


def test_what_the_fit_says_whatever_is_replayed(trace, result):
    f, said = fit(trace), result.config["time"]
    assert said["ceiling_tok_s"] == 1000 / f.a_ms
    assert said["point_of_hit_rate_ms"] == pytest.approx(0.01 * 24 * f.b_ms_per_mib)
    assert said["point_of_hit_rate_share"] == pytest.approx(
        said["point_of_hit_rate_ms"] / f.typical_ms
    )
    text = result.to_text()
    assert f"no cache and no policy can exceed {1000 / f.a_ms:.3g} tokens/s" in text
    assert "one point of hit rate is worth 0.366 ms" in text
    assert "~ not measurable" in text
    assert "c compute-bound" in text
    assert "assumed, --repeated RUN.trace measures it" in text


def test_every_form_has_the_columns(tmp_path, trace):
    path = tmp_path / "run.trace"
    write_trace(trace, path)
    args = ("replay", path, "--time", "--policy", "lru,bound", "--cache-mib", "96")
    (lru, _) = json.loads(run(*args, "--format", "json").out)["results"]
    header, values, _ = run(*args, "--format", "csv").out.splitlines()
    columns = dict(zip(header.split(","), values.split(","), strict=True))
    names = [figure.name for figure in TIME_COLUMNS]
    assert set(names) <= set(lru)
    assert float(columns["typical_ms"]) == pytest.approx(lru["typical_ms"])
    frame = replay(trace, "lru", cache_mib=96, time=True).frame
    assert set(names) <= set(frame)
    assert set(names).isdisjoint(replay(trace, "lru", cache_mib=96).frame)
    assert "tokens/s" in run(*args).out


def test_another_recording_calibrates_and_repetitions_narrow(tmp_path, trace):
    plain, first, again = (tmp_path / f"{name}.trace" for name in ("plain", "first", "again"))
    write_trace(routed(seed=4), plain)
    write_trace(trace, first)
    write_trace(timed(tmp_path, seed=3), again)
    args = ("replay", plain, "--policy", "lru", "--cache-mib", "96", "--format", "json", "--time")
    lacking = run(*args)
    assert lacking.code == 1
    assert "has no wall_ms of its tokens" in lacking.err
    by_one, by_two = (
        json.loads(run(*args, "--calibrate", first, *more).out)
        for more in ((), ("--repeated", again))
    )
    widths = [
        found["results"][0]["typical_high_ms"] / found["results"][0]["typical_low_ms"]
        for found in (by_one, by_two)
    ]
    assert widths[1] < widths[0]
    assert by_one["results"][0]["mean_low_ms"] is None
    assert by_two["results"][0]["mean_low_ms"] < by_two["results"][0]["mean_ms"]
    assert by_two["config"]["time"]["runs"] == 2
    assert by_one["config"]["time"]["calibrated_on"] == str(first)


def test_memory_gives_a_limit(trace, tmp_path):
    path = tmp_path / "run.trace"
    write_trace(trace, path)
    args = ("replay", path, "--time", "--policy", "lru", "--cache-mib", "96,144")
    memory = ("--ram-mib", "1000", "--mem-floor-mib", "190")
    enough, short = json.loads(run(*args, *memory, "--format", "json").out)["results"]
    assert enough["typical_ms"] is not None
    assert (short["typical_ms"], short["typical_high_ms"]) == (None, None)
    assert short["at_least_ms"] > 0
    assert "Free memory would fall to 142 MiB" in short["time_refusals"]
    text = run(*args, *memory).out
    assert "≤ typical: at most; memory would run short" in text
    assert "--ram-mib" not in text


def test_options_of_time_need_it(tmp_path, trace):
    path = tmp_path / "run.trace"
    write_trace(trace, path)
    for option in (("--calibrate", path), ("--repeated", path), ("--ram-mib", "5")):
        done = run("replay", path, *option)
        assert done.code == 2
        assert "are for --time" in done.err
        assert done.err.count("\n") == 1


def test_a_calibration_from_another_model_is_one_sentence(tmp_path, trace):
    other = timed(tmp_path, seed=5, experts=20)
    with pytest.raises(TraceError, match="n_expert = 20, not 16"):
        replay(trace, "lru", cache_mib=96, time=fit(other))


def test_a_repetition_of_another_configuration_is_one_sentence(tmp_path, trace):
    other = timed(tmp_path, cache_mib=48, seed=5)
    with pytest.raises(UsageError, match="is no repetition of run"):
        fit(trace, repeated=[other])


def test_times_that_follow_no_bytes_print_no_figure(tmp_path):
    plain = routed()
    read = lru_bytes(plain, 96)
    noise = np.random.default_rng(1).uniform(50, 150, len(read)) + 0.6 * read / MIB
    trace = with_metrics(plain, metrics(tmp_path / "x.metrics", noise, read))
    result = replay(trace, ["lru", "bound"], cache_mib=96, time=True)
    assert result.config["flash_mib_s"] is None
    assert "a_ms" not in result.config["time"]
    text = result.to_text()
    assert "no prediction, see the notes below" in text
    assert "Time: Bytes explain" in text


def with_steps(trace, **changed):
    """Return the trace with other values in columns of its steps; None is null."""
    table = trace.table("steps.parquet")
    for name, values in changed.items():
        at = table.schema.get_field_index(name)
        column = table[name].to_pylist()
        column[: len(values)] = values
        table = table.set_column(at, table.schema.field(name), pa.array(column, table[name].type))
    tables = (trace.table(f"{name}.parquet") for name in ("layers", "routing"))
    return Trace.from_tables(trace.facts, *tables, table, name="run")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"wall_ms": [None]}, "lacks the time or the bytes of 1 of its 200 decoded tokens"),
        ({"wall_ms": [float("nan")]}, "lacks the time or the bytes of 1 of"),
        ({"read_bytes": [None, None]}, "lacks the time or the bytes of 2 of"),
        ({"wall_ms": [None] * 200}, "has no wall_ms of its tokens"),
        ({"read_bytes": [None] * 200}, "has no read_bytes of its tokens"),
        ({"wall_ms": [-4.0]}, "-4"),
        ({"read_bytes": [5 << 20] * 200}, "vary by less than 10 %"),
    ],
)
def test_bad_times_of_a_trace_are_one_sentence(trace, changed, word):
    with pytest.raises(TracekitError) as caught:
        replay(with_steps(trace, **changed), "lru", cache_mib=96, time=True)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_token_is_too_few(tmp_path):
    with pytest.raises(
        UsageError, match="1 decoded token with a time, and a fit needs at least 64"
    ):
        replay(timed(tmp_path, tokens=1), "lru", cache_mib=96, time=True)


def test_what_is_no_fit_is_one_sentence(trace):
    with pytest.raises(UsageError, match="time takes True, or a fit"):
        replay(trace, "lru", cache_mib=96, time=trace)


def test_sizes_are_needed(trace):
    chosen = trace.routing(["experts"])["experts"].reshape(-1, LAYERS, 2)
    unsized = tracekit.from_arrays(chosen)
    with pytest.raises(MissingDataError, match="How long a token takes cannot be said"):
        replay(unsized, "lru", cache_fraction=0.5, time=fit(trace))


def test_skipped_tokens_do_not_count(trace):
    all_tokens, later = (
        replay(trace, "lru", cache_mib=96, time=True, skip=skip).rows[0].time for skip in (0, 100)
    )
    p = fit(trace).predict(read_bytes=lru_bytes(trace, 96)[100:])
    assert later.typical_ms == p.typical_ms != all_tokens.typical_ms

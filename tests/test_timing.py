"""The fit of recorded times: its line, its predictions, its refusals, and bad inputs."""

import numpy as np
import pytest
from timed_runs import A_MS, B_MS, wall

from tracekit.figures import MIB
from tracekit.timing import fit
from tracekit.timing.huber import MAD_TO_SD, TUNING, huber_line
from tracekit.trace import UsageError

RAM = 8000


def read_bytes(n=256, seed=0, low=20, high=200):
    return np.random.default_rng(seed).uniform(low, high, n) * MIB


READ = read_bytes()
WALL = wall(READ)


def fitted(**facts):
    return fit(wall_ms=WALL, read_bytes=READ, **facts)


# ---- the line -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_line_solves_hubers_equations(seed):
    rng = np.random.default_rng(seed)
    x = rng.exponential(50, 150)
    y = 30 + 0.7 * x + rng.standard_t(2, 150) * 5
    a, b = map(float, huber_line(x, y))
    residuals = y - a - b * x
    limit = TUNING * MAD_TO_SD * np.median(np.abs(residuals - np.median(residuals)))
    clipped = np.clip(residuals, -limit, limit)
    assert clipped.sum() == pytest.approx(0, abs=1e-3 * limit)
    assert (clipped * x).sum() == pytest.approx(0, abs=1e-3 * limit * x.max())


@pytest.mark.parametrize("seed", range(3))
def test_the_line_is_that_of_a_library_at_the_same_scale(seed):
    from scipy.optimize import least_squares  # slow to import

    rng = np.random.default_rng(seed)
    x = rng.exponential(50, 150)
    y = 30 + 0.7 * x + rng.standard_t(2, 150) * 5
    line = np.array(huber_line(x, y))
    residuals = y - line[0] - line[1] * x
    limit = TUNING * MAD_TO_SD * np.median(np.abs(residuals - np.median(residuals)))
    found = least_squares(
        lambda p: y - p[0] - p[1] * x, [0, 1], loss="huber", f_scale=limit, xtol=1e-12, ftol=1e-12
    )
    assert found.x == pytest.approx(line, rel=1e-4)


def test_slow_tokens_do_not_move_the_line():
    slow = WALL.copy()
    slow[::20] += 5000
    f = fit(wall_ms=slow, read_bytes=READ)
    assert f.a_ms == pytest.approx(A_MS, rel=0.03)
    assert f.b_ms_per_mib == pytest.approx(B_MS, rel=0.01)
    assert f.excess_ms > 200
    least_squares = np.polyfit(READ / MIB, slow, 1)[1]
    assert least_squares > 3 * A_MS


def test_many_sets_at_once_give_what_each_gives_alone():
    rng = np.random.default_rng(3)
    x = rng.uniform(1, 9, (4, 80))
    y = 2 + 3 * x + rng.normal(0, 1, x.shape)
    together = np.stack(huber_line(x, y))
    alone = np.stack([huber_line(*each) for each in zip(x, y, strict=True)], axis=1)
    assert together == pytest.approx(alone, rel=1e-6)


def test_points_on_a_line_give_that_line():
    x = np.linspace(1, 5, 70)
    assert list(huber_line(x, 7 + 2 * x)) == pytest.approx([7, 2])


# ---- predictions ----------------------------------------------------------------------------------


def test_the_run_itself_is_predicted():
    f = fitted()
    p = f.predict(read_bytes=READ)
    assert f.residuals == pytest.approx(WALL - f.a_ms - f.b_ms_per_mib * READ / MIB)
    assert p.typical_ms == pytest.approx(np.median(WALL), rel=0.01)
    assert p.p95_ms == pytest.approx(np.quantile(WALL, 0.95), rel=0.02)
    assert p.mean_ms == pytest.approx(WALL.mean(), rel=1e-9)
    assert p.refusals == ()
    assert (p.mean_low_ms, p.mean_high_ms) == (None, None)
    assert p.typical_tok_s == 1000 / p.typical_ms
    assert p.mean_tok_s == 1000 / p.mean_ms
    assert p.reading_share == pytest.approx(B_MS * READ.mean() / MIB / p.typical_ms, rel=0.02)


def test_quantiles_are_those_of_every_token_with_every_residual():
    f = fitted()
    other = read_bytes(100, seed=9, low=60, high=120)
    sums = np.add.outer(f.a_ms + f.b_ms_per_mib * other / MIB, f.residuals)
    p = f.predict(read_bytes=other)
    assert p.typical_ms == pytest.approx(np.median(sums), rel=1e-3)
    assert p.p95_ms == pytest.approx(np.quantile(sums, 0.95), rel=2e-3)
    many = f.predict(read_bytes=np.repeat(other, 40))
    assert many.typical_ms == pytest.approx(p.typical_ms, rel=1e-3)


@pytest.mark.parametrize(("low", "high"), [(20, 60), (60, 120), (120, 200)])
def test_another_run_lies_in_the_interval(low, high):
    other = read_bytes(300, seed=4, low=low, high=high)
    p = fitted().predict(read_bytes=other)
    assert p.low_ms < np.median(wall(other, seed=11)) < p.high_ms


def test_the_interval_is_of_tokens_and_of_runs():
    alone = fitted()
    p = alone.predict(read_bytes=READ)
    half = np.log(p.high_ms / p.typical_ms)
    of_fit = alone.draws.sd_ms(float(np.median(READ)) / MIB) / p.typical_ms
    assert half == pytest.approx(1.96 * np.hypot(of_fit, 0.05))
    assert half == pytest.approx(np.log(p.typical_ms / p.low_ms))


def test_repetitions_say_how_much_runs_differ():
    like = fit(wall_ms=WALL, read_bytes=READ, repeated=[WALL * 1.001])
    unlike = fit(wall_ms=WALL, read_bytes=READ, repeated=[WALL * 1.2, WALL * 0.9])
    assert like.spread.sd_log == 0.025
    medians = np.log(np.median(WALL) * np.array([1, 1.2, 0.9]))
    assert unlike.spread.sd_log == pytest.approx(medians.std(ddof=1))
    narrow, wide = (f.predict(read_bytes=READ) for f in (like, unlike))
    assert narrow.high_ms < wide.high_ms
    assert narrow.mean_low_ms < narrow.mean_ms < narrow.mean_high_ms


def test_draws_of_tokens_spread_as_fits_of_other_runs_do():
    of_runs = []
    for seed in range(60):
        read = read_bytes(256, seed=100 + seed)
        f = fit(wall_ms=wall(read, seed=seed), read_bytes=read)
        of_runs.append(f.a_ms + f.b_ms_per_mib * 110 + np.median(f.residuals))
    drawn = np.mean([fitted().draws.sd_ms(110)])
    assert 0.5 < drawn / np.std(of_runs) < 2


def test_a_point_of_hit_rate_and_what_nothing_exceeds():
    f = fitted()
    assert f.point_ms(500 * MIB) == pytest.approx(5 * f.b_ms_per_mib)
    assert f.ceiling_tok_s == 1000 / f.a_ms
    assert f.flash_mib_s == 1000 / f.b_ms_per_mib


def test_what_may_be_hidden_is_no_more_than_a_layer_computes():
    f = fit(wall_ms=WALL, read_bytes=READ, stall_ms=READ / MIB)
    assert f.stall_ms_per_mib == pytest.approx(1)
    useful = np.array([[1, 2], [0, 1000], [0, 0]]) * MIB
    assert f.hidden_ms(useful) == pytest.approx([3, f.a_ms / 2, 0])
    assert fitted().hidden_ms(useful[:1])[0] == pytest.approx(3 * fitted().b_ms_per_mib)


# ---- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ({"top_k": 8}, {"top_k": 6}, "experts for a token"),
        ({"lanes": 4}, {"lanes": 8}, "lanes"),
        ({"mode": "serial"}, {"mode": "overlap"}, "mode"),
        ({"lossy": False}, {"lossy": True}, "left out in this run"),
        ({"lossy": True}, {"lossy": True}, "the calibrated run and this run"),
        ({"cache_mib": 4000}, {"cache_mib": 0}, "is off"),
        ({"cache_mib": 0}, {"cache_mib": 100}, "is on"),
    ],
)
def test_what_differs_is_refused(before, after, word):
    p = fitted(**before).predict(read_bytes=READ, **after)
    assert (p.typical_ms, p.low_ms, p.high_ms, p.p95_ms, p.mean_ms) == (None,) * 5
    assert len(p.refusals) == 1
    assert word in p.refusals[0]


def test_what_is_alike_or_not_known_is_not_refused():
    facts = {"top_k": 8, "lanes": 4, "mode": "serial", "lossy": False, "cache_mib": 4000}
    alike = fitted(**facts).predict(read_bytes=READ, **facts)
    unknown = fitted(**facts).predict(read_bytes=READ, cache_mib=np.nan)
    assert alike.refusals == unknown.refusals == ()
    assert unknown.typical_ms == alike.typical_ms
    assert "the lanes, the mode" in " ".join(unknown.notes)
    assert "the lanes" not in " ".join(alike.notes)
    assert any("memory" in note for note in alike.notes)


@pytest.mark.parametrize("where", ["fit", "predict"])
def test_a_cache_that_leaves_too_little_memory_gets_a_limit(where):
    of_fit = {"mem_floor_mib": 2000, "cache_mib": 4000} | (
        {"ram_mib": RAM} if where == "fit" else {}
    )
    of_run = {"ram_mib": RAM} if where == "predict" else {}
    f = fitted(**of_fit)
    short = f.predict(read_bytes=READ, cache_mib=4801, **of_run)
    enough = f.predict(read_bytes=READ, cache_mib=4800, **of_run)
    assert enough.refusals == ()
    assert (short.typical_ms, short.low_ms, short.mean_ms) == (None, None, None)
    assert short.at_least_ms == enough.typical_ms
    assert "1199 MiB" in short.refusals[0]


def test_memory_that_is_known_of_the_run_itself_counts():
    f = fitted(mem_floor_mib=2000, cache_mib=4000, ram_mib=RAM)
    assert f.predict(read_bytes=READ, cache_mib=5000, mem_floor_mib=1300).typical_ms is not None
    assert f.predict(read_bytes=READ, cache_mib=4000, mem_floor_mib=1100).typical_ms is None
    unknown = fitted(ram_mib=RAM)
    assert unknown.predict(read_bytes=READ, cache_mib=7000).typical_ms is None
    assert unknown.predict(read_bytes=READ, cache_mib=6000).typical_ms is not None


def test_times_of_a_run_that_was_short_of_memory_give_no_interval():
    f = fitted(mem_floor_mib=1000, cache_mib=4000, ram_mib=RAM)
    p = f.predict(read_bytes=READ, cache_mib=3000)
    assert p.typical_ms is not None
    assert (p.low_ms, p.high_ms) == (None, None)
    assert "short of memory" in p.refusals[0]


@pytest.mark.parametrize(("mib", "word"), [(10, "less"), (300, "more")])
def test_other_bytes_than_the_run_read_are_marked(mib, word):
    p = fitted().predict(read_bytes=np.full(50, mib * MIB))
    assert p.extrapolated
    assert p.typical_ms == pytest.approx(A_MS + B_MS * mib, rel=0.03)
    assert (p.low_ms, p.high_ms) == (None, None)
    assert p.mean_ms is not None
    assert f"read {word} on average" in p.refusals[0]


def test_slow_tokens_take_the_mean_away():
    slow = WALL.copy()
    slow[:10] += 500
    p = fit(wall_ms=slow, read_bytes=READ).predict(read_bytes=READ)
    assert p.mean_ms is None
    assert p.typical_ms is not None
    assert p.low_ms is not None
    assert "the mean is not given" in p.refusals[0]


def test_bytes_that_explain_nothing_refuse_everything():
    noise = np.random.default_rng(5).uniform(50, 150, 256)
    noise = fit(wall_ms=noise + 0.05 * READ / MIB, read_bytes=READ)
    falling = fit(wall_ms=600 - WALL, read_bytes=READ)
    for f, word in ((noise, "Bytes explain"), (falling, "took no longer")):
        p = f.predict(read_bytes=READ)
        assert p.typical_ms is None
        assert word in p.refusals[0]


def test_few_tokens_are_noted():
    f = fit(wall_ms=WALL[:64], read_bytes=READ[:64])
    assert "64 decoded tokens" in f.predict(read_bytes=READ).notes[0]
    assert fitted().notes == ()


# ---- bad inputs -----------------------------------------------------------------------------------


def changed(values, at, value):
    values = values.copy()
    values[at] = value
    return values


@pytest.mark.parametrize(
    ("wall_ms", "read", "word"),
    [
        (WALL, None, "lacks read_bytes"),
        (None, READ, "lacks wall_ms"),
        (None, None, "either a trace, or wall_ms"),
        ([], [], "has no times"),
        ([5.0], [MIB], "1 decoded token with"),
        (WALL[:63], READ[:63], "at least 64"),
        (WALL, READ[:-1], "256 wall_ms and 255 read_bytes"),
        (WALL, np.full(256, 5 * MIB), "vary by less than 10 %"),
        (WALL, np.zeros(256), "vary by less than 10 %"),
        (changed(WALL, 3, np.nan), READ, "wall_ms of the calibrated run is nan at decoded token 4"),
        (changed(WALL, 0, -1), READ, "is -1 at decoded token 1"),
        (changed(WALL, 0, np.inf), READ, "is inf at"),
        (WALL, changed(READ, 7, -5), "read_bytes of the calibrated run is -5 at decoded token 8"),
        (WALL.reshape(2, -1), READ, "2 axes"),
        (["fast"] * 256, READ, "one number for each"),
        (np.zeros(256), READ, "all 0"),
    ],
)
def test_bad_times_give_one_sentence(wall_ms, read, word):
    with pytest.raises(UsageError) as caught:
        fit(wall_ms=wall_ms, read_bytes=read)
    sentence = str(caught.value)
    assert word in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "facts",
    [
        {"ram_mib": -1},
        {"cache_mib": "large"},
        {"lanes": 2.5},
        {"top_k": 0},
        {"mode": 3},
        {"lossy": "no"},
        {"lossy": np.array([True, False])},
        {"lanes": 10**400},
        {"cache_mib": [1, 2]},
        {"mem_floor_mib": np.inf},
    ],
)
def test_bad_facts_are_refused_by_the_fit_and_by_a_prediction(facts):
    with pytest.raises(UsageError, match=next(iter(facts))):
        fitted(**facts)
    p = fitted().predict(read_bytes=READ, **facts)
    assert p.typical_ms is None
    assert next(iter(facts)) in p.refusals[0]


@pytest.mark.parametrize(
    "read", [[], None, "bytes", [np.nan], [-1.0], [[1.0, 2.0]], [np.inf], object(), [None, 1]]
)
def test_a_prediction_never_raises(read):
    p = fitted().predict(read_bytes=read)
    assert p.typical_ms is None
    assert p.refusals


def test_a_trace_is_opened_first():
    with pytest.raises(UsageError, match="open it first"):
        fit("run.trace")


def test_a_repetition_has_the_same_tokens():
    with pytest.raises(UsageError, match="255 tokens"):
        fit(wall_ms=WALL, read_bytes=READ, repeated=[WALL[:-1]])

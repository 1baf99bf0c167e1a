"""The plots of times: what is drawn of a fit, where it is refused, and what a legend says."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from timed_runs import lru_bytes, metrics, routed, timed, with_layer_times

from tracekit.analysis import layer_times, time_by_read, time_curves
from tracekit.figures import MIB
from tracekit.formats.metrics import with_metrics
from tracekit.plots import plot_layer_times, plot_time, plot_time_curves
from tracekit.plots.kinds import KINDS, Choices
from tracekit.plots.style import BLUE
from tracekit.timing import fit
from tracekit.trace.errors import MissingDataError

BUDGETS = [size * MIB for size in (12, 48, 96, 144, 190)]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return timed(tmp_path_factory.mktemp("timed"))


@pytest.fixture(scope="module")
def unfit(tmp_path_factory):
    """A trace whose times do not follow its bytes."""
    plain = routed()
    read = lru_bytes(plain, 96)
    noise = np.random.default_rng(1).uniform(50, 150, len(read)) + 0.6 * read / MIB
    return with_metrics(plain, metrics(tmp_path_factory.mktemp("unfit") / "x.metrics", noise, read))


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def lines(ax, label):
    return [one for one in ax.get_lines() if one.get_label() == label]


def test_a_fit_is_drawn_through_its_tokens(trace):
    frame, fitted = time_by_read(trace), fit(trace)
    assert (frame["wall_ms"] == fitted.times.wall_ms).all()
    np.testing.assert_allclose(frame["read_bytes"] / MIB, fitted.read_mib)
    middle = np.median(fitted.residuals)
    at = frame["read_bytes"] / MIB
    np.testing.assert_allclose(frame["typical_ms"], fitted.a_ms + fitted.b_ms_per_mib * at + middle)
    ax = plot_time(frame)
    (points,) = lines(ax, "a decoded token")
    (line,) = lines(ax, "typical token (dashed: few tokens read so much)")
    assert len(points.get_xdata()) > 150
    low, high = fitted.usual_mib
    assert low <= line.get_xdata().min()
    assert line.get_xdata().max() <= high
    assert ax.get_xlabel() == "read by the token (MiB)"
    assert f"{fitted.a_ms:.4g} ms" in ax.get_title(loc="left")


def test_the_band_holds_what_a_prediction_says(trace):
    """A run whose every token reads as much has the typical token and interval of the band."""
    frame, fitted = time_by_read(trace), fit(trace)
    for row in frame.iloc[[20, 90, 150]].itertuples():
        p = fitted.predict(read_bytes=[row.read_bytes])
        assert p.typical_ms == pytest.approx(row.typical_ms, rel=0.01)  # of some residuals
        if p.low_ms is not None:
            assert p.high_ms / p.low_ms == pytest.approx(row.high_ms / row.low_ms, rel=0.01)
    inside = frame["wall_ms"].between(frame["p5_ms"], frame["p95_ms"]).mean()
    assert inside == pytest.approx(0.9, abs=0.02)


def test_slow_tokens_stand_at_the_edge(trace):
    frame = time_by_read(trace)
    slow = frame.assign(wall_ms=frame["wall_ms"].where(frame["token"] != 5, 9000.0))
    ax = plot_time(slow)
    (label,) = [text for text in labels(ax) if "further out" in text]
    assert "up to 9,000 ms" in label
    assert ax.get_ylim()[1] < 300


def test_a_refused_fit_is_a_text_and_no_line(unfit):
    frame = time_by_read(unfit)
    assert frame["typical_ms"].isna().all()
    ax = plot_time(frame)
    assert labels(ax)[0] == "a decoded token"
    assert not any(to_rgb(line.get_color()) == to_rgb(BLUE) for line in ax.get_lines())
    assert "Bytes explain" in " ".join(text.get_text() for text in ax.texts)
    curves = plot_time_curves(time_curves(unfit, "lru", BUDGETS))
    assert "Bytes explain" in " ".join(text.get_text() for text in curves.texts)
    assert not lines(curves, "lru")


def test_curves_are_those_of_a_replay(trace):
    frame = time_curves(trace, ["lru", "belady"], BUDGETS)
    ax = plot_time_curves(frame)
    (line,) = lines(ax, "lru")
    rows = frame[(frame["policy"] == "lru")]
    expected = (1000 / rows["typical_ms"]).mask(rows["is_extrapolated"].astype(bool))
    assert expected.isna().any()  # a part is dashed
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), expected)
    fitted = fit(trace)
    assert f"a token that reads nothing ({1000 / fitted.a_ms:.3g} tokens/s)" in labels(ax)
    (star,) = [one for one in ax.get_lines() if one.get_marker() == "*"]
    assert star.get_xdata()[0] == 96
    assert star.get_ydata()[0] == 1000 / fitted.typical_ms
    assert ax.get_ylabel() == "tokens/s of the typical token"


def test_a_policy_that_reads_ahead_is_an_area_and_a_lossy_one_a_note(trace):
    params = {"prefetch.predictor": ["oracle"]}
    choices = Choices(["lru", "prefetch", "drop-cold"], params, cache_bytes=BUDGETS)
    frame = KINDS["time-curves"].compute(trace, choices)
    (note,) = frame.attrs["notes"]
    assert note.startswith("Time of drop-cold: Experts that the router selected are left out")
    ax = plot_time_curves(frame)
    (slow,) = lines(ax, "prefetch (oracle), slowest to fastest")
    rows = frame[frame["policy"] == "prefetch"]
    np.testing.assert_allclose(slow.get_ydata(), 1000 / rows["typical_slowest_ms"])


def test_short_memory_is_drawn_as_a_limit(trace):
    fitted = fit(trace, ram_mib=1000, mem_floor_mib=190)
    frame = time_curves(trace, "lru", BUDGETS, fitted=fitted)
    ax = plot_time_curves(frame)
    (limit,) = lines(ax, "lru: at most, memory runs short")
    drawn = np.asarray(limit.get_ydata(), float)
    assert np.isfinite(drawn).sum() == 2  # 144 and 190 MiB


def test_the_times_of_layers_are_means_of_what_is_known():
    trace = with_layer_times(routed(tokens=60))
    found = layer_times(trace)
    table = trace.table("routing.parquet").to_pandas()
    known = table[table["phase"] == 1].groupby("layer")
    assert found["layer"].tolist() == sorted(known.groups)
    for name in ("wait_ms", "compute_ms"):
        assert table[name].isna().any()
        np.testing.assert_allclose(found[name], known[name].mean(), rtol=1e-6)
    assert found["passes"].tolist() == known["compute_ms"].count().tolist()
    ax = plot_layer_times(found)
    for bars, name in zip(ax.containers, ("compute_ms", "wait_ms"), strict=True):
        assert bars.get_label().startswith("waiting") == (name == "wait_ms")
        heights = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in bars}
        assert [heights[layer] for layer in found["layer"]] == pytest.approx(found[name].tolist())
    bars = ax.patches
    tops = {bar.get_x() + bar.get_width() / 2: bar.get_y() + bar.get_height() for bar in bars}
    both = found["wait_ms"] + found["compute_ms"]
    assert [tops[layer] for layer in found["layer"]] == pytest.approx(both.tolist())


def test_a_trace_without_times_of_layers_says_so():
    with pytest.raises(MissingDataError, match="does not carry how long its layers took"):
        layer_times(routed(tokens=10))

"""Every plot: what it marks, what it leaves blank, and that nothing covers anything."""

import subprocess
import sys
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from routing_traces import make_trace

from tracekit import analysis, plots
from tracekit.plots import timeline
from tracekit.plots.kinds import KINDS, Choices, find_kind
from tracekit.trace import TraceError, UsageError, synthesize

NEEDY = ("horizon", "gains", "overlap")  # which cannot do with one token of one layer


@pytest.fixture(scope="module")
def small():
    return synthesize(4, 16, 2, 40, 2, 6, logits=True, gate_inputs=True)


@pytest.fixture(scope="module")
def deep():
    return synthesize(94, 32, 4, 24, 2, 8, logits=True, gate_inputs=True, n_embd=16)


@pytest.fixture(params=["small", "deep"])
def trace(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", KINDS)
def test_every_plot_is_labelled_and_nothing_is_covered(trace, name):
    kind = KINDS[name]
    ax = kind.draw(kind.compute(trace, Choices()))
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_title(loc="left")
    figure = ax.figure
    figure.draw_without_rendering()
    page = figure.bbox
    inside = ax.get_window_extent()
    legend = ax.get_legend()
    if legend is not None:
        box = legend.get_window_extent()
        assert not box.overlaps(inside)
        assert not box.overlaps(ax.xaxis.get_tightbbox())
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
    title = ax._left_title.get_window_extent()
    assert title.x1 <= page.x1
    for axis, edges in ((ax.xaxis, ("x0", "x1")), (ax.yaxis, ("y0", "y1"))):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
        spans = sorted((getattr(box, edges[0]), getattr(box, edges[1])) for box in boxes)
        assert all(first[1] < second[0] for first, second in pairwise(spans))


@pytest.mark.parametrize("name", KINDS)
def test_a_plot_draws_where_it_is_told(small, name):
    ax = Figure(layout="constrained").subplots()
    kind = KINDS[name]
    assert kind.draw(kind.compute(small, Choices()), ax=ax) is ax


def test_drawing_touches_no_global_state(small):
    before = dict(mpl.rcParams)
    for kind in KINDS.values():
        kind.draw(kind.compute(small, Choices()))
    assert dict(mpl.rcParams) == before
    code = (
        "import sys; from tracekit import analysis, plots; from tracekit.trace import synthesize;"
        "plots.plot_overlap(analysis.overlap_by_lag(synthesize()));"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_style_goes_to_the_data(small):
    ax = plots.plot_overlap(analysis.overlap_by_lag(small), linewidth=5)
    assert {line.get_linewidth() for line in ax.lines[:2]} == {5}
    ax = plots.plot_popularity(analysis.expert_popularity(small), cmap="gray")
    assert ax.images[0].get_cmap().name == "gray"


def line(ax, label):
    (found,) = [one for one in ax.get_lines() if one.get_label() == label]
    return found


def test_a_layer_that_cannot_be_scored_is_blank(small):
    ax = plots.plot_predictability(analysis.accuracy_by_layer(small))
    stale = line(ax, "stale-gate").get_ydata()
    assert np.isnan(stale[0])
    assert (stale[1:] > 0).all()
    assert (line(ax, "ctrl").get_ydata() == 1).all()


def test_layers_that_are_not_routed_are_blank():
    trace = make_trace(layers=(2, 3, 5))
    image = plots.plot_popularity(analysis.expert_popularity(trace)).images[0].get_array()
    assert image.shape == (4, 8)
    assert np.ma.getmaskarray(image).all(axis=1).tolist() == [False, False, True, False]
    layers = line(
        plots.plot_concentration(analysis.routing_concentration(trace)),
        "weight of a routing's top expert",
    )
    assert list(layers.get_xdata()) == [2, 3, 4, 5]
    assert np.isnan(layers.get_ydata()).tolist() == [False, False, True, False]


def test_a_predictor_without_a_score_says_so():
    trace = synthesize(1, 8, 2, n_tokens=1)
    ax = plots.plot_predictability(analysis.accuracy_by_layer(trace, ["prev-token"]))
    assert ax.get_legend().get_texts()[0].get_text() == "prev-token (nothing scored)"


def test_curves_mark_the_cycle_the_ceiling_and_what_ran_over(small):
    frame = analysis.hit_rate_curves(small)
    ax = plots.plot_curves(frame)
    cycle = frame["token_cycle_bytes"].iloc[0] / 2**20
    assert line(ax, f"one token cycle ({cycle:g} MiB)").get_xdata()[0] == cycle
    ceiling = frame["ceiling_decode"].iloc[0]
    assert line(ax, f"all but first uses ({100 * ceiling:.1f} %)").get_ydata()[0] == ceiling
    over = frame[frame["over_budget_decode"].fillna(False).astype(bool)]
    hollow = [one for one in ax.get_lines() if one.get_markerfacecolor() == "white"]
    drawn = [x for one in hollow for x in one.get_xdata()]
    assert sorted(drawn) == sorted(over["cache_bytes"] / 2**20)
    assert (over["policy"] == "layer-lru").any()


def test_curves_tell_variants_of_a_policy_apart():
    frame = analysis.hit_rate_curves(
        make_trace(), ["lru", "random"], params={"random.seed": [1, 2]}
    )
    labels = {one.get_label() for one in plots.plot_curves(frame).get_lines()}
    assert {"lru", "random seed=1", "random seed=2"} <= labels


def test_gains_are_drawn_in_points_around_none(small):
    frame = analysis.hit_rate_gains(small, ["retention", "prefetch"])
    ax = plots.plot_gains(frame)
    prefetch = next(one for one in ax.containers if one.get_label() == "prefetch")
    expected = 100 * frame.query("policy == 'prefetch'")["gain"]
    np.testing.assert_allclose(prefetch.lines[0].get_ydata().astype(float), expected)
    assert list(ax.lines[0].get_ydata()) == [0, 0]


def test_a_timeline_mixes_the_colours_of_its_lookups(small):
    frame = analysis.residency_timeline(small, "lru")
    frame[["hits", "misses", "prefetched"]] = 0
    frame["lookups"] = 2
    frame.loc[frame["layer"] == 0, "hits"] = 2
    frame.loc[frame["layer"] == 1, "misses"] = 2
    frame.loc[frame["layer"] == 2, "prefetched"] = 2
    frame.loc[frame["layer"] == 3, ["hits", "misses"]] = 1
    image = plots.plot_timeline(frame).images[0].get_array()
    hit, miss = np.array(to_rgb(timeline.HIT)), np.array(to_rgb(timeline.MISS))
    expected = [hit, miss, to_rgb(timeline.PREFETCHED), (hit + miss) / 2]
    for layer, colour in enumerate(expected):
        np.testing.assert_allclose(image[layer], np.tile(colour, (40, 1)), atol=1e-6)


def test_a_long_timeline_shares_columns():
    frame = analysis.residency_timeline(synthesize(2, 8, 2, 3000), "lru")
    image = plots.plot_timeline(frame).images[0].get_array()
    assert image.shape == (2, 1000, 3)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("horizon", "needs the column 'gate_input'"),
        ("gains", "needs the column 'gate_input'"),
        ("overlap", "has no two routings to compare"),
    ],
)
def test_what_a_poor_trace_lacks(name, lacks):
    with pytest.raises(TraceError, match=lacks):
        KINDS[name].compute(synthesize(1, 4, 1, n_tokens=1), Choices())


@pytest.mark.parametrize("name", [name for name in KINDS if name not in NEEDY])
def test_one_token_of_one_layer_can_be_drawn(name):
    kind = KINDS[name]
    kind.draw(
        kind.compute(synthesize(1, 4, 1, n_tokens=1), Choices())
    ).figure.draw_without_rendering()


def test_what_was_left_out_is_said():
    notes = analysis.accuracy_by_layer(synthesize()).attrs["notes"]
    assert len(notes) == 2
    assert all(note.startswith("Left out: ") and "gate_input" in note for note in notes)


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'timeline'"):
        find_kind("timelien")


def test_a_plot_of_one_run_refuses_several():
    with pytest.raises(UsageError, match="shows one policy, not 2"):
        KINDS["timeline"].compute(make_trace(), Choices(policies=["lru", "lfu"]))
    with pytest.raises(UsageError, match="shows one cache budget, not 2"):
        KINDS["reuse"].compute(make_trace(), Choices(cache_bytes=[1000, 2000]))

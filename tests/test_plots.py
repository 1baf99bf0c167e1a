"""Every plot: what it marks, what it leaves blank, and that nothing covers anything."""

import subprocess
import sys
from dataclasses import fields
from itertools import combinations, pairwise

import matplotlib as mpl
import numpy as np
import pytest
from families import slow_where
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from routing_traces import make_trace
from timed_runs import timed, with_layer_times

from tracekit import analysis, datasets, plots
from tracekit.plots import timeline
from tracekit.plots.kinds import KINDS, Choices, find_kind, register
from tracekit.policies import load_policies
from tracekit.trace import Trace, TraceError, UsageError, synthesize

TIMED = ("time", "time-curves", "layer-times")  # which need the times of tokens
# Every kind is drawn in the fast suite. These are drawn once, and not looked at from every side there;
# the others are of each sort: lines with a legend beside them, bars, an image, areas.
DRAWN_ONCE = {
    *("horizon", "recall", "history", "gains", "time", "time-curves", "layer-times", "read-bytes"),
    *("popularity-sorted", "reuse", "reuse-tokens", "overlap", "concentration", "pinning"),
    *("predictability", "popularity", "working-set", "closure"),
}
NEEDY = ("horizon", "history", "overlap", *TIMED)  # which cannot do with one token of one layer


@pytest.fixture(scope="module")
def small():
    return synthesize(4, 16, 2, 40, 2, 6, logits=True, gate_inputs=True)


@pytest.fixture(scope="module")
def deep():
    return synthesize(94, 32, 4, 24, 2, 8, logits=True, gate_inputs=True, n_embd=16)


@pytest.fixture(scope="module")
def recorded():
    return Trace.open(datasets.path("tiny-moe-64e.trace"))


@pytest.fixture(scope="module")
def with_times(tmp_path_factory):
    return with_layer_times(timed(tmp_path_factory.mktemp("timed"), tokens=80))


@pytest.fixture(params=["small", pytest.param("deep", marks=pytest.mark.slow)])
def trace(request):
    return request.getfixturevalue(request.param)


def text_of(artist, words):
    """Return the text that says `words`."""
    (found,) = artist.findobj(lambda one: isinstance(one, Text) and one.get_text() == words)
    return found


def mostly(names):
    """Return `names` for ``parametrize``; only the slow suite looks closely at those drawn once."""
    return slow_where(names, lambda name: name in DRAWN_ONCE)


def test_the_kinds_that_are_drawn_once_are_registered():
    assert set(KINDS) >= DRAWN_ONCE


@pytest.mark.parametrize("name", mostly(KINDS))
def test_every_plot_is_labelled_and_nothing_is_covered(trace, with_times, name):
    kind = KINDS[name]
    ax = kind.draw(kind.compute(with_times if name in TIMED else trace, Choices()))
    plots.add_caption(ax, "a model, a trace")
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_title(loc="left")
    assert ax.has_data()
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
        assert not box.overlaps(text_of(figure, "a model, a trace").get_window_extent())
    title = text_of(ax, ax.get_title(loc="left")).get_window_extent()
    assert title.x1 <= page.x1
    assert title.y1 <= page.y1 - 0.05 * figure.dpi  # inches
    for axis, edges in ((ax.xaxis, ("x0", "x1")), (ax.yaxis, ("y0", "y1"))):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels() if label.get_text()]
        spans = sorted((getattr(box, edges[0]), getattr(box, edges[1])) for box in boxes)
        assert all(first[1] < second[0] for first, second in pairwise(spans))
    written = [text.get_window_extent() for text in ax.texts if text.get_text()]
    assert not any(one.overlaps(other) for one, other in combinations(written, 2))


@pytest.mark.parametrize("name", mostly(KINDS))
def test_a_plot_draws_where_it_is_told(small, with_times, name):
    ax = Figure(layout="constrained").subplots()
    kind = KINDS[name]
    trace = with_times if name in TIMED else small
    assert kind.draw(kind.compute(trace, Choices()), ax=ax) is ax


def settings():
    """Return matplotlib's global settings but the backend: to read that one imports pyplot."""
    return {name: mpl.rcParams[name] for name in mpl.rcParams if name != "backend"}


@pytest.mark.parametrize("name", mostly(KINDS))
def test_drawing_touches_no_global_state(small, with_times, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whoever imports it fails
    kind = KINDS[name]
    with mpl.rc_context():
        mpl.rcdefaults()  # a test before this one may have drawn the same plot
        before = settings()
        kind.draw(kind.compute(with_times if name in TIMED else small, Choices()))
        assert settings() == before


@pytest.mark.slow
def test_the_plots_are_imported_without_pyplot():
    code = "import sys, tracekit.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_style_goes_to_the_data(small):
    ax = plots.plot_overlap(analysis.overlap_by_lag(small), linewidth=5)
    assert {line.get_linewidth() for line in ax.lines[:2]} == {5}
    ax = plots.plot_popularity(analysis.expert_popularity(small), cmap="gray")
    assert ax.images[0].get_cmap().name == "gray"


def legend(ax):
    return {text.get_text() for text in ax.get_legend().get_texts()}


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
    prefetch = next(one for one in ax.containers if one.get_label() == "prefetch (stale-gate)")
    expected = 100 * frame.query("policy == 'prefetch'")["gain"]
    np.testing.assert_allclose(prefetch.lines[0].get_ydata().astype(float), expected)
    assert list(ax.lines[0].get_ydata()) == [0, 0]


def test_gains_name_the_baseline_and_stand_side_by_side(small):
    policies = load_policies(["layer-lru", "lfu"])
    ax = plots.plot_gains(analysis.hit_rate_gains(small, policies, baseline="random"))
    assert "over random" in ax.get_title(loc="left")
    assert "over random" in ax.get_ylabel()
    first, second = (one.lines[0].get_xdata() for one in ax.containers)
    assert (first != second).all()


def test_gains_at_budgets_of_ones_own(small):
    frame = analysis.hit_rate_gains(small, ["lfu"], cache_bytes=[3000, 5000])
    assert frame["cache_bytes"].tolist() == [3000, 5000]
    bank = int(small.expert_bytes.sum()) * small.n_expert
    assert frame["cache_fraction"].tolist() == [3000 / bank, 5000 / bank]


def test_gains_of_a_trace_without_gate_inputs_say_whose_guesses_they_are():
    frame = KINDS["gains"].compute(synthesize(3, 8, 2, 20), Choices())
    assert {(p["predictor"], p["horizon"]) for p in frame["params"]} == {("prev-token", 2)}
    (note,) = frame.attrs["notes"]
    assert note.startswith("retention acts on prev-token here: stale-gate needs the column")
    assert "retention (prev-token)" in legend(plots.plot_gains(frame))


@pytest.mark.parametrize("budgets", [[40 << 20], [30 << 20, 60 << 20]])
def test_points_of_few_budgets_are_marked_and_whole(small, budgets):
    ax = plots.plot_curves(analysis.hit_rate_curves(small, cache_bytes=budgets))
    series = [one for one in ax.get_lines() if len(one.get_xdata()) == len(budgets)][:6]
    assert [one.get_marker() for one in series[:2]] == ["_", "*"]  # bound, Belady: lines without
    assert len({one.get_marker() for one in series}) == 6
    assert "None" not in {one.get_marker() for one in series}
    ax.figure.draw_without_rendering()
    frame = ax.get_window_extent()
    for one in series:
        half = one.get_markersize() / 2 * ax.figure.dpi / 72
        x = ax.transData.transform(one.get_xydata())[:, 0]
        assert (x - half > frame.x0).all()
        assert (x + half < frame.x1).all()


def test_the_curves_of_one_budget_say_their_hit_rates(small):
    frame = analysis.hit_rate_curves(small, ["lru"], [40 << 20])
    rate = 100 * frame["hit_rate_decode"].iloc[0]
    assert f"lru: {rate:.1f} %" in legend(plots.plot_curves(frame))


def test_curves_say_what_they_leave_out():
    frame = KINDS["curves"].compute(synthesize(), Choices(policies=["lru", "retention"]))
    assert set(frame["policy"]) == {"lru"}
    (note,) = frame.attrs["notes"]
    assert note.startswith("Left out: retention, because stale-gate needs the column")


def test_bound_shows_where_it_is_beladys_line(small):
    ax = plots.plot_curves(analysis.hit_rate_curves(small, ["bound", "belady"]))
    assert line(ax, "bound (each load is kept)").get_zorder() > line(ax, "belady").get_zorder()


@pytest.mark.slow  # four pictures
def test_numbers_of_an_axis_are_written_as_in_the_legend():
    trace = synthesize(4, 16, 2, 40, expert_bytes=1 << 30)
    for name, axis in (("curves", "x"), ("gains", "x"), ("working-set", "y"), ("reuse", "x")):
        ax = KINDS[name].draw(KINDS[name].compute(trace, Choices()))
        ax.figure.draw_without_rendering()
        ticks = [tick.get_text() for tick in getattr(ax, f"get_{axis}ticklabels")()]
        assert any(len(tick) > 4 for tick in ticks)
        assert not any(tick.isdigit() and len(tick) > 3 for tick in ticks)


def test_reuse_says_of_what_its_first_uses_are(small):
    titles = []
    for unit in ("bytes", "tokens"):
        frame = analysis.reuse_distance(small, unit)
        first = 100 * frame["share"].iloc[-1]
        titles.append(plots.plot_reuse(frame).get_title(loc="left"))
        assert f": {first:.1f} % of decode lookups)" in titles[-1]
    assert "prefill counted" in titles[0]
    assert "prefill not counted" in titles[1]


def test_reuse_says_whose_budget_it_draws(small, recorded):
    def budget(trace, **how):
        frame = analysis.reuse_distance(trace, **how)
        return next(one for one in legend(plots.plot_reuse(frame)) if "token cycle" not in one)

    assert budget(small, cache_bytes=1 << 20) == "cache budget (1 MiB)"
    assert budget(small).startswith("25 % of all experts, as an example (")
    assert budget(recorded).startswith("recorded cache budget (")


@pytest.mark.parametrize("name", ["reuse", "timeline", "read-bytes"])
def test_a_budget_that_nobody_named_is_said_to_be_an_example(small, recorded, name):
    (note,) = KINDS[name].compute(small, Choices()).attrs["notes"]
    assert note.startswith("The trace carries no cache budget: 25 % of the expert bank, ")
    assert "notes" not in KINDS[name].compute(small, Choices(cache_bytes=[40 << 20])).attrs
    assert "notes" not in KINDS[name].compute(recorded, Choices()).attrs


@pytest.mark.slow  # three pictures
def test_a_timeline_shows_its_shades_in_the_legend(small):
    shades = {"all hit", "half missed", "all missed"}
    frame = analysis.residency_timeline(small, "lru")
    assert legend(plots.plot_timeline(frame)) == {*shades, "a turn begins"}
    of_one_turn = analysis.residency_timeline(synthesize(2, 8, 2, 5), "lru")
    assert legend(plots.plot_timeline(of_one_turn)) == shades
    ahead = analysis.residency_timeline(small, "prefetch")
    key = plots.plot_timeline(ahead).get_legend()
    patches = key.get_patches()
    shades = {
        text.get_text(): to_rgb(patch.get_facecolor())
        for text, patch in zip(key.get_texts()[: len(patches)], patches, strict=True)
    }
    hit, read = np.array(to_rgb(timeline.HIT)), np.array(to_rgb(timeline.PREFETCHED))
    np.testing.assert_allclose(shades["half prefetched, half hit"], (hit + read) / 2)


@pytest.mark.slow
def test_a_caption_is_drawn_only_where_it_is_asked_for(small):
    ax = plots.plot_curves(analysis.hit_rate_curves(small))
    assert ax.figure.get_supxlabel() == ""
    plots.add_caption(ax, "$a_model$, a\ntrace \udcff")
    assert ax.figure.get_supxlabel() == "$a_model$, a\ufffdtrace \ufffd"
    ax.figure.draw_without_rendering()


def test_a_caption_names_the_model_and_the_trace(small):
    assert plots.caption(small) == "synthetic, synthetic trace (seed 0)"


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
        ("history", "looks from one MoE layer at a later one"),
        ("overlap", "has no two routings to compare"),
        ("time", "has no wall_ms of its tokens"),
        ("time-curves", "has no wall_ms of its tokens"),
    ],
)
def test_what_a_poor_trace_lacks(name, lacks):
    with pytest.raises(TraceError, match=lacks):
        KINDS[name].compute(synthesize(1, 4, 1, n_tokens=1), Choices())


@pytest.mark.parametrize("name", mostly(name for name in KINDS if name not in NEEDY))
def test_one_token_of_one_layer_can_be_drawn(name):
    kind = KINDS[name]
    kind.draw(
        kind.compute(synthesize(1, 4, 1, n_tokens=1), Choices())
    ).figure.draw_without_rendering()


def test_what_was_left_out_is_said():
    notes = analysis.accuracy_by_layer(synthesize()).attrs["notes"]
    assert len(notes) == 2
    assert all(note.startswith("Left out: ") and "gate_input" in note for note in notes)


def test_a_recording_does_not_hide_the_replay_of_its_own_policy(recorded):
    ax = plots.plot_read_bytes(analysis.read_bytes_by_token(recorded))
    over, under = line(ax, "recorded at 2.4 MiB"), line(ax, "lru at 2.4 MiB")
    assert (over.get_ydata() == under.get_ydata()).all()
    assert over.get_zorder() > under.get_zorder()
    assert over.get_linestyle() != "-"


@pytest.mark.parametrize("name", ["read-bytes", "timeline"])
def test_where_a_turn_begins_is_marked(small, name):
    frame = KINDS[name].compute(small, Choices(cache_bytes=[40 << 20]))
    ax = KINDS[name].draw(frame)
    start = frame[frame["turn"] == 1]["token"].min()
    (mark,) = [one for one in ax.get_lines() if one.get_label() == "a turn begins"]
    assert start - 1 <= mark.get_xdata()[0] <= start


def test_a_kind_reads_choices_that_there_are():
    choices = {field.name for field in fields(Choices)}
    for kind in KINDS.values():
        assert set(kind.reads) <= choices - {"seed", "jobs"}
        assert not kind.at_one_budget or "cache_bytes" in kind.reads


def test_two_kinds_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'curves' is registered twice"):
        register("curves", "again", KINDS["curves"].data)(KINDS["curves"].draw)


def test_a_trace_may_be_named():
    frame = KINDS["concentration"].compute("bundled:tiny-moe-64e.trace", Choices())
    assert len(frame) == 12
    assert plots.caption("bundled:tiny-moe-64e.trace").startswith("tiny-moe-64e-q8_0, ")


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'timeline'"):
        find_kind("timelien")


def test_a_plot_of_one_run_refuses_several():
    with pytest.raises(UsageError, match="shows one policy, not 2"):
        KINDS["timeline"].compute(make_trace(), Choices(policies=["lru", "lfu"]))
    with pytest.raises(UsageError, match="shows one cache budget, not 2"):
        KINDS["reuse"].compute(make_trace(), Choices(cache_bytes=[1000, 2000]))

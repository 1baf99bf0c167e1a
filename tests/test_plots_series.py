"""Names and looks of lines: what tells variants apart, and that no two look alike."""

import pandas as pd
import pytest

from tracekit import plots
from tracekit.plots.kinds import KINDS, Choices
from tracekit.plots.series import policy_series, series_names, series_styles
from tracekit.policies import POLICIES
from tracekit.predictors import PREDICTORS
from tracekit.scoring.predict import default_predictors
from tracekit.trace import UsageError, synthesize


@pytest.fixture(scope="module")
def small():
    return synthesize(4, 16, 2, 40, 2, 6, logits=True, gate_inputs=True)


def legend(ax):
    return {text.get_text() for text in ax.get_legend().get_texts()}


def rows(policy, *params):
    return pd.DataFrame({"policy": policy, "params": list(params)})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("a=1,b=2", "a=1,b=2"),
        ("two words", "'two words'"),
        ("1 other=2", "'1 other=2'"),
        ("'quoted'", "\"'quoted'\""),
        ("", "''"),
    ],
)
def test_a_value_of_any_text_survives_in_the_name(value, written):
    data = rows("mine", {"how": value, "other": "2"}, {"how": "else", "other": "2"})
    assert list(series_names(data)) == [f"mine how={written}", "mine how=else"]


def test_values_that_would_read_alike_are_two_lines():
    data = rows("mine", {"a": "1 b=2", "b": "3"}, {"a": "1", "b": "2 b=3"}, {"a": "1", "b": "2"})
    series = policy_series(data)
    assert len({name for name, _, _ in series}) == 3
    assert [len(part) for _, _, part in series] == [1, 1, 1]


def test_a_predictor_is_named_with_its_own_parameters():
    data = rows("prefetch", {"predictor": "oracle@accuracy=0.5", "horizon": 1})
    assert list(series_names(data)) == ["prefetch (oracle@accuracy=0.5)"]


def test_what_may_drop_at_once_says_so_and_a_bound_what_it_is_of():
    data = rows("lru", {}, {}).assign(bypass=[False, True])
    assert list(series_names(data)) == ["lru", "lru (bypass)"]
    data = rows("bound", {}, {}).assign(bypass=[False, True])
    names = ["bound (each load is kept)", "bound (a load may be dropped)"]
    assert list(series_names(data)) == names


def test_what_leaves_experts_out_says_so():
    (name,) = series_names(rows("drop-cold", {"frac": 0.5}))
    assert name == "drop-cold (leaves experts out)"


def test_variants_are_named_by_their_predictor_and_by_what_differs(small):
    params = {"prefetch.predictor": ["oracle", "prev-token"], "prefetch.spec_max": [1, 2]}
    choices = Choices(policies=["prefetch", "retention"], params=params, cache_bytes=[40 << 20])
    named = {
        "prefetch (oracle) spec_max=1",
        "prefetch (oracle) spec_max=2",
        "prefetch (prev-token) spec_max=1",
        "prefetch (prev-token) spec_max=2",
        "retention (stale-gate)",
    }
    for kind, suffix in (("gains", ""), ("read-bytes", " at 40 MiB")):
        labels = legend(KINDS[kind].draw(KINDS[kind].compute(small, choices)))
        assert {name + suffix for name in named} <= labels
    with pytest.raises(UsageError, match="shows one policy, not 5"):
        KINDS["timeline"].compute(small, choices)
    one = KINDS["timeline"].compute(small, Choices(policies=["retention"]))
    assert plots.plot_timeline(one).get_title(loc="left").startswith("retention (stale-gate) at ")


@pytest.mark.parametrize("registry", [POLICIES, PREDICTORS])
def test_all_that_is_built_in_can_be_told_apart_in_one_plot(registry):
    looks = series_styles([cls.name for cls in registry])
    assert len({(v["color"], v["linestyle"], v["marker"]) for v in looks.values()}) == len(looks)
    of_default = series_styles([cls.name for cls in default_predictors()])
    assert len({look["color"] for name, look in of_default.items() if name != "ctrl"}) == 10


@pytest.mark.parametrize(
    "others", [["retention"], ["bound", "belady", "lfu", "layer-lru", "random"]]
)
def test_a_policy_of_ones_own_never_has_the_look_of_lru(others):
    looks = series_styles([*others, "mine", "mine too"])
    lru = series_styles(["lru"])["lru"]
    for name in ("mine", "mine too"):
        assert looks[name]["color"] != lru["color"]
        assert looks[name]["color"] not in {looks[other]["color"] for other in others}

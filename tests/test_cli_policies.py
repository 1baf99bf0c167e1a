"""``tracekit policies``, of all and of one."""

import json

import pytest
from cli_helpers import run

from tracekit.policies import POLICIES
from tracekit.predictors import PREDICTORS

NAMES = [cls.name for kind in (POLICIES, PREDICTORS) for cls in kind]


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_said_about_each(name):
    done = run("policies", name)
    assert done.code == 0
    assert done.out.startswith(name)
    cls = next(c for kind in (POLICIES, PREDICTORS) for c in kind if c.name == name)
    assert cls.summary in done.out
    for parameter in cls.Params.__dataclass_fields__:
        assert f"\n{parameter}" in done.out


def test_an_engine_builder_finds_state_bytes_rule_and_check():
    done = run("policies", "follow", "bundled:tiny-moe-64e.trace")
    assert "L = 12 MoE layers, E = 64 experts, k = 4" in done.out
    assert "table       L × E × E  0.188  what followed each expert" in done.out
    assert "token(l, ids)" in done.out
    assert "--validate --policy follow" in done.out


def test_the_same_as_json():
    done = run("policies", "follow", "bundled:tiny-moe-64e.trace", "--format", "json")
    document = json.loads(done.out)
    assert document["model"] == {
        "name": "tiny-moe-64e-q8_0",
        "n_layers": 12,
        "n_expert": 64,
        "top_k": 4,
    }
    (entry,) = document["policies"]
    assert entry["state"][0]["size_bytes"] == 12 * 64 * 64 * 4
    assert json.loads(run("policies", "prev-token", "--format", "json").out)["predictors"]


def test_a_name_that_nothing_has_is_refused_with_the_nearest():
    done = run("policies", "folow")
    assert done.code == 2
    assert "No policy or predictor is called 'folow'; did you mean 'follow'?" in done.err

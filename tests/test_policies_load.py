"""From a name and parameters to a policy, and what is refused."""

import numpy as np
import pytest

from tracekit.policies import load_policy
from tracekit.trace import UsageError


def test_an_unknown_name_is_refused_with_the_nearest_match():
    with pytest.raises(UsageError, match=r"^No policy is called 'lruu'; did you mean 'lru'\?$"):
        load_policy("lruu")


@pytest.mark.parametrize(
    ("spec", "params", "sentence"),
    [
        ("lru", {"size": "1"}, "lru has no parameter 'size'; it has none."),
        ("random", {"sed": "1"}, "random has no parameter 'sed'; it has: seed."),
        ("random", {"seed": "x"}, "random.seed takes a whole number, not 'x'."),
        ("random", {"seed": 1.5}, "random.seed takes a whole number, not 1.5."),
        ("random", {"seed": "-1"}, "random: seed must be 0 or more."),
        ("random", {"seed": True}, "random.seed takes a whole number, not True."),
        ("drop-cold", {"frac": "inf"}, "drop-cold.frac takes a number, not 'inf'."),
        ("drop-cold", {"frac": "nan"}, "drop-cold.frac takes a number, not 'nan'."),
    ],
)
def test_a_wrong_parameter_is_refused(spec, params, sentence):
    with pytest.raises(UsageError) as error:
        load_policy(spec, params)
    assert str(error.value) == sentence


def test_a_parameter_may_be_one_of_numpy():
    assert load_policy("random", {"seed": np.int64(7)}).params.seed == 7
    assert load_policy("drop-cold", {"frac": np.float32(0.5)}).params.frac == 0.5
    assert type(load_policy("drop-cold", {"frac": np.int8(1)}).params.frac) is float


def test_a_parameter_is_read_from_text():
    assert load_policy("random", {"seed": "7"}).params.seed == 7

"""How the text of options becomes values."""

import pytest

from tracekit.cli import options
from tracekit.trace.errors import UsageError


def test_values_repeat_or_take_commas():
    assert options.split("--policy", ["lru, lfu", "belady", "lru"]) == ["lru", "lfu", "belady"]
    assert options.cache_mib(["0", "4,8.5"]) == [0, 4, 8.5]
    assert options.cache_fraction(["0.1,0.25", "1"]) == [0.1, 0.25, 1]


@pytest.mark.parametrize("text", ["-5", "abc", "nan", "inf", "1e300"])
def test_a_size_must_be_a_number(text):
    with pytest.raises(UsageError) as error:
        options.cache_mib(["4", text])
    assert str(error.value) == f"--cache-mib takes sizes in MiB from 0 to 1e12, not {text!r}."


@pytest.mark.parametrize("text", ["-0.1", "50", "half", "nan"])
def test_a_fraction_lies_between_0_and_1(text):
    with pytest.raises(UsageError) as error:
        options.cache_fraction([text])
    assert str(error.value) == (
        "--cache-fraction takes fractions of the expert bank from 0 to 1 (0.5 is half of it), "
        f"not {text!r}."
    )


@pytest.mark.parametrize("text", ["", "4,", ",4"])
def test_an_empty_value_between_commas_is_an_error(text):
    with pytest.raises(UsageError) as error:
        options.cache_mib([text])
    assert str(error.value) == f"--cache-mib has an empty value in {text!r}."


def test_params_are_read_with_their_several_values():
    assert options.params(["a.x=1,2", "my.mod:Class.z=q"]) == {
        "a.x": ["1", "2"],
        "my.mod:Class.z": ["q"],
    }


@pytest.mark.parametrize("text", ["a", "a=1", ".x=1", "a.=1", "a.x=", "a.x"])
def test_a_param_names_a_field_and_a_value(text):
    with pytest.raises(UsageError) as error:
        options.params([text])
    assert str(error.value) == (
        f"--param takes NAME.FIELD=VALUE, as in prefetch.spec_max=2, not {text!r}."
    )


def test_a_param_is_set_once():
    with pytest.raises(UsageError) as error:
        options.params(["a.x=1", "a.x=2"])
    assert str(error.value) == ("--param sets a.x twice; give several values in one: a.x=1,2.")

"""The builder of typed dataclasses: what it takes, what it refuses, and with which sentence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tracekit.trace import TraceError, UsageError
from tracekit.trace.build import build, shown

LONG = 10**5000  # more digits than Python prints


@dataclass(frozen=True)
class Inner:
    x: int


@dataclass(frozen=True)
class Example:
    count: int = 1
    rate: float = 0.5
    name: str = "a"
    on: bool = False
    limit: float | None = None
    word: str | None = None
    sizes: list[float] = field(default_factory=list)
    either: float | list[float] | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner | None = None

    def __post_init__(self):
        if self.count < 0:
            raise ValueError("count must be 0 or more")


@dataclass(frozen=True)
class Needy:
    needed: int
    optional: int = 0


def made(name: str, value: object, from_text: bool = False) -> object:
    example = build(Example, {name: value}, "study.toml", UsageError, from_text=from_text)
    return getattr(example, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 7),
        ("rate", 0.25),
        ("name", "b"),
        ("on", True),
        ("limit", None),
        ("limit", 2.5),
        ("word", "none"),  # JSON and TOML have a null, or leave the name out
        ("sizes", []),
        ("sizes", [0.5, 2.0]),
        ("either", 1.0),
        ("either", [1.0, 2.0]),
        ("either", None),
        ("tables", {"a": {"b": [1, "x", None]}}),
        ("rest", {"a": 1}),
        ("inner", Inner(3)),
    ],
)
def test_a_value_of_its_type_is_taken_as_it_is(name, value):
    assert made(name, value) == value
    assert type(made(name, value)) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", 1, 1.0),
        ("sizes", [1, 2], [1.0, 2.0]),
        ("count", np.int32(3), 3),
        ("rate", np.float32(0.5), 0.5),
        ("rate", Fraction(1, 4), 0.25),
    ],
)
def test_a_number_of_another_class_becomes_one_of_the_fields_type(name, value, expected):
    found = made(name, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("count", "7", 7),
        ("rate", "0.25", 0.25),
        ("rate", "1e-3", 0.001),
        ("name", "7", "7"),
        ("on", "True", True),
        ("on", "0", False),
        ("on", np.True_, True),
        ("limit", "none", None),
        ("limit", "2", 2.0),
        ("word", "none", None),
        ("word", "nothing", "nothing"),
        ("sizes", ["1", 2], [1.0, 2.0]),
    ],
)
def test_text_is_read_where_that_is_asked_for(name, text, expected):
    found = made(name, text, from_text=True)
    assert found == expected
    assert type(found) is type(expected)


NUMBER, WHOLE = "a number", "a whole number"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("count", "7", WHOLE),
        ("count", 1.0, WHOLE),
        ("count", True, WHOLE),
        ("count", None, WHOLE),
        ("count", [1], WHOLE),
        ("rate", "0.5", NUMBER),
        ("rate", True, NUMBER),
        ("rate", float("nan"), NUMBER),
        ("rate", float("inf"), NUMBER),
        ("rate", 1j, NUMBER),
        ("name", 7, "text"),
        ("name", b"a", "text"),
        ("on", 1, "true or false"),
        ("on", "true", "true or false"),
        ("limit", "none", NUMBER),
        ("sizes", 1.5, "a list of numbers"),
        ("sizes", "x", "a list of numbers"),
        ("sizes", [1, "x"], "a list of numbers"),
        ("sizes", [float("nan")], "a list of numbers"),
        ("either", "x", "a number or a list of numbers"),
        ("tables", {"a": 1}, "a table of named tables of named values"),
        ("tables", {1: {}}, "a table of named tables of named values"),
        ("rest", [], "a table of named values"),
        ("inner", {"x": 1}, "a Inner"),
    ],
)
def test_a_value_of_another_type_is_refused(name, value, wanted):
    with pytest.raises(UsageError) as error:
        made(name, value)
    assert str(error.value) == f"study.toml: {name} takes {wanted}, not {value!r}."


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("count", "1.0", WHOLE),
        ("count", "", WHOLE),
        ("count", "x", WHOLE),
        ("rate", "nan", NUMBER),
        ("rate", "-inf", NUMBER),
        ("rate", "1e999", NUMBER),
        ("on", "maybe", "true or false"),
        ("on", 2, "true or false"),
        ("count", "none", WHOLE),
    ],
)
def test_text_of_another_type_is_refused(name, text, wanted):
    with pytest.raises(UsageError) as error:
        made(name, text, from_text=True)
    assert str(error.value) == f"study.toml: {name} takes {wanted}, not {text!r}."


@pytest.mark.parametrize("from_text", [False, True])
@pytest.mark.parametrize("name", ["count", "rate", "name", "on", "limit", "sizes", "either"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (LONG, "one of thousands of digits"),
        (-LONG, "one of thousands of digits"),
        ([LONG], "one of thousands of digits"),
        (10**400, "1" + "0" * 58 + "…"),
        ("9" * 5000, "'" + "9" * 58 + "…"),
        ("[" * 9000, "'" + "[" * 58 + "…"),
    ],
    ids=["digits", "negative", "in a list", "beyond floats", "text of digits", "brackets"],
)
def test_huge_values_are_refused_in_one_short_sentence(name, value, words, from_text):
    if name == "name" and isinstance(value, str):
        assert made(name, value, from_text) == value  # text may be long
        return
    with pytest.raises(UsageError) as error:
        made(name, value, from_text)
    assert str(error.value).endswith(f", not {words}.")


def test_a_missing_field_is_named():
    with pytest.raises(TraceError) as error:
        build(Needy, {"optional": 1}, "run.trace/trace.json, model", TraceError)
    assert str(error.value) == "run.trace/trace.json, model lacks 'needed'; add it."
    assert build(Needy, {"needed": 2}, "it", TraceError) == Needy(2, 0)


def test_names_that_are_no_field_are_passed_over():
    assert build(Needy, {"needed": 2, "later": object()}, "it", TraceError) == Needy(2)


def test_the_refusal_of_the_class_itself_keeps_its_words():
    with pytest.raises(UsageError) as error:
        build(Example, {"count": -1}, "random", UsageError)
    assert str(error.value) == "random: count must be 0 or more."


def test_the_joint_stands_between_owner_and_field():
    with pytest.raises(UsageError) as error:
        build(Example, {"rate": "x"}, "random", UsageError, joint=".")
    assert str(error.value) == "random.rate takes a number, not 'x'."


def test_a_value_is_shown_as_python_writes_it_and_cut():
    assert shown("x") == "'x'"
    assert shown([1, 2]) == "[1, 2]"
    assert len(shown("y" * 1000)) == 60

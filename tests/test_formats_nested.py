"""Nested lists of numbers, read by a compiled loop, compared with Python's own reader of JSON."""

import json
import random

import numpy as np
import pytest

from tracekit.formats.nested import nested_numbers

SHAPES = [(1,), (5,), (1, 1), (3, 4), (1, 1, 1), (1, 3, 1), (4, 1, 1), (2, 3, 4), (5, 60, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_lists_of_every_shape(shape, form):
    expected = np.random.default_rng(0).integers(-1, 300, shape)
    found = nested_numbers(json.dumps(expected.tolist(), **form).encode())
    assert found.shape == shape
    assert np.array_equal(found, expected)


def test_an_empty_list():
    assert nested_numbers(b" [ ]").shape == (0,)


WRONG = """[ [[]] [[],[]] [1,] [,1] [1,,2] [[1],[]] [-] [1-2] [--1] [1.5] [1e3] [null] ["1"] [true] 01
[01] [[[[1]]]] [1]x x[1] [1][2] []1 []] [[1]1] [1[1]] [[1],[2,3]] [[1],2] [1,[2]] [[1,2][3,4]]
[[1,2],[3,4],] [2147483648] [-2147483648] [99999999999999999999999] 5 [1 ]] [[[1],[2]],[[3]]]"""


@pytest.mark.parametrize("text", [*WRONG.split(), "", " ", "[1 2]", "[- 1]", "[1] [2]"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"list|number"):
        nested_numbers(text.encode())


def as_json_reads_it(text: str) -> np.ndarray | None:
    try:
        values = np.array(json.loads(text))
    except (ValueError, RecursionError):
        return None
    whole = values.dtype.kind == "i" and 1 <= values.ndim <= 3 and values.size
    return values if whole and abs(values).max() < 1 << 31 else None


@pytest.mark.parametrize("seed", range(3))
def test_changed_lists_are_read_as_json_reads_them(seed):
    rng = random.Random(seed)
    plain = json.dumps(np.arange(5, 17).reshape(3, 2, 2).tolist())
    n_read = 0
    for _ in range(2000):
        text = list(plain)
        for _ in range(rng.choice((1, 1, 2, 3))):
            at, new = rng.randrange(len(text)), rng.choice("[],0123456789- ")
            text[at : at + rng.randrange(2)] = rng.choice(([new], []))
        changed = "".join(text)
        expected = as_json_reads_it(changed)
        if expected is None:
            with pytest.raises(ValueError, match=r"list|number"):
                nested_numbers(changed.encode())
        else:
            n_read += 1
            assert np.array_equal(nested_numbers(changed.encode()), expected), changed
    assert n_read > 200

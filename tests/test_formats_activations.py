"""Lists of activations: what the kernel reads is what Python's JSON reads, to the last bit."""

import json
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tracekit.formats import FORMATS, open_any
from tracekit.formats.activations import KEYS, activations

# Found by name: who imports one format first would register it before the others.
routing_atlas = sys.modules[FORMATS.find("routing-atlas").__module__]


def text_of(objects: list[dict[str, float]], compact: bool = False) -> str:
    separators = (",", ":") if compact else (", ", ": ")
    return json.dumps(objects, separators=separators)[1:-1]


def weight_texts(rng: random.Random, n: int) -> list[str]:
    """Return numbers as programs write them: short, of float32, of float64, with exponents."""
    found = []
    for _ in range(n):
        value = rng.random() ** rng.choice((1, 1, 4, 12))
        found.append(
            rng.choice(
                (
                    f"{value:.{rng.randrange(1, 9)}f}",
                    repr(float(np.float32(value))),
                    str(np.float32(value)),
                    repr(value),
                    f"{value:.{rng.randrange(1, 17)}e}",
                    rng.choice(("0", "0.0", "1", "1.0", "0.5", "1e-3", "2E+2", "-0.25")),
                )
            )
        )
    return found


def test_numbers_are_those_of_python() -> None:
    rng = random.Random(5)
    n_read = 0
    for number in range(300):
        n = rng.randrange(1, 30)
        whole = [[rng.randrange(10 ** rng.choice((1, 2, 9))) for _ in range(n)] for _ in range(3)]
        weights = weight_texts(rng, n)
        objects = []
        for row in range(n):
            values = [str(column[row]) for column in whole] + [weights[row]]
            pairs = [f'"{key}": {value}' for key, value in zip(KEYS, values, strict=True)]
            pairs.append('"output_norm": -1.5e3')
            rng.shuffle(pairs)
            objects.append("{" + ", ".join(pairs) + "}")
        text = ", ".join(objects)
        if number % 2:
            text = text.replace(" ", "")
        found = activations(text.encode() + b"]")
        if found is None:
            continue
        n_read += 1
        np.testing.assert_array_equal(found[0], whole)
        np.testing.assert_array_equal(found[1], np.array([float(w) for w in weights], np.float32))
    assert n_read > 250


def test_a_weight_that_may_be_either_of_two_is_left_to_others() -> None:
    middle = (1 + 2**-24, 1 + 2**-24 + 2**-52, 1 - 2**-25)
    for weight in middle:
        row = {"layer": 0, "token_idx": 0, "expert_idx": 1, "gate_weight": weight}
        assert activations(text_of([row]).encode() + b"]") is None
    assert activations(text_of([row | {"gate_weight": 1e-40}]).encode() + b"]") is None


GOOD = {"layer": 1, "token_idx": 2, "expert_idx": 3, "gate_weight": 0.5}


@pytest.mark.parametrize("compact", [False, True])
def test_a_weight_may_lack(compact: bool) -> None:
    row = {key: value for key, value in GOOD.items() if key != "gate_weight"}
    found = activations(text_of([GOOD, row], compact).encode() + b"]")
    assert found is not None
    np.testing.assert_array_equal(found[1], np.array([0.5, np.nan], np.float32))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1",
        "{}",
        "{",
        '{"layer": 1, "token_idx": 2}',
        text_of([GOOD]) + ",",
        text_of([GOOD])[:20],
        text_of([GOOD]) + " 1",
        "," + text_of([GOOD]),
        text_of([GOOD])[:-1],
        text_of([GOOD]) + text_of([GOOD]),
        text_of([GOOD]).replace("}", ",}"),
        text_of([GOOD]).replace(": 1", ": 01"),
        text_of([GOOD]).replace(": 1", ": 1.0"),
        text_of([GOOD]).replace(": 1", ": -1"),
        text_of([GOOD]).replace(": 1", ": +1"),
        text_of([GOOD]).replace(": 1", ": 4294967296"),
        text_of([GOOD]).replace(": 1", ": 1" + "0" * 40),
        text_of([GOOD]).replace("0.5", "0."),
        text_of([GOOD]).replace("0.5", ".5"),
        text_of([GOOD]).replace("0.5", "5e"),
        text_of([GOOD]).replace("0.5", "NaN"),
        text_of([GOOD]).replace("0.5", "null"),
        text_of([GOOD]).replace("0.5", "1e99999"),
        text_of([GOOD]).replace("0.5", '"0.5"'),
        text_of([GOOD]).replace("layer", "la\\u0079er"),
        text_of([GOOD]).replace("token_idx", "layer"),
        text_of([GOOD | {"more": []}]),
    ],
)
def test_other_forms_are_left_to_others(text: str) -> None:
    assert activations(text.encode() + b"]") is None


@pytest.mark.parametrize("compact", [False, True])
def test_both_ways_of_reading_give_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compact: bool
) -> None:
    rng = random.Random(9)
    lines = []
    for _ in range(3):
        rows: list[dict[str, float]] = []
        for token in range(rng.randrange(2, 6)):
            for layer in (1, 3):
                for expert in rng.sample(range(8), 2):
                    place = {"layer": layer, "token_idx": token, "expert_idx": expert}
                    rows.append({**place, "gate_weight": rng.random(), "output_norm": 0.0})
        line = {"num_experts": 8, "text": 'so: "activations": [', "activations": rows}
        lines.append(json.dumps(line, separators=(",", ":") if compact else None))
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(lines) + "\n\n")
    fast = open_any(path)
    monkeypatch.setattr(routing_atlas, "_read_fast", lambda piece, first_line: None)
    slow = open_any(path)
    assert fast.digest == slow.digest
    assert fast.n_turns == 3
    assert fast.facts == slow.facts


def test_the_list_of_another_object_is_not_that_of_a_prompt(tmp_path: Path) -> None:
    rows = [{**GOOD, "token_idx": t, "expert_idx": e} for t in (0, 1) for e in (2, 5)]
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps({"other": {"activations": rows}}) + "\n")
    piece = path.read_bytes()
    assert routing_atlas._read_fast(piece, 0) is None
    whole = re.sub(rb'"other": \{(.*)\}\}', rb"\1}", piece)
    assert routing_atlas._read_fast(whole, 0) is not None

"""Texts that a user types: options, parameters, names of policies, prompts. None may mean another."""

import contextlib
import io
import json
import math
import os
import random
import re
from pathlib import Path
from typing import Any

import damage
from cli_helpers import run, write_csv
from harness import ChangedError, refusal

from tracekit.cli import options
from tracekit.cli.output import to_csv
from tracekit.figures import csv_cell, from_csv_cell, printable, visible
from tracekit.policies import POLICIES, load_policies
from tracekit.predictors import PREDICTORS
from tracekit.trace import TracekitError
from tracekit_engine.prompts import from_file, from_jsonl

WHOLE = re.compile("[+]?[0-9]+")
DECIMAL = re.compile(r"[+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
NAMES = [cls.name for cls in (*POLICIES, *PREDICTORS)]


def a_text(rng: random.Random) -> str:
    """Draw a number, a name, or something else."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(damage.NUMBERS)
    if kind == 1:
        return rng.choice(NAMES)
    if kind == 2:
        return rng.choice(damage.TEXTS)
    if kind == 3:
        return str(
            rng.choice(
                (rng.randrange(100), rng.random(), rng.randrange(-5, 5), 10 ** rng.randrange(30))
            )
        )
    if kind == 4:
        return damage.damaged_bytes(rng.choice(NAMES).encode(), rng).decode(
            "utf-8", "surrogateescape"
        )
    return "".join(
        rng.choice("0123456789abcdefx_.+-eE ,:=@'\"\0\n\u0661é") for _ in range(rng.randrange(9))
    )


class Options:
    """Draws the texts of options that are numbers and lists, and of cells and lines."""

    name = "options"

    def __init__(self, folder: Path):
        pass

    def check(self, rng: random.Random) -> str:
        text = a_text(rng)
        question = rng.choice(
            (self._whole, self._sizes, self._fractions, self._settings, self._cells)
        )
        try:
            return question(text, rng)
        except TracekitError as error:
            return refusal(error)

    def _whole(self, text: str, rng: random.Random) -> str:
        least = rng.choice((0, 1))
        for number in (
            options.whole_numbers("--named", [text]) if least else [options._whole("-n", 0)(text)]
        ):
            if not any(
                WHOLE.fullmatch(part.strip()) and int(part) == number for part in text.split(",")
            ):
                raise ChangedError(f"{text!r:.60} was read as {number}")
            if number < least:
                raise ChangedError(f"{number} is below {least}")
        return "read"

    def _sizes(self, text: str, _: random.Random) -> str:
        return _numbers(text, options.cache_mib([text]), 1e12)

    def _fractions(self, text: str, _: random.Random) -> str:
        return _numbers(text, options.cache_fraction([text]), 1)

    def _settings(self, text: str, rng: random.Random) -> str:
        name, field = (
            rng.choice(NAMES),
            rng.choice(("seed", "frac", "predictor", "horizon", "lag", "spec_max")),
        )
        found = options.params([f"{name}.{field}={text}"])
        if list(found) != [f"{name}.{field}"] and "=" not in text and "." not in text:
            raise ChangedError(f"{found} was read of {text!r:.60}")
        return "read"

    def _cells(self, text: str, _: random.Random) -> str:
        if from_csv_cell(csv_cell(text)) != text:
            raise ChangedError(
                f"the cell {csv_cell(text)!r} comes back as {from_csv_cell(csv_cell(text))!r}"
            )
        if to_csv([{"a": text}]).count("\n") < 2:
            raise ChangedError("a row is missing")
        for shown in (printable(text), visible(text)):
            if any(character in shown for character in "\0\x1b\x07\u202e"):
                raise ChangedError(f"{shown!r} is for a terminal")
        return "read"


def _numbers(text: str, found: list[float], most: float) -> str:
    expected = [part.strip() for part in text.split(",")]
    for part, number in zip(dict.fromkeys(expected), found, strict=True):
        if (
            not DECIMAL.fullmatch(part if number else part.removeprefix("-"))
            or float(part) != number
            or not 0 <= number <= most
        ):
            raise ChangedError(f"{part!r:.60} was read as {number}")
    return "read"


class Names:
    """Draws names of policies and predictors, and their parameters."""

    name = "names"

    def __init__(self, folder: Path):
        pass

    def check(self, rng: random.Random) -> str:
        name = a_text(rng)
        if rng.random() < 0.3:
            name = f"{rng.choice(('tracekit.policies', 'os', 'pathlib', name))}:{rng.choice(('LRU', 'Path', name))}"
        try:
            cls: Any = rng.choice((POLICIES, PREDICTORS)).find(name)
        except TracekitError as error:
            refusal(error)
            return self._parameters(rng)
        if cls.name != name and not name.endswith(f":{cls.__name__}"):
            raise ChangedError(f"{name!r} was taken for {cls.name!r}")
        return self._parameters(rng)

    def _parameters(self, rng: random.Random) -> str:
        name, text = rng.choice([cls.name for cls in POLICIES]), a_text(rng)
        fields = list(getattr(POLICIES.find(name).Params, "__dataclass_fields__", {})) or ["seed"]
        field = rng.choice([*fields, "sed"])
        try:
            (policy, *more) = load_policies([name], {f"{name}.{field}": text})
        except TracekitError as error:
            return refusal(error)
        value = getattr(policy.params, field)
        if more or isinstance(value, str):
            return "read"
        if isinstance(value, bool):
            is_same = text.strip().lower() in (("true", "1") if value else ("false", "0"))
        elif isinstance(value, int):
            is_same = bool(re.fullmatch("[-+]?[0-9]+", text.strip())) and int(text) == value
        elif value is None:
            is_same = text.strip() == "none"
        else:
            is_same = bool(DECIMAL.fullmatch(text.strip().lstrip("-"))) and float(text) == value
        if not is_same or (isinstance(value, float) and not math.isfinite(value)):
            raise ChangedError(f"{name}.{field}={text!r:.60} was read as {value!r}")
        return "read"


class Prompts:
    """Damages files of prompts."""

    name = "prompts"

    def __init__(self, folder: Path):
        self._path = folder / "x.jsonl"

    def check(self, rng: random.Random) -> str:
        data = self._draw(rng)
        self._path.write_bytes(data)
        try:
            if rng.random() < 0.2:
                found = from_file(self._path).text or ""
                _same(found, data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n"))
                return "read"
            prompts = from_jsonl(self._path)
        except TracekitError as error:
            return refusal(error)
        lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
        said = [json.loads(line) for line in lines if line.strip()]
        for prompt, value in zip(prompts, said, strict=True):
            if isinstance(value, str):
                _same(prompt.text, value)
            elif isinstance(value.get("prompt"), str):
                _same(prompt.text, value["prompt"])
            else:
                _same([*prompt.messages], [(m["role"], m["content"]) for m in value["messages"]])
        return "read"

    def _draw(self, rng: random.Random) -> bytes:
        texts = ["Once upon a time", "Ünï\u202e", "", rng.choice(damage.TEXTS), a_text(rng)]
        values: list[Any] = []
        for _ in range(rng.randrange(1, 4)):
            text = rng.choice(texts)
            messages = [
                {"role": "user", "content": text},
                {"role": rng.choice(texts), "content": "b"},
            ]
            values.append(
                rng.choice((text, {"prompt": text}, {"messages": messages}, [text], None, 5, {}))
            )
        lines = [json.dumps(value, ensure_ascii=rng.random() < 0.5) for value in values]
        text = rng.choice(("\n", "\r\n")).join(lines)
        if rng.random() < 0.05:
            text += "\n" + rng.choice(
                ("[" * 99_999, '{"prompt":' * 9_999, "9" * 5000, '"' + "a" * 99_999 + '"')
            )
        data = text.encode("utf-8", "surrogatepass")
        return damage.damaged_bytes(data, rng) if rng.random() < 0.6 else data


def _same(found: Any, said: Any) -> None:
    if found != said:
        raise ChangedError(f"{found!r:.100} was read, {said!r:.100} stands there")


COMMANDS = (
    ("replay", "{trace}", "--policy", "{}"),
    ("replay", "{trace}", "--cache-mib", "{}"),
    ("replay", "{trace}", "--cache-fraction", "{}"),
    ("replay", "{trace}", "--policy", "random", "--param", "random.seed={}"),
    ("replay", "{trace}", "--policy", "drop-cold", "--param", "drop-cold.frac={}"),
    ("replay", "{trace}", "--policy", "retention", "--param", "retention.predictor={}"),
    ("replay", "{trace}", "--policy", "retention", "--param", "retention.horizon={}"),
    (
        "replay",
        "{trace}",
        "--policy",
        "prefetch",
        "--param",
        "prefetch.predictor=oracle@accuracy={}",
    ),
    ("replay", "{trace}", "--policy", "prefetch", "--param", "prefetch.spec_max={}"),
    ("replay", "{trace}", "--policy", "fewer-experts", "--param", "fewer-experts.k={}"),
    ("replay", "{trace}", "--param", "{}"),
    ("replay", "{trace}", "--seed", "{}"),
    ("replay", "{trace}", "--flash-mib-s", "{}"),
    ("replay", "{trace}", "--format", "{}"),
    ("replay", "{}"),
    ("predict", "{trace}", "--predictor", "{}"),
    ("predict", "{trace}", "--horizon", "{}"),
    ("predict", "{trace}", "--named", "{}"),
    ("predict", "{trace}", "--train", "{}"),
    ("predict", "{trace}", "--predictor", "layer-lag", "--param", "layer-lag.lag={}"),
    ("plot", "{}", "{trace}", "-o", "x.csv"),
    ("info", "{}"),
    ("policies", "--format", "{}"),
    ("sweep", "{}", "--check"),
    ("{}",),
)


class Commands:
    """Draws whole command lines and runs them."""

    name = "command lines"

    def __init__(self, folder: Path):
        self._trace = write_csv(folder / "small.csv")
        rng = random.Random(0)
        for _ in range(20):  # compiles what is run
            with contextlib.suppress(Exception):
                self.check(rng)

    def check(self, rng: random.Random) -> str:
        text = a_text(rng)
        try:
            is_typed = b"\0" not in os.fsencode(text)
        except UnicodeEncodeError:  # a half character that no bytes stand for
            is_typed = False
        if not is_typed:
            return "not typed"  # no system passes it to a process
        words = [
            word.replace("{trace}", str(self._trace)).replace("{}", text)
            for word in rng.choice(COMMANDS)
        ]
        if words[0] == "record":
            return "not typed"
        with contextlib.redirect_stdout(io.StringIO()):
            done = run(*words)
        if done.code not in (0, 1, 2, 3):
            raise ChangedError(f"{words}: exit code {done.code}")
        if done.code and not done.err.strip():
            raise ChangedError(f"{words}: it says nothing")
        if "Traceback" in done.err or "Warning:" in done.err.replace(
            "\nWarning: ", "\n"
        ).removeprefix("Warning: "):
            raise ChangedError(f"{words}: {done.err[-500:]}")
        return "ran" if done.code == 0 else "refused"

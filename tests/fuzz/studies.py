"""Studies in TOML: what is read must be what tomllib finds; what runs ends with a verdict or a sentence."""

import random
import tomllib
from pathlib import Path
from typing import Any

import damage
from harness import ChangedError, refusal

from tracekit.studies import read_study, sweep
from tracekit.studies.former import is_former_result
from tracekit.trace import TracekitError, synthesize, write_trace

STUDY = """
title = "A study"
about = "Of a synthetic trace."

[traces.small]
file = "small.trace"

[[run]]
policies = ["lru", "random", "belady", "retention"]
cache_cycles = [0.5, 2]
seeds = [0, 1]
params = { "retention.predictor" = "prev-token" }

[[run]]
predictors = ["prev-token", "layer-lag"]
horizon = [1, 2]
named = [2, 4]

[[run]]
policies = ["lfu"]
cache_mib = [1, 2.5]

[[claim]]
says = "LRU hits nothing under a cycle"
figure = "hits_decode"
of = { policy = "lru", cache_cycles = 0.5 }
equals = 0
decimals = 2

[[claim]]
says = "Belady beats random"
figure = "hit_rate_decode"
of = { policy = "belady" }
minus = { policy = "random", seed = 1 }
unit = "percent"
above = 0
"""
VALUES = (
    "1", "-1", "0", "1e999", "nan", "inf", "-inf", "true", '""', '"lru"', "[]", "[1]", "[[1]]", "{}", "{a=1}", "1979-05-27",
    "07:32:00", "0x" + "f" * 5000, "9" * 5000, "0b1", "1_000", "1e308", "4294967296", "9223372036854775808",
    "[" * 5000, "[" * 5000 + "]" * 5000, '"\\u0000\\u001b"', "'''\n'''", "1000000000000000000000", "-0.0", "0.5",
)  # fmt: skip


class Studies:
    """Damages a study."""

    name = "studies"

    def __init__(self, folder: Path):
        self._path = folder / "study.toml"
        write_trace(synthesize(3, 12, 2, 16, prefill=4), folder / "small.trace", force=True)
        shipped = sorted((Path(__file__).resolve().parents[2] / "replays").glob("*.toml"))
        self._texts = [STUDY, STUDY, STUDY, *(path.read_text() for path in shipped)]
        self._path.write_text(STUDY)
        sweep(self._path)

    def check(self, rng: random.Random) -> str:
        data = self._draw(rng)
        self._path.write_bytes(data)
        try:
            study = read_study(self._path)
        except TracekitError as error:
            return refusal(error)
        said = tomllib.loads(data.decode())
        _compare("title", study.title, said["title"])
        for run, entry in zip(study.runs, said.get("run", []), strict=True):
            for name, value in entry.items():
                _compare(f"run.{name}", getattr(run, name), value)
        for claim, entry in zip(study.claims, said.get("claim", []), strict=True):
            for name, value in entry.items():
                _compare(f"claim.{name}", getattr(claim, name), value)
        for name, entry in said.get("traces", {}).items():
            _compare("file", study.traces[name].file, entry["file"])
        is_former_result(study)
        if (
            rng.random() < 0.05
            and [*study.traces] == ["small"]
            and study.traces["small"].file == "small.trace"
        ):
            try:
                str(sweep(study, jobs=1).verdicts)
            except TracekitError as error:
                refusal(error)
        return "read"

    def _draw(self, rng: random.Random) -> bytes:
        text = rng.choice(self._texts)
        kind = rng.randrange(5)
        if kind == 0:
            return damage.damaged_bytes(text.encode(), rng)
        if kind == 1:
            return damage.damaged_numbers(text, rng).encode("utf-8", "surrogatepass")
        lines = text.splitlines()
        if kind == 2:
            lines = damage.damaged_lines(lines, rng)
        else:
            settings = [i for i, line in enumerate(lines) if " = " in line]
            for _ in range(rng.choice((1, 1, 2))):
                at = rng.choice(settings)
                lines[at] = lines[at].partition(" = ")[0] + " = " + rng.choice(VALUES)
        if rng.random() < 0.05:
            lines.append(".".join("a" * rng.choice((3, 2000))) + " = 1")
        return "\n".join(lines).encode("utf-8", "surrogatepass")


def _compare(name: str, found: Any, said: Any) -> None:
    expected = _as(found, said)
    # Equal lists of texts and numbers; nan is itself, and true is not 1.
    if (found != expected and repr(found) != repr(expected)) or not _same_kinds(found, expected):
        raise ChangedError(f"{name} is {found!r:.100}, {said!r:.100} stands there")


def _as(found: Any, said: Any) -> Any:
    """Return what stands there, a whole number as a float where one was asked for."""
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        return [_as(one, other) for one, other in zip(found, said, strict=True)]
    is_whole = isinstance(said, int) and not isinstance(said, bool)
    return float(said) if isinstance(found, float) and is_whole else said


def _same_kinds(found: Any, said: Any) -> bool:
    pairs = zip(found, said, strict=True) if isinstance(said, list) else [(found, said)]
    return all(isinstance(one, bool) == isinstance(other, bool) for one, other in pairs)

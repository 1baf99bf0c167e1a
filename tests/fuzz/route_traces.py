"""Route traces as CSV, plain and packed: what is read must be what the lines say.

The lines are read here once more, in plain Python that shares nothing with the reader.
"""

import gzip
import random
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import damage
import numpy as np
import route_trace_files as files
from harness import ChangedError, refusal
from questions import ask_everything

from tracekit.formats import open_any
from tracekit.trace import Trace, TracekitError

WHOLE = re.compile(r"[ \t]*([0-9]{1,19}|-0+)[ \t]*")
WEIGHT = re.compile(r"[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*")
BITS = {"turn": 31, "phase": 8, "step": 31, "layer": 15, "slot": 16, "expert": 16, "residency": 8,
        "dropped": 8, "expert_bytes": 63}  # fmt: skip
REQUIRED = ("turn", "phase", "step", "layer", "slot", "expert")
SIZES = ("expert_bytes", "dense_bytes")


@dataclass
class Plain:
    """What the lines of a file say.

    Attributes
    ----------
    facts : dict
        The preamble: key, text.
    sizes : dict
        The sizes of layers: {layer: {key: text}}.
    routings : list
        Up to the first line that is no whole routing: (turn, phase, step, layer), then a tuple for
        each further column.
    is_whole : bool
        There is no line that says nothing.
    """

    facts: dict[str, str]
    sizes: dict[int, dict[str, str]]
    routings: list[tuple[Any, ...]]
    is_whole: bool


def plain(data: bytes) -> Plain | None:
    """Read a file; None if even its head cannot be read."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    lines = re.split(r"\r\n|\r|\n", text)
    facts: dict[str, str] = {}
    sizes: dict[int, dict[str, str]] = {}
    header = None
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            header = number
            break
        keys = list(re.finditer(r"(?:^|(?<=\s))(\w+)=", line.lstrip("# ")))
        if not keys or line.startswith("# route_trace v"):
            continue
        words = line.lstrip("# ")
        ends = [*(key.start() for key in keys[1:]), len(words)]
        found = {k[1]: words[k.end() : e].strip() for k, e in zip(keys, ends, strict=True)}
        if "layer" in found:
            if not re.fullmatch("[0-9]{1,5}", found["layer"]):
                return None
            sizes[int(found["layer"])] = {key: found[key] for key in SIZES if key in found}
        else:
            facts |= found
    if header is None or not re.fullmatch("[0-9]{1,5}", facts.get("n_expert_used", "")):
        return None
    columns = [name.strip() for name in lines[header].split(",")]
    if len({*columns}) < len(columns) or not {*REQUIRED} <= {*columns}:
        return None
    rows = []
    for line in lines[header + 1 :]:
        if line:
            rows.append(_row(line, columns))
    k = int(facts["n_expert_used"])
    whole = rows.index(None) if None in rows else len(rows)
    groups = [rows[at : at + k] for at in range(0, whole - k + 1, k)] if k else []
    routings = []
    for group in groups:
        place = [tuple(row[name] for name in REQUIRED[:4]) for row in group]
        if [row["slot"] for row in group] != [*range(k)] or len({*place}) > 1:
            break
        lists = (
            tuple(row.get(name) for row in group)
            for name in ("expert", "weight", "residency", "dropped")
        )
        routings.append((*place[0], *lists))
    return Plain(facts, sizes, routings, len(routings) * k == len(rows) > 0)


def _row(line: str, columns: list[str]) -> dict[str, Any] | None:
    fields = line.split(",")
    if len(fields) != len(columns):
        return None
    row: dict[str, Any] = {}
    for name, text in zip(columns, fields, strict=True):
        if name == "weight":
            if text.strip() in ("nan", "-nan", "NaN"):
                row[name] = None
            elif WEIGHT.fullmatch(text):
                row[name] = float(np.float32(float(text)))
            else:
                return None
        elif name in BITS:
            is_unknown = name == "step" and re.fullmatch(r"[ \t]*-0*1[ \t]*", text)
            if not is_unknown and not (WHOLE.fullmatch(text) and int(text) < 1 << BITS[name]):
                return None
            row[name] = int(text)
    for name in ("residency", "dropped"):
        if row.get(name) == 255:  # unknown, as in a trace
            row[name] = None
    if row["step"] == -1 and row["phase"] != 0:
        return None
    return row


def in_trace(trace: Trace) -> list[tuple[Any, ...]]:
    """Return the routings of a trace as `Plain` has them."""
    names = ["turn", "phase", "step", "layer", "experts", "weights", "residency", "dropped"]
    columns = trace.routing(names)
    weights = columns["weights"].astype(object)
    weights[np.isnan(columns["weights"])] = None
    columns["weights"] = weights
    for name in ("residency", "dropped"):
        values = columns[name].astype(object)
        columns[name] = np.where(columns[name] == 255, None, values)
    lists = [
        [(v if isinstance(v, int) else tuple(v)) for v in columns[name].tolist()] for name in names
    ]
    return list(zip(*lists, strict=True))


def compare(trace: Trace, data: bytes) -> None:
    """Compare a trace with the file it was read from.

    Raises
    ------
    ChangedError
    """
    said = plain(data)
    if said is None:
        raise ChangedError("a file was read whose head says nothing")
    found = in_trace(trace)
    expected = said.routings[: len(found)]
    if trace.complete and (not said.is_whole or len(found) != len(said.routings)):
        raise ChangedError(
            f"{len(found)} routings were read as all, the lines say {len(said.routings)}"
        )
    if not trace.complete and not trace.warnings:
        raise ChangedError("nothing warns of an incomplete trace")
    for one, other in zip(sorted(map(_key, found)), sorted(map(_key, expected)), strict=True):
        # A step that is not known is counted by the reader.
        if one != other and not any(routing[2] == -1 for routing in expected):
            raise ChangedError(f"{one} was read, {other} stands there")
    model = trace.facts.model
    for key, value in (
        ("n_layer", model.n_layer),
        ("n_expert", model.n_expert),
        ("n_expert_used", model.top_k),
    ):
        if int(said.facts[key]) != value:
            raise ChangedError(f"{key} is {value}, {said.facts[key]!r} stands there")
    _compare_sizes(trace, said)


def _compare_sizes(trace: Trace, said: Plain) -> None:
    layers = trace.layer_columns
    for key in SIZES:
        for layer, value in zip(layers["layer"].tolist(), layers[key].tolist(), strict=True):
            text = said.sizes.get(layer, {}).get(key)
            number = -1 if text is None else int(text)
            if key == "expert_bytes" and number == 0:  # a layer without experts
                number = -1
            if value != number:
                raise ChangedError(f"{key} of layer {layer} is {value}, {text!r} stands there")


def _key(routing: tuple[Any, ...]) -> str:
    return repr([-0.0 + part if isinstance(part, float) else part for part in routing])


def bases() -> list[str]:
    """Return files of several kinds: with and without columns, drafts, unknown steps, a cut prompt."""
    found = [files.text(files.turn(0) + files.turn(1, decoded=3))]
    header = files.HEADER + ",dropped"
    found.append(
        files.text([f"{row},{i % 3 == 0:d}" for i, row in enumerate(files.turn(4))], header=header)
    )
    short = [",".join(row.split(",")[:6]) for row in files.turn(0, 2, 4)]
    found.append(files.text(short, header="turn,phase,step,layer,slot,expert"))
    drafted = [
        row for layer in (1, 2) for step in (3, 4) for row in files.routing(0, 1, step, layer)
    ]
    again = [row for layer in (1, 2) for step in (4, 5) for row in files.routing(0, 1, step, layer)]
    prompt = [
        row for layer in (1, 2) for step in range(3) for row in files.routing(0, 0, step, layer)
    ]
    found.append(files.text(prompt + drafted + again))
    unknown = [row for layer in (1, 2) for _ in range(3) for row in files.routing(0, 0, -1, layer)]
    found.append(files.text(unknown + drafted))
    return found


class RouteTraces:
    """Damages small route traces."""

    name = "route traces"

    def __init__(self, folder: Path):
        self._path = folder / "x.csv"
        self._bases = bases()
        for text in self._bases:  # compiles what is asked
            self._path.write_text(text)
            ask_everything(open_any(self._path))

    def check(self, rng: random.Random) -> str:
        data = self.draw(rng)
        packed = rng.random() < 0.1
        stored = gzip.compress(data, 1) if packed else data
        if packed and rng.random() < 0.5:
            stored = damage.damaged_bytes(stored, rng)
            data = _unpacked(stored)
        self._path.write_bytes(stored)
        try:
            trace = open_any(self._path)
        except TracekitError as error:
            return refusal(error)
        compare(trace, data)
        if rng.random() < 0.05:
            ask_everything(trace)
        return "read" if trace.complete else "warned"

    def draw(self, rng: random.Random) -> bytes:
        text = rng.choice(self._bases)
        kind = rng.randrange(6)
        if kind == 0:
            return damage.damaged_bytes(text.encode(), rng)
        if kind == 1:
            return damage.damaged_numbers(text, rng).encode("utf-8", "surrogatepass")
        lines = text.splitlines()
        if kind in (2, 3):
            lines = damage.damaged_lines(lines, rng)
        else:
            for _ in range(rng.choice((1, 1, 2))):
                at = rng.randrange(len(lines))
                lines[at] = damage.damaged_fields(lines[at], rng)
        end = rng.choice(("\n", "\n", "\r\n", "\r"))
        return end.join([*lines, ""]).encode("utf-8", "surrogatepass")


def _unpacked(data: bytes) -> bytes:
    try:
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error):
        return b""

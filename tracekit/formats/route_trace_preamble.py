"""The ``# key=value`` lines at the head of a ``# route_trace v1`` file.

In: lines of text. Out: the facts of a trace and its table of layers. This module knows nothing of the
rows that follow.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tracekit.trace import EngineFacts, ModelFacts, TraceError, TraceFacts
from tracekit.trace.missing import LATE

MAGIC = b"# route_trace v"
VERSION = 1
ENGINE = "BigMoeOnEdge"

MODEL_KEYS = ("model", "arch", "n_layer", "n_expert", "n_expert_used")
# The largest number that a key may have.
LIMITS = {
    "layer": (1 << 15) - 1,
    "expert_bytes": 1 << 40,
    "dense_bytes": 1 << 40,
    "cache_bytes": 1 << 50,
}
LIMIT = 1 << 24

_KEY = re.compile(r"(?:^|\s)(\w+)=")


@dataclass(frozen=True)
class Preamble:
    """The content of the preamble.

    Attributes
    ----------
    facts : TraceFacts
    layers : list of dict
        Of each layer of the model, `layer` and the sizes that the preamble gives and are not 0.
    """

    facts: TraceFacts
    layers: list[dict[str, int]]


@dataclass(frozen=True)
class _Value:
    """The text of a value, its key, and the line on which it stands."""

    key: str
    text: str
    where: str

    def whole(self) -> int:
        """Return the value as a whole number."""
        limit = LIMITS.get(self.key, LIMIT)
        if not re.fullmatch(r"[0-9]{1,18}", self.text) or int(self.text) > limit:
            raise TraceError(
                f"{self.where}: {self.key}={self.text[:40]!r} is no whole number from 0 to "
                f"{limit}; correct it."
            )
        return int(self.text)


def parse_preamble(lines: list[bytes], path: str) -> Preamble:
    """Read the lines before the header.

    Raises
    ------
    TraceError
        The version is newer, a model fact is missing, or a number is not valid; the sentence names
        the line.
    """
    values: dict[str, _Value] = {}
    sizes: dict[int, dict[str, int]] = {}
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if line.startswith(MAGIC):
            _check_version(line, where)
        elif line.startswith(b"#"):
            of_line = {value.key: value for value in _values(line, where)}
            if "layer" not in of_line:
                values.update(of_line)
                continue
            layer = of_line["layer"].whole()
            if layer in sizes:
                raise TraceError(f"{where}: layer {layer} stands twice; remove one.")
            sizes[layer] = {
                key: of_line[key].whole()
                for key in ("expert_bytes", "dense_bytes")
                if key in of_line
            }
    facts = _facts(values, path)
    return Preamble(facts, _layers(sizes, facts.model.n_layer, path))


def _values(line: bytes, where: str) -> Iterator[_Value]:
    """Yield the values of a line; one ends where the next key begins, as names may hold spaces."""
    text = line.decode("utf-8", errors="replace").lstrip("# ").rstrip()
    keys = list(_KEY.finditer(text))
    ends = [*(key.start() for key in keys[1:]), len(text)]
    for key, end in zip(keys, ends, strict=False):
        yield _Value(key[1], text[key.end() : end].strip(), where)


def _check_version(line: bytes, where: str) -> None:
    version = line.removeprefix(MAGIC).strip().decode("utf-8", errors="replace")
    if version != str(VERSION):
        raise TraceError(
            f"{where}: route_trace version {version[:20]!r} is not the {VERSION} that this "
            "tracekit reads; upgrade tracekit or record version 1."
        )


def _facts(values: Mapping[str, _Value], path: str) -> TraceFacts:
    missing = [key for key in MODEL_KEYS if key not in values]
    if missing:
        raise TraceError(
            f"{path}: its preamble does not give {', '.join(missing)}; before the header, add "
            "'# model=NAME arch=ARCH n_layer=N n_expert=N n_expert_used=K' and one "
            "'# layer=N expert_bytes=N dense_bytes=N' a layer."
        )
    model = ModelFacts(
        name=PurePosixPath(values["model"].text).name.removesuffix(".gguf"),
        arch=values["arch"].text,
        n_layer=values["n_layer"].whole(),
        n_expert=values["n_expert"].whole(),
        top_k=values["n_expert_used"].whole(),
    )
    texts = {key: value.text for key, value in values.items()}
    notes = {"format": f"route_trace v{VERSION}", "preamble": texts}
    if LATE in texts:
        notes[LATE] = texts[LATE]
    facts = TraceFacts(
        model=model,
        source="imported",
        engine=EngineFacts(name=ENGINE, cache_bytes=_cache_bytes(values)),
        notes=notes,
    )
    facts.check(path)
    return facts


def _cache_bytes(values: Mapping[str, _Value]) -> int | None:
    if "cache_mib" in values:
        return values["cache_mib"].whole() << 20
    return values["cache_bytes"].whole() if "cache_bytes" in values else None


def _layers(
    sizes: Mapping[int, Mapping[str, int]], n_layer: int, path: str
) -> list[dict[str, int]]:
    last = max(sizes, default=0)
    if last >= n_layer:
        raise TraceError(
            f"{path}: its preamble gives a size of layer {last}, but n_layer={n_layer}; "
            "correct one of them."
        )
    rows: list[dict[str, int]] = [
        {"layer": layer, **sizes.get(layer, {})} for layer in range(n_layer)
    ]
    for row in rows:
        if row.get("expert_bytes") == 0:  # the engine writes 0 for a layer without routed experts
            del row["expert_bytes"]
    return rows

"""The ``# key=value`` lines at the head of a ``# route_trace v1`` file."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from tracekit.trace import EngineFacts, ModelFacts, TraceError, TraceFacts
from tracekit.trace.columns import from_numpy
from tracekit.trace.schema import layers_schema

MAGIC = b"# route_trace v"
VERSION = 1
ENGINE = "BigMoeOnEdge"

# A value runs to the next key: names of models may hold spaces.
PAIR = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)")
MODEL_KEYS = ("model", "arch", "n_layer", "n_expert", "n_expert_used")
LARGEST = {"expert_bytes": 1 << 40, "dense_bytes": 1 << 40, "cache_bytes": 1 << 50}


@dataclass(frozen=True)
class Preamble:
    """What the preamble says.

    Attributes
    ----------
    facts : TraceFacts
    layers : pa.Table
        One row per layer of the model; sizes are null where the preamble gives none, or 0.
    """

    facts: TraceFacts
    layers: pa.Table


def parse_preamble(lines: list[bytes], path: str) -> Preamble:
    """Read the lines before the header.

    Raises
    ------
    TraceError
        The version is newer, a model fact is missing, or a number is none; the sentence names the
        line.
    """
    pairs: dict[str, str] = {}
    sizes: dict[int, tuple[int | None, int | None]] = {}
    at: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.startswith(b"#"):
            continue
        text = line.decode("utf-8", errors="replace").lstrip("# ").rstrip()
        if line.startswith(MAGIC):
            _check_version(line, number, path)
            continue
        found = dict(PAIR.findall(text))
        if "layer" in found:
            layer = _whole(found, "layer", f"{path}, line {number}", (1 << 15) - 1)
            if layer in sizes:
                raise TraceError(f"{path}, line {number}: layer {layer} stands twice; remove one.")
            where = f"{path}, line {number}"
            # 0 is how the engine writes that a layer has no routed experts.
            expert_bytes = _whole(found, "expert_bytes", where) or None
            sizes[layer] = expert_bytes, _whole(found, "dense_bytes", where)
        else:
            pairs.update(found)
            at.update(dict.fromkeys(found, number))
    return Preamble(_facts(pairs, at, path), _layers(sizes, pairs, path))


def _check_version(line: bytes, number: int, path: str) -> None:
    version = line.removeprefix(MAGIC).strip().decode("utf-8", errors="replace")
    if version != str(VERSION):
        raise TraceError(
            f"{path}, line {number}: route_trace version {version[:20]!r} is not the {VERSION} "
            "that this tracekit reads; upgrade tracekit or record version 1."
        )


def _whole(found: dict[str, str], key: str, where: str, largest: int | None = None) -> int | None:
    """Return the whole number under `key`, None where it is missing."""
    text = found.get(key)
    if text is None:
        return None
    largest = LARGEST.get(key, largest or 1 << 24)
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > largest:
        raise TraceError(
            f"{where}: {key}={text[:40]!r} is no whole number from 0 to {largest}; correct it."
        )
    return int(text)


def _facts(pairs: dict[str, str], at: dict[str, int], path: str) -> TraceFacts:
    missing = [key for key in MODEL_KEYS if key not in pairs]
    if missing:
        raise TraceError(
            f"{path}: its preamble does not give {', '.join(missing)}; before the header, add "
            "'# model=NAME arch=ARCH n_layer=N n_expert=N n_expert_used=K' and one "
            "'# layer=N expert_bytes=N dense_bytes=N' a layer."
        )

    def number(key: str) -> int | None:
        return _whole(pairs, key, f"{path}, line {at.get(key)}")

    model = ModelFacts(
        name=PurePosixPath(pairs["model"]).name.removesuffix(".gguf"),
        arch=pairs["arch"],
        n_layer=number("n_layer"),
        n_expert=number("n_expert"),
        top_k=number("n_expert_used"),
    )
    cache_mib = number("cache_mib")
    cache_bytes = number("cache_bytes") if cache_mib is None else cache_mib << 20
    facts = TraceFacts(
        model=model,
        source="imported",
        engine=EngineFacts(name=ENGINE, cache_bytes=cache_bytes),
        notes={"format": f"route_trace v{VERSION}", "preamble": pairs},
    )
    facts.check(path)
    return facts


def _layers(
    sizes: dict[int, tuple[int | None, int | None]], pairs: dict[str, str], path: str
) -> pa.Table:
    n_layer = int(pairs["n_layer"])
    if sizes and max(sizes) >= n_layer:
        raise TraceError(
            f"{path}: its preamble gives a size of layer {max(sizes)}, but n_layer={n_layer}; "
            "correct one of them."
        )
    known = [sizes.get(layer, (None, None)) for layer in range(n_layer)]
    columns = {
        name: np.array([-1 if row[i] is None else row[i] for row in known], dtype=np.int64)
        for i, name in enumerate(("expert_bytes", "dense_bytes"))
    }
    columns["layer"] = np.arange(n_layer)
    schema = layers_schema()
    arrays = []
    for f in schema:
        values = columns.get(f.name)
        valid = None if values is None else values >= 0
        arrays.append(from_numpy(values, f.type, n_layer, valid))
    return pa.Table.from_arrays(arrays, schema=schema)

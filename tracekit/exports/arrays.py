"""Arrays of numpy in an ``.npz`` archive: experts [tokens, layers, k] and what stands beside them.

In: a trace. Out: the archive, array by array, each written as the trace is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy

from tracekit.exports.format import ExportFormat, register
from tracekit.exports.tokens import TokenColumns
from tracekit.routing.passes import Columns, whole_passes
from tracekit.trace import Trace
from tracekit.trace.columns import NULLS, numpy_type
from tracekit.trace.schema import ROUTING_FILE

# Where a token has no routing at a layer: what stands in the slots of the experts.
NONE = -1
_LISTS = ("weights", "residency", "dropped", "logits", "gate_input")


@register
class Arrays(ExportFormat):
    """Arrays that ``numpy.load`` opens; -1 as an expert: the token was not routed at the layer."""

    name = "npz"
    endings = (".npz",)
    summary = "arrays of numpy: experts [tokens, layers, k], pass, phase, weights, logits …"
    carries = (
        "place",
        "weights",
        "residency",
        "dropped",
        "logits",
        "gate_input",
        "kept",
        "token",
        "model",
    )

    def write(self, trace: Trace, file: BinaryIO, path: Path) -> None:
        """Write the archive."""
        tokens = _tokens(trace)
        with ZipFile(file, "w") as archive:
            for name, values in {**_facts(trace), **_places(trace, tokens)}.items():
                _write(archive, name, values.dtype, values.shape, iter([values]))
            for name in ("experts", *(each for each in _LISTS if trace.has(each))):
                grid = _Grid(trace, name, tokens)
                _write(archive, name, grid.dtype, grid.shape, grid.blocks())

    def import_flags(self, trace: Trace) -> list[str]:
        """Say that the file needs none: its arrays say all."""
        return []


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a trace, in the order of pass and step.

    Attributes
    ----------
    turn, passes, phase, step : int [T]
    is_full : bool
        Whether every token was routed at every layer.
    """

    turn: np.ndarray
    passes: np.ndarray
    phase: np.ndarray
    step: np.ndarray
    is_full: bool


def _tokens(trace: Trace) -> _Tokens:
    """Find the tokens: a trace may have steps without a routing, so these do not tell."""
    columns = ("turn", "pass", "phase", "step")
    pieces: list[list[np.ndarray]] = []
    n_rows = 0
    for block in whole_passes(trace, columns):
        first = _token_of_rows(block)[1]
        pieces.append([block[name][first] for name in columns])
        n_rows += len(block["pass"])
    turn, passes, phase, step = (np.concatenate(each) for each in zip(*pieces, strict=True))
    is_full = n_rows == len(step) * len(trace.moe_layers)
    return _Tokens(turn, passes, phase, step, is_full)


def _token_of_rows(block: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return which token of the block each row is of, and the first row of each token."""
    key = block["pass"].astype(np.int64) << 32 | block["step"]
    _, first, token = np.unique(key, return_index=True, return_inverse=True)
    return token.reshape(-1), first


def _places(trace: Trace, tokens: _Tokens) -> dict[str, np.ndarray]:
    """Return the arrays with one value a token."""
    arrays = {
        "prompt": tokens.turn,
        "pass": tokens.passes,
        "phase": tokens.phase,
        "token": tokens.step,
    }
    further = TokenColumns(trace)
    if further.is_needed:
        arrays |= further.of(tokens.passes, tokens.step)
    return arrays


def _facts(trace: Trace) -> dict[str, np.ndarray]:
    """Return what the archive says of the model."""
    model = trace.facts.model
    facts: dict[str, Any] = {
        "model": model.name,
        "arch": model.arch,
        "n_layer": model.n_layer,
        "n_expert": model.n_expert,
        "top_k": model.top_k,
        "slot_order": trace.facts.slot_order,
        "layers": trace.moe_layers,
    }
    sizes = trace.layer_columns
    known = sizes["expert_bytes"][np.isin(sizes["layer"], trace.moe_layers)]
    if (known >= 0).any():
        facts["expert_bytes"] = known
    return {name: np.asarray(value) for name, value in facts.items()}


class _Grid:
    """An array [tokens, layers, width] of a column of the routings.

    Attributes
    ----------
    dtype : np.dtype
    shape : tuple of int
    """

    def __init__(self, trace: Trace, name: str, tokens: _Tokens):
        self._trace, self._name = trace, name
        kind = trace.rows(ROUTING_FILE).schema.field(name).type
        self.shape = (len(tokens.turn), len(trace.moe_layers), int(kind.list_size))
        self.dtype = numpy_type(kind)
        self._null = NULLS.get(name, NONE)  # where a token has no routing
        if name == "experts":
            if tokens.is_full:
                self._null = 0
            else:
                self.dtype = np.dtype(np.int16 if trace.n_expert <= 1 << 15 else np.int32)

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the array in pieces along the tokens."""
        columns = ["step", "layer", self._name]
        for block in whole_passes(self._trace, columns):
            token, first = _token_of_rows(block)
            grid = np.full((len(first), *self.shape[1:]), self._null, self.dtype)
            layer = np.searchsorted(self._trace.moe_layers, block["layer"])
            grid[token, layer] = block[self._name]
            yield grid


def _write(
    archive: ZipFile,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    pieces: Iterator[np.ndarray],
) -> None:
    """Write an array, piece by piece, as `numpy.savez` does."""
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        npy.write_array_header_2_0(file, header)
        for piece in pieces:
            file.write(piece.tobytes())

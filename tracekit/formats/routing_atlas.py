"""JSON lines of moe-routing-atlas: a prompt in each line, with all experts that its tokens selected.

In: objects with `activations`, a list of objects with layer, token_idx, expert_idx and gate_weight. Out: one
prefill pass for each line.
"""

import json
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from tracekit.formats.activations import activations
from tracekit.formats.archives import damaged
from tracekit.formats.base import read_bytes
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.grouping import Rows
from tracekit.formats.lines import Lines
from tracekit.formats.options import ImportOptions
from tracekit.formats.rows import RowReader
from tracekit.formats.source import Source, one_after_another
from tracekit.trace import TraceError
from tracekit.trace.columns import one_chunk, to_numpy
from tracekit.trace.schema import PREFILL

KEY = "activations"
_WORDS = (b'"activations"', b'"expert_idx"', b'"token_idx"')
_LIST = re.compile(rb'"activations"\s*:\s*\[')
_FIRST_BYTES = 4 << 20
_ACTIVATION = pa.struct(
    [
        ("layer", pa.int64()),
        ("token_idx", pa.int64()),
        ("expert_idx", pa.int64()),
        ("gate_weight", pa.float32()),
    ]
)
_SCHEMA = pa.schema([("num_experts", pa.int64()), (KEY, pa.list_(_ACTIVATION))])


@register
class RoutingAtlas(Format):
    """Reader of the JSON lines of moe-routing-atlas."""

    name = "routing-atlas"
    summary = "JSON lines of moe-routing-atlas, a prompt in each"
    told_by = "objects with activations, lists of token_idx and expert_idx"
    lacks = "generated tokens, sizes"

    def recognises(self, given: Given) -> bool:
        """Say whether every file begins with an object that has the keys."""
        return bool(given.files) and all(map(_is_atlas, given.files))

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each line is a turn."""
        return one_after_another(given.name, [_source(file, options) for file in given.files])


def _is_atlas(file: File) -> bool:
    # Text and ids of a prompt stand before its activations.
    return file.head.lstrip().startswith(b"{") and all(
        word in read_bytes(file.path, _FIRST_BYTES) for word in _WORDS
    )


def _source(file: File, options: ImportOptions) -> Source:
    lines = Lines(file.path)
    source = Source(str(file.path), (), inferred={"passes": "one prefill pass a prompt"})

    def rows() -> Iterator[Rows]:
        n_lines = 0
        for piece in lines.pieces():
            whole = piece.rfind(b"\n") + 1
            last = piece[whole:].strip()
            if last and not last.endswith(b"}"):
                source.cut(f"{file.path} is incomplete: its last line is cut off, and left out.")
                piece = piece[:whole]
            if not piece or piece.isspace():
                continue
            if (found := _read_fast(piece, n_lines)) is not None:
                part, n_expert = found
                if n_lines == 0 and n_expert is not None:
                    source.model["n_expert"] = n_expert
                n_lines = int(part.number[-1]) + 1
                yield part
                continue
            with damaged(str(file.path)):
                table = arrow_json.read_json(
                    pa.BufferReader(piece),
                    arrow_json.ReadOptions(block_size=len(piece) + 1),
                    arrow_json.ParseOptions(_SCHEMA, unexpected_field_behavior="ignore"),
                )
                if n_lines == 0 and (n_expert := table["num_experts"][0].as_py()) is not None:
                    source.model["n_expert"] = n_expert
                yield _rows(file, table, n_lines)
            n_lines += table.num_rows

    source.chunks = RowReader(source, options, lines.place).chunks(rows())
    return source


def _read_fast(piece: bytes, first_line: int) -> tuple[Rows, int | None] | None:
    """Return the rows of lines as json.dumps writes them, and the experts of the first line.

    None: something is written otherwise, and Arrow reads all of the piece.
    """
    parts = []
    n_expert = None
    whole_piece = memoryview(piece)
    number, at = first_line - 1, 0
    while opening := _LIST.search(piece, at):
        start = opening.end()
        end = piece.find(b"\n", start)
        end = len(piece) if end < 0 else end
        if (found := activations(whole_piece[start:end])) is None:
            return None
        *columns, length = found
        line = piece[at:start] + piece[start + length : end]
        at = end
        number += 1
        try:
            if line.count(_WORDS[0]) != 1:
                return None
            prompt = json.loads(line)
        except (ValueError, RecursionError):
            return None
        said = prompt.get("num_experts") if isinstance(prompt, dict) else None
        is_number = isinstance(said, int) and not isinstance(said, bool) and abs(said) < 1 << 31
        if not isinstance(prompt, dict) or prompt.get(KEY) != []:
            return None
        if not (said is None or is_number):
            return None
        if number == first_line:
            n_expert = said
        parts.append((np.full(len(columns[1]), number), *columns))
    if not parts or piece[at:].strip():
        return None
    turn, whole, weights = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
    layer, token, experts = whole
    phase = np.full(len(turn), PREFILL, np.uint8)
    return Rows(layer, experts, token, turn, turn=turn, weights=weights, phase=phase), n_expert


def _rows(file: File, table: pa.Table, first_line: int) -> Rows:
    import pyarrow.compute as pc

    lists = one_chunk(table[KEY])
    counts = to_numpy(pc.list_value_length(lists), 0)
    flat = lists.flatten()
    if flat.null_count or any(
        flat.field(name).null_count for name in ("layer", "token_idx", "expert_idx")
    ):
        raise TraceError(
            f"{file.path}: an activation after line {first_line} lacks its layer, token_idx or "
            "expert_idx; record it again."
        )
    layer, token, expert = (
        to_numpy(flat.field(name), 0) for name in ("layer", "token_idx", "expert_idx")
    )
    turn = np.repeat(np.arange(first_line, first_line + len(counts)), counts)
    weights = to_numpy(flat.field("gate_weight"), np.nan)
    return Rows(
        layer=layer,
        experts=expert,
        token=token,
        number=turn,
        turn=turn,
        weights=weights,
        phase=np.full(len(layer), PREFILL, np.uint8),
    )

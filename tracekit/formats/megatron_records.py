"""The lines of a router trace of Megatron-LM: one for each step and layer, of one rank.

In: a ``router_trace_rank{R}.jsonl``. Out: blocks of whole steps, their columns as arrays.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from tracekit.formats.archives import damaged
from tracekit.formats.given import File
from tracekit.formats.lines import Lines, json_object
from tracekit.formats.source import Source
from tracekit.trace import TraceError

_KEYS = ("step", "layer", "num_tokens", "topk", "top_indices")
_BLOCK = "decoder"
_ABSENT = -1
_VALUE_BYTES = 2  # of a sidecar's bfloat16
_LARGEST_OF = {"layer": 1 << 15, "hs_offset": 1 << 60, "logit_offset": 1 << 60}
# Of a sidecar: where the values of a record begin, and their shape.
PLACES = {
    "hs": ("hs_offset", "hs_bytes", "hs_shape"),
    "logit": ("logit_offset", "logit_bytes", "logit_shape"),
}
_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("step", "layer", "rank", "num_tokens", "topk")),
        pa.field("block", pa.string()),
        pa.field("top_indices", pa.list_(pa.list_(pa.int32()))),
        *(
            pa.field(name, pa.int64())
            for offset, size, _ in PLACES.values()
            for name in (offset, size)
        ),
        *(pa.field(shape, pa.list_(pa.int64())) for _, _, shape in PLACES.values()),
    ]
)


def is_trace(file: File) -> bool:
    """Say whether a file begins with a line of a router trace."""
    first, _, _ = file.first_lines.lstrip().partition(b"\n")
    if not first.startswith(b"{") or b"top_indices" not in first:
        return False
    # A long line stands there in part only: its keys before the experts have to do.
    for text in (first, first.partition(b'"top_indices"')[0] + b'"top_indices": [[]]}'):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return all(key in row for key in _KEYS) and isinstance(row["top_indices"], list)
    return False


@dataclass(frozen=True)
class Block:
    """Records of whole steps, in the order of the file.

    Attributes
    ----------
    rank, step, layer, n_tokens : int [records]
    forward : int [records]
        Which time its layer comes in its step, from 0: a step of training has several forward passes.
    offsets, sizes : int [records, 2]
        Bytes of its hidden states and logits in their files; -1: none.
    widths : int [records, 2]
        Values of a token there.
    experts : int [sum of n_tokens, k]
    """

    rank: np.ndarray
    step: np.ndarray
    layer: np.ndarray
    n_tokens: np.ndarray
    forward: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    widths: np.ndarray
    experts: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    def between(self, start: int, stop: int) -> "Block":
        """Return the records from `start` to before `stop`."""
        ends = np.append(0, np.cumsum(self.n_tokens))
        columns = {f.name: getattr(self, f.name)[start:stop] for f in fields(self)[:-1]}
        return Block(**columns, experts=self.experts[ends[start] : ends[stop]])

    def ordered(self, order: np.ndarray) -> "Block":
        """Return the records in another order."""
        if (np.diff(order) > 0).all() and len(order) == len(self):
            return self
        starts = np.cumsum(self.n_tokens) - self.n_tokens
        n_tokens = self.n_tokens[order]
        inside = np.arange(n_tokens.sum()) - np.repeat(np.cumsum(n_tokens) - n_tokens, n_tokens)
        rows = np.repeat(starts[order], n_tokens) + inside
        columns = {f.name: getattr(self, f.name)[order] for f in fields(self)[:-1]}
        return Block(**columns, experts=self.experts[rows])

    def cut(self, most_tokens: int) -> tuple["Block", np.ndarray, np.ndarray]:
        """Return the records in pieces of at most so many tokens.

        Returns
        -------
        pieces : Block
        of_record : int [pieces]
            Which record a piece is of.
        first_token : int [pieces]
            Where it begins in that record.
        """
        n_pieces = -(-self.n_tokens // most_tokens)
        of_record = np.repeat(np.arange(len(self)), n_pieces)
        inside = np.arange(len(of_record)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
        first_token = inside * most_tokens
        columns = {f.name: getattr(self, f.name)[of_record] for f in fields(self)[:-1]}
        n_tokens = np.minimum(columns["n_tokens"] - first_token, most_tokens)
        token_bytes = _VALUE_BYTES * columns["widths"]
        known = columns["offsets"] >= 0
        columns |= {
            "n_tokens": n_tokens,
            "offsets": columns["offsets"] + known * token_bytes * first_token[:, None],
            "sizes": np.where(known, token_bytes * n_tokens[:, None], columns["sizes"]),
        }
        return Block(**columns, experts=self.experts), of_record, first_token


def joined(blocks: list[Block]) -> Block:
    """Return blocks one after the other.

    Raises
    ------
    TraceError
        They have other numbers of experts a token.
    """
    if len(blocks) == 1:
        return blocks[0]
    widths = {block.experts.shape[1] for block in blocks}
    if len(widths) > 1:
        raise TraceError(
            f"The records select {min(widths)} experts a token and {max(widths)}; import the files "
            "of one run."
        )
    names = (f.name for f in fields(Block))
    return Block(*(np.concatenate([getattr(each, name) for each in blocks]) for name in names))


class Records:
    """The records of one file.

    Parameters
    ----------
    file : File
    source : Source
        Is told if the file ends early.
    """

    def __init__(self, file: File, source: Source):
        self.path = file.path
        self._lines = Lines(file.path)
        self._source = source
        self._n_lines = 0
        self._layers: set[int] = set()
        self.n_left_out = 0

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of whole steps.

        Raises
        ------
        TraceError
            A line is no record, or steps do not ascend; the sentence names it.
        """
        waiting: list[Block] = []
        for piece in self._lines.whole(
            lambda line: json_object(line) is not None, self._source.cut
        ):
            block = self._block(piece)
            if not len(block):
                continue
            known = joined([*waiting, block])
            if (np.diff(known.step) < 0).any():
                at = int((np.diff(known.step) < 0).argmax())
                raise TraceError(
                    f"{self.path}: step {known.step[at + 1]} follows step {known.step[at]}; the file "
                    "holds more than one run: import one of them."
                )
            end = int(np.searchsorted(known.step, known.step[-1]))
            if end:
                yield self._counted(known.between(0, end))
            waiting = [known.between(end, len(known))]
        if waiting:
            last = self._counted(waiting[0])
            lacking = self._layers - set(last.layer.tolist())
            counts = np.unique(last.layer, return_counts=True)[1]
            if len(lacking) or (counts != counts[0]).any():
                self._source.cut(
                    f"{self.path} is incomplete: its last step {last.step[0]} lacks layers, and is "
                    "left out."
                )
                return
            yield last

    def _counted(self, block: Block) -> Block:
        """Count the forward passes within each step."""
        key = block.step << 15 | block.layer
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        begins = np.append(True, ordered[1:] != ordered[:-1])
        starts = np.flatnonzero(begins)
        inside = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        forward = np.empty(len(order), np.int64)
        forward[order] = inside
        self._layers |= set(block.layer.tolist())
        return replace(block, forward=forward)

    # ---- lines -----------------------------------------------------------------------------

    def _block(self, piece: bytes) -> Block:
        try:
            table = arrow_json.read_json(
                pa.BufferReader(pa.py_buffer(piece)),
                arrow_json.ReadOptions(use_threads=False, block_size=len(piece) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowException as error:
            raise self._broken_line(piece, str(error)) from error
        first = self._n_lines
        self._n_lines += table.num_rows
        with damaged(str(self.path)):
            return self._columns(table.combine_chunks(), first)

    def _broken_line(self, piece: bytes, message: str) -> TraceError:
        for number, line in enumerate(
            (li for li in piece.splitlines() if li.strip()), self._n_lines
        ):
            fault = _fault(line)
            if fault is not None:
                place = self._lines.place(number)
                return TraceError(f"{place}: {fault}; repair the line or record it again.")
        shown = message.splitlines()[0][:100].rstrip(".")
        return TraceError(f"{self.path} is no router trace ({shown}); record it again.")

    def _columns(self, table: pa.Table, first: int) -> Block:
        import pyarrow.compute as pc  # only here: it takes longer to import than all formats

        def refuse(at: np.ndarray, fault: str) -> None:
            if at.any():
                place = self._lines.place(first + int(at.argmax()))
                raise TraceError(f"{place}: {fault}; correct the line or record it again.")

        def numbers(name: str, absent: int | None = None) -> np.ndarray:
            column = table[name].combine_chunks()
            if absent is None:
                refuse(np.asarray(column.is_null()), f"{name} is missing")
            values: np.ndarray = column.fill_null(_ABSENT).to_numpy(zero_copy_only=False)
            low = 0 if absent is None else absent
            largest = _LARGEST_OF.get(name, 1 << 31)
            refuse((values < low) | (values >= largest), f"{name} is out of range")
            return values

        n_tokens, top_k = numbers("num_tokens"), numbers("topk")
        outer = table["top_indices"].combine_chunks()
        refuse(np.asarray(outer.is_null()), "top_indices is missing")
        refuse(
            outer.value_lengths().to_numpy(zero_copy_only=False) != n_tokens,
            "top_indices has another number of tokens than num_tokens says",
        )
        inner = outer.flatten()
        of_record = np.repeat(np.arange(len(n_tokens)), n_tokens)
        lengths = inner.value_lengths().fill_null(_ABSENT).to_numpy(zero_copy_only=False)
        wrong = np.zeros(len(n_tokens), np.bool_)
        wrong[of_record[lengths != top_k[of_record]]] = True
        refuse(wrong, "top_indices has another number of experts than topk says")
        values = inner.flatten()
        refuse(np.full(len(n_tokens), values.null_count > 0), "an expert is null")
        busy = n_tokens > 0
        refuse(busy & (top_k != top_k[busy.argmax()]), "topk is not that of the records before")
        refuse(busy & (top_k == 0), "topk is 0")
        k = int(top_k[busy.argmax()]) if busy.any() else 1
        experts = values.to_numpy(zero_copy_only=False).reshape(-1, k)
        sidecars = [
            self._places(table, refuse, numbers, n_tokens, *names) for names in PLACES.values()
        ]
        places = [np.stack(each, axis=1) for each in zip(*sidecars, strict=True)]
        rank, step, layer = numbers("rank", _ABSENT), numbers("step"), numbers("layer")
        offsets, sizes, widths = places
        forward = np.zeros_like(step)
        block = Block(rank, step, layer, n_tokens, forward, offsets, sizes, widths, experts)
        of_decoder = pc.equal(table["block"].combine_chunks(), _BLOCK).fill_null(True)
        blocks = of_decoder.to_numpy(zero_copy_only=False)
        self.n_left_out += int(np.count_nonzero(~blocks))
        kept = blocks & busy
        return block if kept.all() else block.ordered(np.flatnonzero(kept))

    def _places(
        self, table: pa.Table, refuse: Any, numbers: Any, n_tokens: np.ndarray, *names: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return offsets, sizes and widths of the values of a sidecar."""
        offset_name, size_name, shape_name = names
        offset, size = numbers(offset_name, _ABSENT), numbers(size_name, _ABSENT)
        shape = table[shape_name].combine_chunks()
        n_axes = shape.value_lengths().fill_null(_ABSENT).to_numpy(zero_copy_only=False)
        known = offset >= 0
        refuse(known & (n_axes != 2), f"{shape_name} is no [tokens, values]")
        width = np.full(len(offset), _ABSENT)
        if known.any():
            axes = shape.filter(pa.array(known)).flatten().fill_null(_ABSENT)
            pairs = axes.to_numpy(zero_copy_only=False).reshape(-1, 2)
            width[known] = pairs[:, 1]
            wrong = np.zeros(len(offset), np.bool_)
            wrong[known] = (
                (pairs[:, 0] != n_tokens[known])
                | (pairs[:, 1] < 1)
                | (pairs[:, 1] > 1 << 24)
                | (size[known] != _VALUE_BYTES * n_tokens[known] * pairs[:, 1])
            )
            refuse(wrong, f"{shape_name} and {size_name} do not fit num_tokens")
        return offset, size, width


def _fault(line: bytes) -> str | None:
    """Return what is wrong with a line, or None."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "it is no JSON object"
    if not isinstance(row, Mapping):
        return "it is no JSON object"
    for each in _SCHEMA:
        try:
            pa.array([row.get(each.name)], each.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return f"{each.name} is {json.dumps(row[each.name])[:40]}, where {each.type} is due"
    return None

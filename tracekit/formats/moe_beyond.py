"""Tables of MoE-Beyond: a file for each prompt, its experts layer by layer.

In: CSV files ``Layer ID,Batch Number,Token,Activated Expert IDs`` with a list in quotes in each row, or a
folder of them. Out: one prefill pass for each sequence of each file. The tokens' vectors that some files
have are passed over.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from tracekit.formats.archives import damaged, opened
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source, one_after_another
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.columns import to_numpy
from tracekit.trace.schema import PREFILL

LAYER, BATCH, EXPERTS = "Layer ID", "Batch Number", "Activated Expert IDs"
HEADER = b"Layer ID,Batch Number,Token,Activated Expert IDs"
# A row with the vector of its token has some 20 KiB.
_BLOCK_BYTES = 8 << 20
_LIST = r"^\[ *\d{1,9}( *, *\d{1,9})* *\]$"


@register
class MoeBeyond(Format):
    """Reader of the tables of MoE-Beyond, one prompt a file."""

    name = "moe-beyond"
    summary = "tables of MoE-Beyond, a file or a folder of prompt_N_data.csv"
    told_by = "its header, `Layer ID,Batch Number,Token,Activated Expert IDs`"
    lacks = "generated tokens, weights, the number of experts, sizes"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file has the header."""
        return head.startswith(HEADER)

    def recognises(self, given: Given) -> bool:
        """Say whether every file has the header; of a folder, any file."""
        told = [self.sniff(file.head) for file in given.files]
        return any(told) if given.folder is not None else bool(told) and all(told)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files, those of a folder in the order of their prompts' numbers."""
        files = list(given.files)
        if given.folder is not None:
            files = sorted((file for file in files if self.sniff(file.head)), key=_prompt)
        return one_after_another(given.name, [_source(file.path, options) for file in files])


def _prompt(file: File) -> tuple[int, str]:
    number = re.search(r"\d{1,18}", file.path.name)
    return int(number[0]) if number else -1, str(file.path)


def _source(path: Path, options: ImportOptions) -> Source:
    def chunks() -> Iterator[Routings]:
        blocks = list(_blocks(path))
        if not blocks:
            return
        widths = {experts.shape[1] for _, _, experts in blocks}
        if len(widths) > 1:
            raise TraceError(
                f"{path}: its tokens select {min(widths)} experts and {max(widths)}; a trace has one "
                "number of experts a routing: record it again."
            )
        layer, batch, experts = (np.concatenate(each) for each in zip(*blocks, strict=True))
        yield _routings(path, layer, batch, experts, options.chunk)

    inferred = {"passes": "one prefill pass a prompt"}
    return Source(str(path), chunks(), inferred=inferred)


def _routings(
    path: Path, layer: np.ndarray, batch: np.ndarray, experts: np.ndarray, chunk: int | None
) -> Routings:
    """Return the routings of a file: the tokens of a sequence follow each other at each layer."""
    order = np.lexsort((layer, batch))
    turn = np.unique(batch, return_inverse=True)[1][order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(turn) != 0) | (np.diff(layer[order]) != 0)
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(order)))
    step = np.arange(len(order)) - np.repeat(starts, counts)
    longest = np.zeros(int(turn[-1]) + 1, np.int64)
    np.maximum.at(longest, turn[starts], counts)
    uneven = np.flatnonzero(counts != longest[turn[starts]])
    if len(uneven):
        at = starts[uneven[0]]
        raise TraceError(
            f"{path}: layer {layer[order][at]} has {counts[uneven[0]]} tokens and others of the same "
            "sequence have more; rows are missing: record it again."
        )
    passes = np.zeros_like(step) if chunk is None else step // chunk
    return Routings(
        turn=turn,
        passes=passes,
        phase=np.full(len(order), PREFILL),
        step=step,
        layer=layer[order],
        experts=experts[order],
        locate=lambda row, slot: f"{path}, row {order[row] + 1} after its header",
    )


def _blocks(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield layers, sequences and experts [n, k] of some rows."""
    types = {LAYER: pa.int32(), BATCH: pa.int32(), EXPERTS: pa.string()}
    n_rows = 0
    with opened(path) as file, damaged(str(path)):
        table = arrow_csv.open_csv(
            pa.PythonFile(file, "r"),
            arrow_csv.ReadOptions(block_size=_BLOCK_BYTES),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[]
            ),
        )
        for batch in table:
            if batch.num_rows:
                layer, number = (to_numpy(batch[name], 0) for name in (LAYER, BATCH))
                yield layer, number, _experts(path, batch[EXPERTS], n_rows)
                n_rows += batch.num_rows


def _experts(path: Path, lists: pa.Array, first_row: int) -> np.ndarray:
    """Return the experts of rows, int32 [n, k]."""
    import pyarrow.compute as pc

    wrong = np.flatnonzero(~_bools(pc.match_substring_regex(lists, _LIST)))
    if not len(wrong):
        parts = pc.split_pattern(pc.utf8_trim(lists, "[] "), ",")
        widths = to_numpy(pc.list_value_length(parts), 0)
        wrong = np.flatnonzero(widths != widths[0])
    if len(wrong):
        shown = lists[int(wrong[0])].as_py()[:60]
        raise TraceError(
            f"{path}, row {first_row + wrong[0] + 1} after its header: {shown!r} is no list of as many "
            "experts as others have; correct it or record it again."
        )
    numbers = pc.utf8_trim_whitespace(parts.flatten()).cast(pa.int32())
    return to_numpy(numbers, 0).reshape(len(lists), -1)


def _bools(values: pa.Array) -> np.ndarray:
    return to_numpy(values.cast(pa.uint8()), 0).astype(np.bool_)

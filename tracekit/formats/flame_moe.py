"""FLAME-MoE-Traces: a Parquet file for each layer, with the experts and scores of all tokens.

In: a folder with ``actives/iter_N/layer_N.parquet`` of one checkpoint, or such files. Out: the tokens as one
turn; the files do not say where one text ends and the next begins.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from tracekit.formats.archives import damaged, parquet_file
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source
from tracekit.formats.tokens import Tokens, routings_of
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.columns import to_numpy
from tracekit.trace.schema import PREFILL

COLUMNS = ("indices", "scores")
CHUNK = 2048
_LAYER = re.compile(r"layer_(\d{1,4})\.parquet")


@register
class FlameMoe(Format):
    """Reader of FLAME-MoE-Traces, one checkpoint."""

    name = "flame-moe"
    summary = "FLAME-MoE-Traces, the folder of a checkpoint: actives/iter_N/layer_N.parquet"
    told_by = "Parquet files layer_N.parquet with the columns indices and scores"
    lacks = "texts, passes, the number of experts, sizes"

    def recognises(self, given: Given) -> bool:
        """Say whether there are files of layers; beside them, a folder may have others."""
        files = _layers(given)
        return bool(files) and (given.folder is not None or len(files) == len(given.files))

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the layers of one checkpoint."""
        files = _layers(given)
        folders = {file.path.parent for _, file in files}
        if len(folders) > 1 or len({layer for layer, _ in files}) < len(files):
            raise TraceError(
                f"{given.name} holds {len(folders)} checkpoints; name the folder of one, "
                f"{min(folders)}."
            )
        chunk = options.chunk or CHUNK
        inferred = {"passes": f"prefill passes of {chunk} tokens", "prompts": "all are one text"}
        chunks = _chunks(given, files, chunk)
        return Source(given.name, chunks, slot_order="ranked", inferred=inferred)


def _layers(given: Given) -> list[tuple[int, File]]:
    found = [
        (int(name[1]), file)
        for file in given.files
        if set(COLUMNS) <= set(file.columns) and (name := _LAYER.fullmatch(file.path.name))
    ]
    return sorted(found, key=lambda each: each[0])


def _chunks(given: Given, files: list[tuple[int, File]], chunk: int) -> Iterator[Routings]:
    numbers = np.array([layer for layer, _ in files])
    with ExitStack() as stack, damaged(given.name):
        tables = [stack.enter_context(parquet_file(file.path)) for _, file in files]
        lengths = {table.metadata.num_rows for table in tables}
        if len(lengths) > 1:
            raise TraceError(
                f"{given.name}: its layers have {min(lengths)} and {max(lengths)} tokens; copy them "
                "again."
            )
        batches = [table.iter_batches(chunk, columns=list(COLUMNS)) for table in tables]
        start = 0
        for parts in zip(*batches, strict=True):
            n = min(part.num_rows for part in parts)
            step = np.arange(start, start + n)
            places = np.zeros(n, np.int64), step // chunk, np.full(n, PREFILL), step
            lists = {name: [_list(given, part[name], n) for part in parts] for name in COLUMNS}
            experts, scores = (np.stack(lists[name], axis=1) for name in COLUMNS)
            weights = {"weights": scores.astype(np.float32)}
            yield routings_of(Tokens(*places), numbers, experts, weights, given.name)
            start += n


def _list(given: Given, lists: pa.Array, n: int) -> np.ndarray:
    """Return lists of one length as an array [n, k]."""
    kind = lists.type
    if not (pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type)):
        raise TraceError(
            f"{given.name} holds {kind} where lists of numbers are due; copy it again."
        )
    flat = lists.flatten()
    if flat.null_count or lists.null_count or len(lists) != n or len(flat) % max(n, 1):
        raise TraceError(f"{given.name}: its lists are not all of one length; copy it again.")
    return to_numpy(flat, 0).reshape(n, -1)

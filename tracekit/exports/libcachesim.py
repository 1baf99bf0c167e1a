"""Files that libCacheSim replays: a record for each lookup, in the order in which they happen.

In: a trace. Out: ``oracleGeneral``, whose records know when an object is looked up next, or CSV. Both
hold the lookups as a replay counts them: of each batch every distinct expert once.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tracekit.exports.csv_file import CsvFile
from tracekit.exports.format import ExportFormat, register
from tracekit.exports.lookups import lookups_of, next_lookups, object_ids
from tracekit.trace import Trace, TraceError
from tracekit.trace.columns import to_table

RECORD = np.dtype([("time", "<u4"), ("obj_id", "<u8"), ("obj_size", "<u4"), ("next", "<i8")])
MOST_BYTES = (1 << 32) - 1
UNKNOWN_SIZE = 1
ZSTD_ENDING = ".zst"


class _ForLibCacheSim(ExportFormat):
    """What both files have in common."""

    carries = ("dropped",)

    def notes(self, trace: Trace) -> list[str]:
        """Say what an object's id is, and what its size."""
        notes = [f"The id of an object is layer × {trace.n_expert} + expert; time is the pass."]
        if not _knows_sizes(trace):
            notes.append(
                "The trace does not say how large an expert is, so each object has size 1: give "
                "libCacheSim cache sizes in experts."
            )
        return notes


@register
class OracleGeneral(_ForLibCacheSim):
    """Packed records of 24 bytes that know the next lookup of their object; for Belady too.

    A record is `time` (u32), `obj_id` (u64), `obj_size` (u32) and `next_access_vtime` (i64), little
    endian: the place, counted from 1, of the next record of the same object, or -1.
    """

    name = "oracleGeneral"
    endings = (
        ".oracleGeneral.bin",
        ".oracleGeneral.bin.zst",
        ".oracleGeneral.zst",
        ".oracleGeneral",
    )
    summary = "libCacheSim's binary records, one for each lookup, each with the next of its object"

    def write(self, trace: Trace, file: BinaryIO, path: Path) -> None:
        """Write the records; packed with zstd if the name ends so."""
        sizes = _sizes(trace)
        for layer in np.flatnonzero(sizes > MOST_BYTES).tolist():
            raise TraceError(
                f"An expert of layer {layer} of {trace.name} has {sizes[layer]} bytes, and a record "
                "of oracleGeneral holds sizes below 4 GiB; use --format libcachesim-csv."
            )
        with ExitStack() as stack:
            if path.name.endswith(ZSTD_ENDING):
                # Arrow closes what it compresses into; `file` stays open for the one who gave it.
                own = os.fdopen(os.dup(file.fileno()), "wb")
                file = stack.enter_context(pa.CompressedOutputStream(own, "zstd"))
            for lookups, following in next_lookups(trace):
                records = np.empty(len(lookups), RECORD)
                records["time"] = lookups.passes
                records["obj_id"] = object_ids(lookups, trace)
                records["obj_size"] = sizes[lookups.layer]
                records["next"] = np.where(following < 0, -1, following + 1)
                file.write(records.tobytes())


@register
class LibCacheSimCsv(_ForLibCacheSim):
    """A line ``time,obj_id,obj_size`` for each lookup; not for Belady, which CSV cannot tell of."""

    name = "libcachesim-csv"
    summary = "a line time,obj_id,obj_size for each lookup, for libCacheSim's CSV reader"

    def write(self, trace: Trace, file: BinaryIO, path: Path) -> None:
        """Write the lines."""
        sizes = _sizes(trace)
        schema = pa.schema([(name, pa.int64()) for name in ("time", "obj_id", "obj_size")])
        with CsvFile(file, schema) as table:
            for lookups in lookups_of(trace):
                columns = (lookups.passes, object_ids(lookups, trace), sizes[lookups.layer])
                values = dict(zip(schema.names, columns, strict=True))
                table.write(to_table(values, schema, len(lookups)))

    def notes(self, trace: Trace) -> list[str]:
        """Warn of Belady, too."""
        return [
            *super().notes(trace),
            "libCacheSim's Belady runs on CSV and gives wrong figures, since a line does not say "
            "when its object comes next; use oracleGeneral for Belady.",
        ]


def _knows_sizes(trace: Trace) -> bool:
    return bool((trace.layer_columns["expert_bytes"] >= 0).any())


def _sizes(trace: Trace) -> np.ndarray:
    """Return the bytes of an expert by the number of its layer, int64; 1 if no size is known.

    Raises
    ------
    TraceError
        Only some of the layers have a size.
    """
    sizes = np.full(trace.n_layer, UNKNOWN_SIZE, np.int64)
    if _knows_sizes(trace):
        sizes[trace.moe_layers] = trace.expert_bytes
    return sizes

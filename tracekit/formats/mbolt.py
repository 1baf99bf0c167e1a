"""Binary routing logs of mbolt (``MBOLT_TRACE``): a header, then a record for each call of a layer.

In: 32-bit integers: a magic number, version 1, the number of experts; then records layer, k, number of
tokens and the experts of each token. Out: the run.
"""

import struct

from tracekit.formats.engine_passes import PassReader
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.records import Records
from tracekit.formats.source import Source, one_after_another
from tracekit.trace import TraceError

MAGIC = b"MBLT"
VERSION = 1
_HEADER = struct.Struct("<4sii")


@register
class Mbolt(Format):
    """Reader of the binary logs of mbolt."""

    name = "mbolt"
    summary = "binary routing logs of mbolt (MBOLT_TRACE)"
    told_by = "its first bytes, `MBLT`"
    lacks = "which passes are of a prompt, weights, sizes"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file begins with the magic number."""
        return head.startswith(MAGIC)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        return one_after_another(given.name, [_source(file) for file in given.files])


def _source(file: File) -> Source:
    if len(file.head) < _HEADER.size:
        raise TraceError(f"{file.path} is cut off in its header; record it again.")
    _, version, n_expert = _HEADER.unpack_from(file.head)
    if version != VERSION:
        raise TraceError(
            f"{file.path} is of version {version}, but tracekit reads version {VERSION} of mbolt's "
            "logs; upgrade tracekit."
        )
    records = Records(file.path, ("layer", "k", "n_tokens"), _HEADER.size)
    source = Source(str(file.path), (), model={"n_expert": n_expert}, slot_order="ranked")
    source.chunks = PassReader(source, records.place).chunks(records.rows(source))
    return source

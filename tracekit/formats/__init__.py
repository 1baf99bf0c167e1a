"""Which files can be read as a trace? Traces of other tools, one file a format, told apart by content.

To add a format, write a file beside this one with a class derived from `Format` and decorated with
``@register``, and add a line for it below. ``tests/format_samples.py`` needs a small sample of it;
``tests/test_formats_conformance.py`` then tests it like every other format.
"""

from tracekit.formats.base import read_bytes
from tracekit.formats.counts import COUNTS, ExpertCounts, as_trace_or_counts, open_counts
from tracekit.formats.format import FORMATS, Format, register
from tracekit.formats.opening import as_trace, import_any, open_any
from tracekit.formats.options import ImportOptions, ModelSizes

# One line for each format: its import registers it. The first that recognises a file reads it, so
# those that anybody's file may resemble stand last.
from tracekit.formats import route_trace as route_trace  # isort: skip
from tracekit.formats import graph_order as graph_order  # isort: skip
from tracekit.formats import universal_arrays as universal_arrays  # isort: skip
from tracekit.formats import universal_jsonl as universal_jsonl  # isort: skip
from tracekit.formats import universal_tables as universal_tables  # isort: skip

__all__ = [
    "COUNTS",
    "FORMATS",
    "ExpertCounts",
    "Format",
    "ImportOptions",
    "ModelSizes",
    "as_trace",
    "as_trace_or_counts",
    "import_any",
    "open_any",
    "open_counts",
    "read_bytes",
    "register",
]

"""Which files can be read as a trace? Traces of other tools, one file a format, told apart by content.

To add a format, write a file beside this one with a class derived from `Format` and decorated with
``@register``, and add a line for it below. ``tests/format_samples.py`` needs a small sample of it;
``tests/test_formats_conformance.py`` then tests it like every other format.
"""

from tracekit.formats.base import FORMATS, Format, read_bytes, register
from tracekit.formats.opening import as_trace, open_any

# One line for each format: its import registers it.
from tracekit.formats import route_trace as route_trace  # isort: skip

__all__ = ["FORMATS", "Format", "as_trace", "open_any", "read_bytes", "register"]

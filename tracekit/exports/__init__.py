"""As which files can a trace be written? For other tools, one file a format.

To add a format, write a file beside this one with a class derived from `ExportFormat` and decorated
with ``@register``, and add a line for it below.
"""

from tracekit.exports.export import Exported, export, format_of
from tracekit.exports.format import EXPORTS, ExportFormat, register

# One line for each format: its import registers it.
from tracekit.exports import tables as tables  # isort: skip
from tracekit.exports import arrays as arrays  # isort: skip
from tracekit.exports import libcachesim as libcachesim  # isort: skip

__all__ = [
    "EXPORTS",
    "ExportFormat",
    "Exported",
    "export",
    "format_of",
    "register",
]

"""Which files can be read as counts? How often each expert was used, and nothing more, one file a format.

Such a file is no trace: it does not say in which order the experts were used. To add a format, write
a file beside this one with a class derived from `CountsFormat` and decorated with ``@register``, and add
a line for it below. ``tests/counts_samples.py`` needs a small sample of it.
"""

from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.formats.counts.format import COUNTS, CountsFormat, register
from tracekit.formats.counts.opening import as_trace_or_counts, counts_format_of, open_counts

# One line for each format: its import registers it.
from tracekit.formats.counts import imatrix as imatrix  # isort: skip
from tracekit.formats.counts import sglang_csv as sglang_csv  # isort: skip
from tracekit.formats.counts import tensorrt_llm as tensorrt_llm  # isort: skip
from tracekit.formats.counts import coli_usage as coli_usage  # isort: skip
from tracekit.formats.counts import load_arrays as load_arrays  # isort: skip

__all__ = [
    "COUNTS",
    "CountsFormat",
    "ExpertCounts",
    "as_trace_or_counts",
    "counts_format_of",
    "open_counts",
    "register",
]

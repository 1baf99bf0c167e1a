"""All formats of counts that can be read: one line for each, whose import registers it."""

from tracekit.formats.counts.format import COUNTS as COUNTS
from tracekit.formats.counts.format import CountsFormat
from tracekit.formats.given import Given

# isort: off
from tracekit.formats.counts import imatrix as imatrix
from tracekit.formats.counts import sglang_recorder as sglang_recorder
from tracekit.formats.counts import sglang_csv as sglang_csv
from tracekit.formats.counts import tensorrt_llm as tensorrt_llm
from tracekit.formats.counts import coli_usage as coli_usage
from tracekit.formats.counts import load_arrays as load_arrays
# isort: on

COUNTS.arrange(globals())


def counts_format_of(given: Given) -> CountsFormat | None:
    """Return the format of counts that recognises files; None if none does."""
    return next((each for each in (cls() for cls in COUNTS) if each.recognises(given)), None)

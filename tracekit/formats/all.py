"""All formats that can be read: one line for each, whose import registers it.

Pages and `tracekit formats` list them in the order of these lines.
"""

from tracekit.formats.format import FORMATS as FORMATS

# isort: off
from tracekit.formats import route_trace as route_trace
from tracekit.formats import graph_order as graph_order
from tracekit.formats import universal_arrays as universal_arrays
from tracekit.formats import universal_jsonl as universal_jsonl
from tracekit.formats import universal_tables as universal_tables
# isort: on

"""One small valid file of every format, by the format's name; `test_formats_conformance` needs it.

A sample has a prompt and several decoded tokens at two or more layers, in the order of a trace, and the
sizes of the experts.
"""

import route_trace_files

SAMPLES: dict[str, bytes] = {
    "route_trace": route_trace_files.text(
        route_trace_files.turn(0) + route_trace_files.turn(1, decoded=3)
    ).encode(),
}

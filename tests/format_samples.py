"""One small valid file of every format, by the format's name; `test_formats_conformance` needs it.

A sample has a prompt and several decoded tokens at two or more layers, in the order of a trace, and the
sizes of the experts.
"""

import json
from collections.abc import Iterable

import route_trace_files


def json_lines(objects: Iterable[object]) -> bytes:
    """Return one line of JSON for each object."""
    return "".join(f"{json.dumps(each)}\n" for each in objects).encode()


SAMPLES: dict[str, bytes] = {
    "route_trace": route_trace_files.text(
        route_trace_files.turn(0) + route_trace_files.turn(1, decoded=3)
    ).encode(),
}

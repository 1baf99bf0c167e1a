"""What a trace is: its schema, reader, writer, validation, description, digest; synthetic traces.

Names are imported when they are first used: the command line needs the errors at its start, but
pyarrow only later.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.trace.errors import TraceError, TracekitError, UsageError

if TYPE_CHECKING:
    from tracekit.trace.description import describe, provenance
    from tracekit.trace.facts import EngineFacts, ModelFacts, TraceFacts
    from tracekit.trace.reader import Trace
    from tracekit.trace.synthetic import synthesize
    from tracekit.trace.writer import TraceWriter, write_trace

_MODULES = {
    "EngineFacts": "facts",
    "ModelFacts": "facts",
    "Trace": "reader",
    "TraceFacts": "facts",
    "TraceWriter": "writer",
    "describe": "description",
    "provenance": "description",
    "synthesize": "synthetic",
    "write_trace": "writer",
}

__all__ = [
    "EngineFacts",
    "ModelFacts",
    "Trace",
    "TraceError",
    "TraceFacts",
    "TraceWriter",
    "TracekitError",
    "UsageError",
    "describe",
    "provenance",
    "synthesize",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

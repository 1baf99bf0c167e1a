"""What a trace is: schema, reader, writer, validation, provenance, synthetic traces."""

from tracekit.trace.errors import TraceError, TracekitError, UsageError
from tracekit.trace.facts import EngineFacts, ModelFacts, TraceFacts
from tracekit.trace.reader import Trace

__all__ = [
    "EngineFacts",
    "ModelFacts",
    "Trace",
    "TraceError",
    "TraceFacts",
    "TracekitError",
    "UsageError",
]

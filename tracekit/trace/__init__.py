"""What a trace is: schema, reader, writer, validation, provenance, synthetic traces."""

from tracekit.trace.errors import TraceError, TracekitError, UsageError
from tracekit.trace.facts import EngineFacts, ModelFacts, TraceFacts
from tracekit.trace.reader import Trace
from tracekit.trace.synthetic import synthesize
from tracekit.trace.writer import TraceWriter, write_trace

__all__ = [
    "EngineFacts",
    "ModelFacts",
    "Trace",
    "TraceError",
    "TraceFacts",
    "TraceWriter",
    "TracekitError",
    "UsageError",
    "synthesize",
    "write_trace",
]

"""What would a cache have hit and read? Replay of a trace through cache policies."""

from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.batches import build_batches
from tracekit.replaying.inputs import inputs_of
from tracekit.replaying.prepare import DEFAULT_POLICIES
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.run import replay

__all__ = ["DEFAULT_POLICIES", "ReplayResult", "build_batches", "inputs_of", "replay", "simulate"]

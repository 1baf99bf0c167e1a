"""Replay of a trace through cache policies: batches, accounting, results."""

from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.batches import build_batches
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.run import DEFAULT_POLICIES, inputs_of, replay

__all__ = ["DEFAULT_POLICIES", "ReplayResult", "build_batches", "inputs_of", "replay", "simulate"]

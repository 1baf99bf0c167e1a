"""Replay of a trace through cache policies: batches, accounting, results."""

from tracekit.replay.batches import build_batches
from tracekit.replay.result import ReplayResult
from tracekit.replay.run import DEFAULT_POLICIES, inputs_of, replay
from tracekit.replay.trust import simulate

__all__ = ["DEFAULT_POLICIES", "ReplayResult", "build_batches", "inputs_of", "replay", "simulate"]

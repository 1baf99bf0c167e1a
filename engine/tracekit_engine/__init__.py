"""A lean streaming engine that records: llama.cpp computes, this watches the router and reads.

It runs where memory is short, so it needs numpy, pyarrow, gguf and llama-cpp-python only.

>>> import engine
>>> tracekit.record("model.gguf", ["Once upon a time"], "first.trace")
"""

import os

# Arrow's own pools keep what was freed; it asks for this once, when it is first imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from tracekit_engine.hook import Capture
from tracekit_engine.options import Options, Streaming
from tracekit_engine.prompts import Prompt
from tracekit_engine.recorder import Generation, Progress, Recording, record
from tracekit_engine.sampling import Sampling
from tracekit_engine.session import Pass, Session

__all__ = [
    "Capture",
    "Generation",
    "Options",
    "Pass",
    "Progress",
    "Prompt",
    "Recording",
    "Sampling",
    "Session",
    "Streaming",
    "record",
]

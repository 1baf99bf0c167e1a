"""A lean streaming engine that records: llama.cpp computes, this watches the router and reads.

It runs where memory is short, so it needs numpy, pyarrow, gguf and llama-cpp-python only.

>>> import engine
>>> engine.record("model.gguf", ["Once upon a time"], "first.trace")
"""

import os

# Arrow's own pools keep what was freed; it asks for this once, when it is first imported.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from engine.hook import Capture
from engine.options import Options, Streaming
from engine.prompts import Prompt
from engine.recorder import Generation, Progress, Recording, record
from engine.sampling import Sampling
from engine.session import Pass, Session

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

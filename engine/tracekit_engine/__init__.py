"""How does a model route its tokens? A lean streaming engine runs it and records that.

llama.cpp computes. This package watches the router, reads experts on demand and writes a trace. It
runs where memory is short, so it needs numpy, pyarrow, gguf and llama-cpp-python only, and knows
nothing of replays. Users reach it as ``tracekit.record``, ``tracekit.Session`` and
``tracekit.engine``.

>>> import tracekit
>>> tracekit.record("model.gguf", ["Once upon a time"], "first.trace")
"""

import os

# Arrow's own memory pools keep what was freed. Arrow reads this setting once, when it is first
# imported, so it is set before any import that may bring Arrow along.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from tracekit_engine.generation import Generation
from tracekit_engine.hook import Capture
from tracekit_engine.options import Options, Streaming
from tracekit_engine.passes import Pass
from tracekit_engine.prompts import Prompt
from tracekit_engine.recorder import Progress, Recording, record
from tracekit_engine.sampling import Sampling
from tracekit_engine.session import Session

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

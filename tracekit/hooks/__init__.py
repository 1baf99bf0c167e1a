"""How does a model of the transformers library route its tokens? Hooks on its routers record that.

The model runs as it always does, in torch; this package only listens. It needs torch, and for
`record_transformers` transformers: ``pip install 'tracekit[hf]'``. Nothing here is imported before it is
used.

>>> import tracekit
>>> with tracekit.recording(model, "run.trace"):
...     model.generate(**inputs, max_new_tokens=64)
"""

from tracekit.hooks.generate import record_transformers
from tracekit.hooks.record import Recorded, recording

__all__ = ["Recorded", "record_transformers", "recording"]

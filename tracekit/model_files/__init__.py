"""What does a model's own file say? GGUF, safetensors and ``config.json``, one file a kind.

In: the path of a file or a folder. Out: sizes of experts, facts of the model, its routers. Headers
are read, and of the weights only routers, their biases and the norms before them.
"""

from tracekit.model_files.opening import read_model
from tracekit.model_files.sizes import ModelSizes

__all__ = ["ModelSizes", "read_model"]

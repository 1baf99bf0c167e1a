"""A digest of what a trace says: the same for a file and for the trace imported from it.

In: the model's facts, the sizes of the layers, the columns of the routings. Out: hex digits.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import numpy as np

from tracekit.trace.facts import ModelFacts

COLUMNS = (
    "turn",
    "pass",
    "phase",
    "step",
    "layer",
    "experts",
    "weights",
    "residency",
    "dropped",
)


def digest(
    model: ModelFacts,
    layers: Mapping[str, np.ndarray],
    blocks: Callable[[str], Iterable[np.ndarray]],
) -> str:
    """Return the sha256, as hex digits, of the routings and of the sizes of the experts.

    Logits, gate inputs and router matrices are left out: they can be larger than memory.

    Parameters
    ----------
    model : ModelFacts
    layers : mapping
        `layer` and `expert_bytes` of the layers, each [n].
    blocks : callable
        Returns the blocks, one after the other, of one of `COLUMNS` of the routings: [rows] or
        [rows, k].
    """
    sha = _of_sizes(model, layers)
    # Hashing takes about as long as reading; a thread does it meanwhile.
    with ThreadPoolExecutor(1, "tracekit-digest") as executor:
        hashed: Future[None] | None = None
        for values in chain.from_iterable(map(blocks, COLUMNS)):
            if hashed is not None:
                hashed.result()
            hashed = executor.submit(_hash, sha, values)
    return sha.hexdigest()


def _hash(sha: "hashlib._Hash", values: np.ndarray) -> None:
    if values.dtype.kind == "f" and (unknown := np.isnan(values)).any():
        values = np.where(unknown, np.float32(np.nan), values)
    sha.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)


def sizes_digest(model: ModelFacts, layers: Mapping[str, np.ndarray]) -> str:
    """Return the sha256, as hex digits, of the sizes alone: what `digest` begins with."""
    return _of_sizes(model, layers).hexdigest()


def _of_sizes(model: ModelFacts, layers: Mapping[str, np.ndarray]) -> "hashlib._Hash":
    sha = hashlib.sha256()
    sha.update(json.dumps([model.n_layer, model.n_expert, model.top_k]).encode())
    order = np.argsort(layers["layer"])
    for name, dtype in (("layer", "<i2"), ("expert_bytes", "<i8")):
        sha.update(layers[name][order].astype(dtype).tobytes())
    return sha

"""A digest of what a trace says, independent of the file format that says it."""

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracekit.trace.reader import Trace

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


def digest(trace: "Trace") -> str:
    """Return the sha256, as hex digits, of the routings and of the sizes of the experts.

    A file and the trace imported from it have one digest, whatever their encoding. Logits, gate
    inputs and router matrices are left out: they can be larger than memory.
    """
    model = trace.facts.model
    known = trace.layer_columns
    sha = hashlib.sha256()
    sha.update(json.dumps([model.n_layer, model.n_expert, model.top_k]).encode())
    order = np.argsort(known["layer"])
    for name, dtype in (("layer", "<i2"), ("expert_bytes", "<i8")):
        sha.update(known[name][order].astype(dtype).tobytes())
    for name in COLUMNS:
        values = trace.routing([name])[name]
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.float32(np.nan), values)
        sha.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
    return sha.hexdigest()

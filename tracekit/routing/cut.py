"""The pass in which an incomplete recording ends: it may lack routings of its last layers.

In: a trace. Out: the number of that pass. A grid of tokens and layers has no place for it, and a
predictor is not asked about it; a cache saw it as far as it goes.
"""

from typing import TYPE_CHECKING

import numpy as np

from tracekit.trace.schema import DECODE

if TYPE_CHECKING:
    from tracekit.trace import Trace


def cut_pass(trace: "Trace") -> int | None:
    """Return the last pass, if it is a decode pass that lacks routings; None if it is whole."""
    if trace.complete or not trace.n_rows:
        return None
    passes = trace.passes
    if passes.phase[-1] != DECODE:
        return None
    n_layers, n_tokens = len(trace.moe_layers), passes.n_in_last_layer[-1]
    is_whole = (
        passes.last_layer[-1] == passes.layers[-1] and passes.n_of_pass[-1] == n_tokens * n_layers
    )
    return None if is_whole else int(passes.number[-1])


def whole_decode_rows(trace: "Trace") -> np.ndarray:
    """Return the rows of the decode routings without those of `cut_pass`, int64 [n]."""
    rows = trace.routing(["pass", "phase"])
    decode = rows["phase"] == DECODE
    cut = cut_pass(trace)
    return np.flatnonzero(decode if cut is None else decode & (rows["pass"] != cut))

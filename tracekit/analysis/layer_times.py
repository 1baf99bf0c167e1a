"""How long each layer took: waiting for its experts, and computing."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.formats import as_trace
from tracekit.trace import Trace
from tracekit.trace.errors import MissingDataError
from tracekit.trace.schema import DECODE, LAYER_TIMES


def layer_times(trace: Trace | str | Path) -> pd.DataFrame:
    """Mean time of each MoE layer in a decode pass.

    A layer *waits* from the moment when its experts are selected until all of them are in memory:
    that is evicting and reading. It *computes* from then until the next layer has selected its experts,
    so that the next layer's attention is part of it. A model that stays in memory has no waiting.

    Parameters
    ----------
    trace : Trace, str or Path

    Returns
    -------
    DataFrame
        One row for each MoE layer: ``layer``, ``wait_ms`` and ``compute_ms`` (means over the decode
        passes that carry them; NaN: none does), ``passes`` (how many have ``compute_ms``).

    Raises
    ------
    MissingDataError
        The trace does not carry the times of layers.
    """
    trace = as_trace(trace)
    n_ids = int(trace.moe_layers.max(initial=0)) + 1
    total, known = (np.zeros((len(LAYER_TIMES), n_ids)) for _ in range(2))
    columns = ["layer", *(name for name in LAYER_TIMES if trace.has(name))]
    for block in trace.iter_routing(columns, DECODE) if len(columns) > 1 else ():
        for of_time, name in enumerate(LAYER_TIMES):
            if name in block:
                is_known = ~np.isnan(block[name])
                layer, ms = block["layer"][is_known], block[name][is_known]
                total[of_time] += np.bincount(layer, ms, n_ids)
                known[of_time] += np.bincount(layer, minlength=n_ids)
    if not known.any():
        raise MissingDataError(
            f"{trace.name} does not carry how long its layers took; `tracekit record` writes that."
        )
    with np.errstate(invalid="ignore"):
        means = dict(zip(LAYER_TIMES, (total / known)[:, trace.moe_layers], strict=True))
    passes = known[LAYER_TIMES.index("compute_ms"), trace.moe_layers].astype(np.int64)
    return pd.DataFrame({"layer": trace.moe_layers, **means, "passes": passes})

"""How many bytes of experts a run touches, from its start and in any window of tokens."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.analysis.gaps import TokenGaps
from tracekit.formats import as_trace
from tracekit.routing.blocks import decode_blocks
from tracekit.routing.grid import no_decoded_token
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE

START, WINDOW = "since the start", "in a window"


def working_set(trace: Trace | str | Path) -> pd.DataFrame:
    """Distinct experts touched since the start of the trace, and by w consecutive decoded tokens.

    The second is Denning's working set (P. J. Denning, "The working set model for program
    behavior", CACM 11(5), 1968) averaged over every window that lies in the run, turns following
    each other as they do for a cache. A window of one token touches the token cycle.

    Returns
    -------
    DataFrame
        ``span`` (`START` or `WINDOW`), ``tokens`` (tokens decoded so far, one row after every
        pass, prefills included; or the width of the window, 1 to the number of decoded tokens),
        ``distinct_experts``, ``distinct_bytes`` (means for a window), ``token_cycle_bytes``,
        ``bank_bytes`` (all experts of all MoE layers).

    Raises
    ------
    TraceError
        The trace holds no decoded token, or a layer's expert size is missing.
    """
    trace = as_trace(trace)
    in_windows = _in_windows(trace)  # it says what a trace without a decoded token lacks
    frame = pd.concat([_since_start(trace), in_windows], ignore_index=True)
    return frame.assign(token_cycle_bytes=trace.token_cycle_bytes, bank_bytes=trace.bank_bytes)


def _since_start(trace: Trace) -> pd.DataFrame:
    n_expert, expert_bytes = trace.n_expert, trace.expert_bytes
    never = np.iinfo(np.int64).max
    first_pass = np.full(len(expert_bytes) * n_expert, never)
    phases: list[np.ndarray] = []
    n_passes, latest = 0, -1
    for rows in trace.iter_routing(["pass", "phase", "layer", "experts"]):
        begins = np.diff(rows["pass"], prepend=latest) != 0
        place = n_passes - 1 + np.cumsum(begins)
        phases.append(rows["phase"][begins])
        n_passes, latest = int(place[-1]) + 1, int(rows["pass"][-1])
        keys = (
            np.searchsorted(trace.moe_layers, rows["layer"])[:, None] * n_expert + rows["experts"]
        )
        is_new = first_pass[keys] == never
        np.minimum.at(first_pass, keys[is_new], place[np.nonzero(is_new)[0]])

    used = np.flatnonzero(first_pass < never)
    new_experts = np.bincount(first_pass[used], minlength=n_passes)
    new_bytes = np.zeros(n_passes, np.int64)
    np.add.at(new_bytes, first_pass[used], expert_bytes[used // n_expert])
    return pd.DataFrame(
        {
            "span": START,
            "tokens": np.cumsum(np.concatenate(phases) == DECODE),
            "distinct_experts": np.cumsum(new_experts),
            "distinct_bytes": np.cumsum(new_bytes),
        }
    )


# An expert is absent from a window iff the window fits between two of its uses, so the mean over
# all windows follows from the lengths of the idle stretches alone: a stretch of n tokens holds
# max(0, n - w + 1) windows of w. Linear in the trace, for all w at once.
def _in_windows(trace: Trace) -> pd.DataFrame:
    sizes, group = np.unique(trace.expert_bytes, return_inverse=True)
    gaps = TokenGaps(group, trace.n_expert)
    for block in decode_blocks(trace):
        gaps.add(block.experts)
    if not gaps.n_tokens:
        raise no_decoded_token(trace)
    n_tokens = gaps.n_tokens
    window = np.arange(1, n_tokens + 1)
    n_distinct, n_bytes = np.zeros(n_tokens), np.zeros(n_tokens)
    n_of_size = np.bincount(group) * trace.n_expert
    for idle, size, number in zip(gaps.idle_stretches(), sizes, n_of_size, strict=True):
        # Σ over n of idle[n] · max(0, n - w + 1), for every w: the tail summed twice.
        absent = np.cumsum(np.cumsum(idle[::-1]))[::-1][1:]
        present = number - absent / (n_tokens - window + 1)
        n_distinct += present
        n_bytes += size * present
    return pd.DataFrame(
        {
            "span": WINDOW,
            "tokens": window,
            "distinct_experts": n_distinct,
            "distinct_bytes": n_bytes,
        }
    )

"""How much memory a replay in memory takes, and how much there is."""

import os
from pathlib import Path

from tracekit.trace import Trace
from tracekit.trace.schema import ROUTING_FILE

# Of one slot of a routing: its lookup, as `Batches` and the kernels hold it, and its column.
BYTES_A_SLOT = 30
# A trace that would take more than this share of the memory is replayed from disk.
MOST_OF_MEMORY = 0.25

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def bytes_in_memory(trace: Trace) -> int:
    """Return about how many bytes a replay of `trace` takes that holds it in memory."""
    return BYTES_A_SLOT * trace.n_rows * trace.top_k


def is_large(trace: Trace) -> bool:
    """Say whether `trace` is better replayed from disk on this machine."""
    return (
        not trace.rows(ROUTING_FILE).in_memory
        and bytes_in_memory(trace) > MOST_OF_MEMORY * memory_bytes()
    )


def memory_bytes() -> int:
    """Return the memory of the machine, or of the container where that is limited."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # where there is no sysconf, or it does not know
        return 8 << 30
    for path in _LIMITS:
        try:
            found = min(found, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return found

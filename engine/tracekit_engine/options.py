"""How a session loads, evaluates and streams."""

import os
from dataclasses import dataclass, field

from tracekit.trace.errors import UsageError
from tracekit_engine.hook import Capture

MOST_CTX = 1 << 24
MOST_THREADS = 1024
MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Streaming:
    """How experts are streamed.

    Attributes
    ----------
    cache_bytes : int or None
        Budget of the expert cache; None takes four fifths of the memory available once
        everything else is loaded, at most all experts.
    lanes : int
        Reads in flight at a time.
    direct_io : bool
        Read past the page cache.
    """

    cache_bytes: int | None = None
    lanes: int = 4
    direct_io: bool = False

    def __post_init__(self) -> None:
        if self.cache_bytes is not None and not 0 <= self.cache_bytes <= MOST_BYTES:
            raise UsageError(f"A cache of {self.cache_bytes} bytes cannot be; give 0 to 2^62.")
        if not 1 <= self.lanes <= MOST_THREADS:
            raise UsageError(f"{self.lanes} I/O threads cannot be; give 1 to {MOST_THREADS}.")


@dataclass(frozen=True)
class Options:
    """How a session loads and evaluates.

    Attributes
    ----------
    n_ctx : int
        Context length in tokens.
    threads : int or None
        Compute threads; None takes all cores but one, which is left to reading and writing.
    n_expert_used : int or None
    chunk : int or None
        Most tokens of a prompt evaluated in one pass; None takes 512, less where a pass would
        hold more than 16 MiB of captured gate inputs and logits. A longer chunk reads each expert
        less often while streaming, and takes more memory. While streaming it is never more tokens
        than whose experts of one layer fit the budget, whatever they select. Runs agree to the bit
        at the same chunk; at another, sums over a prompt may be rounded in another order.
    streaming : Streaming or None
        None keeps all experts resident.
    """

    n_ctx: int = 2048
    threads: int | None = None
    n_expert_used: int | None = None
    chunk: int | None = None
    streaming: Streaming | None = None
    capture: Capture = field(default_factory=Capture)

    def __post_init__(self) -> None:
        for name, most in (("n_ctx", MOST_CTX), ("threads", MOST_THREADS), ("chunk", MOST_CTX)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise UsageError(f"{name.replace('_', ' ')} {value} cannot be; give 1 to {most}.")

    @property
    def compute_threads(self) -> int:
        """`threads`, or what stands in for None."""
        return self.threads or max(1, available_cores() - 1)


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""How a session loads a model, evaluates tokens and streams experts, as a user asks for it."""

import os
from dataclasses import dataclass, field

from tracekit.trace.errors import UsageError
from tracekit_engine.hook import Capture

MOST_CTX = 1 << 24
MOST_THREADS = 1024
MOST_CACHE_BYTES = 1 << 62


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
        if self.cache_bytes is not None and not 0 <= self.cache_bytes <= MOST_CACHE_BYTES:
            raise UsageError(f"A cache takes 0 to 2^62 bytes, not {self.cache_bytes}.")
        _check_range("--io-threads", self.lanes, MOST_THREADS)


@dataclass(frozen=True)
class Options:
    """How a session loads a model and evaluates tokens.

    Attributes
    ----------
    n_ctx : int
        Context length in tokens.
    threads : int or None
        Compute threads; None takes all cores but one, which is left to reading and writing.
    n_expert_used : int or None
        Experts that a token selects; None takes the model's own number.
    chunk : int or None
        The most tokens of a prompt that are evaluated in one pass. None takes 512, or fewer if a
        pass would hold more than 16 MiB of captured gate inputs and logits. A longer chunk reads
        each expert less often while streaming, and takes more memory. While streaming, a chunk has
        no more tokens than can have their experts of one layer in the budget, whatever they select.
        Two runs agree to the bit if they have the same chunk; with another one, sums over a prompt
        may be rounded in another order.
    n_outputs : int
        The most tokens of a pass whose logits are wanted; more than 1 to verify drafted tokens.
    streaming : Streaming or None
        None keeps all experts resident.
    capture : Capture
        What is copied out of every pass.
    """

    n_ctx: int = 2048
    threads: int | None = None
    n_expert_used: int | None = None
    chunk: int | None = None
    n_outputs: int = 1
    streaming: Streaming | None = None
    capture: Capture = field(default_factory=Capture)

    def __post_init__(self) -> None:
        _check_range("--ctx", self.n_ctx, MOST_CTX)
        if self.threads is not None:
            _check_range("--threads", self.threads, MOST_THREADS)
        if self.chunk is not None:
            _check_range("--chunk", self.chunk, MOST_CTX)
        _check_range("n_outputs", self.n_outputs, MOST_CTX)

    @property
    def compute_threads(self) -> int:
        """Compute threads, with None replaced by a number."""
        return self.threads or max(1, available_cores() - 1)


def _check_range(option: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{option} takes a whole number from 1 to {most}, not {value}.")


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

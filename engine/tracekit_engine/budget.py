"""What fits where: the expert cache into memory, a chunk of a prompt into the cache.

Everything follows from a model's file and the options; no model is loaded here.
"""

from tracekit import meter
from tracekit.figures import MIB
from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine.model_file import ModelFile
from tracekit_engine.options import Options

CHUNK = 512
CAPTURE_BYTES = 16 * MIB  # gate inputs and logits of a pass; writing them takes several times that
AUTO_SHARE = 0.8  # of the memory available once everything else is loaded


def bank_bytes(file: ModelFile) -> int:
    """Return the bytes of all experts of all layers."""
    return file.n_expert * sum(file.expert_bytes.values())


def check_given_budget(file: ModelFile, options: Options) -> None:
    """Raise UsageError if the options give a budget that `check_budget` refuses."""
    if options.streaming is not None and options.streaming.cache_bytes is not None:
        check_budget(file, options.streaming.cache_bytes, options)


def check_budget(file: ModelFile, budget: int, options: Options) -> None:
    """Raise UsageError if `budget` bytes do not hold one token's experts of one layer."""
    top_k = options.n_expert_used or file.top_k
    least = top_k * max(file.expert_bytes.values())
    if budget < least:
        raise UsageError(
            f"A cache of {budget / MIB:.2f} MiB is too small: one token's {top_k} experts of one "
            f"layer take {least / MIB:.2f} MiB; give --cache-mib {-(-least // MIB)} or more."
        )


def tokens_that_fit(file: ModelFile, budget: int, options: Options) -> int:
    """Return how many tokens' experts of one layer fit the budget, whatever the tokens select."""
    largest = max(file.expert_bytes.values())
    if file.n_expert * largest <= budget:
        return options.n_ctx
    return max(1, budget // ((options.n_expert_used or max(1, file.top_k)) * largest))


def automatic_budget(file: ModelFile, options: Options) -> int:
    """Return four fifths of the memory available, in whole MiB, at most all experts.

    Raises
    ------
    UsageError
        That does not hold one token's experts of one layer.
    """
    budget = int(available_memory() * AUTO_SHARE)
    budget = min(budget - budget % MIB, bank_bytes(file))
    check_budget(file, budget, options)
    return budget


def largest_chunk(file: ModelFile, options: Options) -> int:
    """Return the most tokens of a prompt that are evaluated in one pass."""
    if options.chunk is not None:
        chunk = options.chunk
    else:
        row_bytes = max(1, options.capture.row_bytes(file.n_expert, file.n_embd))
        token_bytes = row_bytes * len(file.expert_tensors)
        chunk = min(CHUNK, max(1, CAPTURE_BYTES // token_bytes))
    if options.streaming is not None and options.streaming.cache_bytes is not None:
        chunk = min(chunk, tokens_that_fit(file, options.streaming.cache_bytes, options))
    return min(chunk, options.n_ctx)


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping, as the kernel estimates them.

    Raises
    ------
    TracekitError
        The kernel gives no estimate.
    """
    available = meter.available_bytes()
    if available is None:
        raise TracekitError("The kernel does not say how much memory is free; give --cache-mib.")
    return available

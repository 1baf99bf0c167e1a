"""llama.cpp's contexts: how one is made, and with how many experts per token one can be made.

A loaded model goes in; the address of a context comes out, which the caller frees.
"""

import bisect
import ctypes
from typing import Any

from tracekit.trace.errors import TracekitError
from tracekit_engine import binding
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile
from tracekit_engine.options import Options


def make_context(
    model: Model, options: Options, chunk: int, callback: "ctypes._CFunctionType"
) -> int:
    """Return the address of a new context that calls `callback` for its graphs' nodes.

    Parameters
    ----------
    chunk : int
        The most tokens of one pass.

    Raises
    ------
    TracekitError
        llama.cpp cannot make it.
    """
    llama = binding.load()
    params = llama.llama_context_default_params()
    # Flash attention computes in f16 and rounds by the shape of a batch. It is off, so that runs
    # can be compared to the bit, and because rounding can turn near ties of the router.
    binding.set_fields(
        params,
        n_ctx=options.n_ctx,
        n_batch=chunk,
        n_ubatch=chunk,
        n_outputs_max=min(options.n_outputs, chunk),
        n_threads=options.compute_threads,
        n_threads_batch=options.compute_threads,
        flash_attn_type=llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        cb_eval=callback,
        offload_kqv=False,
        op_offload=False,
    )
    binding.log().clear()
    context: int | None = llama.llama_init_from_model(model.pointer, params)
    if not context:
        raise TracekitError(
            f"llama.cpp cannot make a context of {options.n_ctx} tokens: "
            f"{binding.log().first_error()}."
        )
    return context


def fill_batch(batch: Any, tokens: list[int], first_step: int, n_logits: int) -> None:
    """Put `tokens` into a batch of llama.cpp; of the last `n_logits` of them logits are wanted."""
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index] = token
        batch.pos[index] = first_step + index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = index >= len(tokens) - n_logits


def forget_from(context: int, step: int) -> bool:
    """Remove the tokens from `step` on from a context; say whether its model can do that."""
    llama = binding.load()
    return bool(llama.llama_memory_seq_rm(llama.llama_get_memory(context), 0, step, -1))


def most_experts(file: ModelFile, options: Options, chunk: int, limit: int) -> int:
    """Return the most experts per token, up to `limit`, with which a context can be made.

    llama.cpp sizes a graph by the number of the model's tensors. It adds up the selected experts
    one by one, so each takes nodes in every layer. How many have room is found by trial.
    """
    return bisect.bisect(
        range(1, limit + 1), False, key=lambda n: not _can_make(file, options, chunk, n)
    )


def _can_make(file: ModelFile, options: Options, chunk: int, n_expert_used: int) -> bool:
    llama = binding.load()
    trial = Model(file, n_expert_used, weights=False)
    try:
        no_callback = llama.ggml_backend_sched_eval_callback()
        llama.llama_free(binding.guarded(lambda: make_context(trial, options, chunk, no_callback)))
    except binding.AbortError:
        return False
    finally:
        trial.close()
    return True

"""A session: a model that evaluates tokens while its routing is watched and its experts streamed."""

import bisect
import ctypes
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine import binding, interrupts
from tracekit_engine.budget import automatic_budget, check_budget, largest_chunk, tokens_that_fit
from tracekit_engine.graph import Plan, read_plan
from tracekit_engine.hook import Hook, PassCapture
from tracekit_engine.lanes import Lanes
from tracekit_engine.memory import FileMemory, replace_mappings
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile, StoredTensor, cut_while_used
from tracekit_engine.options import Options, Streaming
from tracekit_engine.store import ExpertStore, StoreTotals


@dataclass(frozen=True)
class Pass:
    """One forward evaluation.

    Attributes
    ----------
    tokens : list of int
    first_step : int
        Context position of the first token.
    seen : PassCapture
    wall_ms : float
    store : StoreTotals or None
        Lookups and reads of the expert store; None where all experts are resident.
    """

    tokens: list[int]
    first_step: int
    seen: PassCapture
    wall_ms: float
    store: StoreTotals | None


class Session:
    """A loaded model and one context.

    Parameters
    ----------
    model : path or Model
        A `Model` is taken over: it is closed with the session.
    options : Options

    Raises
    ------
    TracekitError
        The model cannot be loaded, its graph has no MoE layer that can be followed, or the
        budget is less than one token's experts of one layer need.

    Examples
    --------
    >>> with Session("model.gguf", Options(streaming=Streaming(cache_bytes=3000 << 20))) as session:
    ...     done = session.evaluate(session.model.tokenize("Once upon a time"), want_logits=True)
    ...     done.seen.experts
    """

    def __init__(self, model: str | os.PathLike[str] | Model, options: Options | None = None):
        self.options = options or Options()
        self._context: ctypes.c_void_p | None = None
        self._has_logits = False
        self.lanes: Lanes | None = None
        self.store: ExpertStore | None = None
        if isinstance(model, Model):
            self.model = model
        else:
            file = ModelFile.open(Path(model))
            check_budget(file, self.options)
            self.model = Model(file, self.options.n_expert_used)
        try:
            with interrupts.held() as held:
                self._open(held)
        except BaseException as error:
            self.close()
            if isinstance(error, binding.AbortError):
                raise self._refusal(error) from error
            raise

    def _open(self, held: interrupts.Held) -> None:
        self._found = [path.stat() for path in self.file.paths]
        self.position = 0
        self.chunk = largest_chunk(self.file, self.options)
        self._hook = Hook(self.options.capture)
        self._hook.held = held
        binding.guarded(self._prepare)
        self._experts = {
            layer.layer: [self.file.tensors[name] for name in layer.experts]
            for layer in self.plan.layers
        }
        if self.options.streaming is not None:
            self._stream(self.options.streaming)
        self._hook.follow(self.plan)

    def _prepare(self) -> None:
        self._context = self.make_context(self._hook.callback)
        self._batch = binding.load().llama_batch_init(self.chunk, 0, 1)
        self.plan = self._learn()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # In a notebook a cell that runs again drops the session it opened before.
        if hasattr(self, "model") and not sys.is_finalizing():
            self.close()

    def close(self) -> None:
        """Free the context, the model and the threads that read; Ctrl-C waits for it."""
        llama = binding.load()
        with interrupts.held():
            context, self._context = self._context, None
            if context is not None:
                llama.llama_batch_free(self._batch)
                llama.llama_free(context)
            lanes, self.lanes = self.lanes, None
            if lanes is not None:
                lanes.close()
            self.model.close()

    @property
    def threads(self) -> int:
        """Compute threads."""
        return self.options.compute_threads

    @property
    def context(self) -> ctypes.c_void_p:
        """llama.cpp's context, for a sampler; ValueError where it holds no logits to sample from."""
        self._check_open()
        if not self._has_logits:
            raise ValueError("there are no logits: evaluate with want_logits first")
        return self._context

    @property
    def file(self) -> ModelFile:
        """What the model's files say."""
        return self.model.file

    @property
    def expert_bytes(self) -> dict[int, int]:
        """Bytes of one expert by MoE layer."""
        return {
            layer: sum(tensor.n_bytes // self.file.n_expert for tensor in tensors)
            for layer, tensors in self._experts.items()
        }

    @property
    def token_cycle(self) -> int:
        """Bytes of experts that one token touches over all layers."""
        return sum(layer.top_k * self.expert_bytes[layer.layer] for layer in self.plan.layers)

    def clear(self) -> None:
        """Forget the tokens evaluated so far; the expert cache stays."""
        self._check_open()
        llama = binding.load()
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        self.position = 0
        self._has_logits = False

    def _check_open(self) -> None:
        if self._context is None:
            raise ValueError("the session is closed")

    def evaluate(self, tokens: list[int], want_logits: bool) -> Pass:
        """Evaluate up to `chunk` tokens that follow those evaluated so far, in one pass.

        Parameters
        ----------
        want_logits : bool
            Whether the last token's logits are wanted. Without, most models run no token
            through the last layer's experts.

        Raises
        ------
        ValueError
            The context has no room for the tokens, or there are too many of them, or none.
        TracekitError, KeyboardInterrupt
            A model's file was cut. Or a read failed, or Ctrl-C broke the pass off: the tokens
            evaluated so far are forgotten.
        """
        self._check_open()
        if not 1 <= len(tokens) <= self.chunk:
            raise ValueError(f"{len(tokens)} tokens in one pass; 1 to {self.chunk} can be")
        if self.position + len(tokens) > self.options.n_ctx:
            raise ValueError(
                f"the context of {self.options.n_ctx} tokens holds {self.position}, so {len(tokens)} "
                "more have no room: clear the session, or open one with a larger n_ctx"
            )
        self.model.check_tokens(tokens)
        if self.store is None:
            self._check_files()
        started, first_step = time.perf_counter(), self.position
        try:
            with interrupts.held() as self._hook.held:
                seen = self._watched(tokens, want_logits)
        except BaseException:
            self.clear()
            if self.store is not None:
                self.store.take_totals()  # of a pass that is not one
            raise
        wall_ms = 1e3 * (time.perf_counter() - started)
        self.position += len(tokens)
        totals = self.store.take_totals() if self.store is not None else None
        return Pass(tokens, first_step, seen, wall_ms, totals)

    def _check_files(self) -> None:
        """Refuse to go on with a file that was cut: touching what it lost ends the process."""
        for path, found in zip(self.file.paths, self._found, strict=True):
            try:
                now = path.stat()
            except OSError:
                continue  # a file that lost its name is still mapped
            if now.st_ino == found.st_ino and now.st_size < found.st_size:
                raise cut_while_used(path, now.st_size)

    def logits(self) -> np.ndarray:
        """Return the last token's logits, float32 [n_vocab]."""
        pointer = binding.load().llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(pointer, (self.model.n_vocab,)).copy()

    def _watched(self, tokens: list[int], want_logits: bool) -> PassCapture:
        self._hook.begin(len(tokens))
        self._decode(tokens, want_logits)
        seen = self._hook.end()
        self._check_finite(seen)
        whole = [count == len(tokens) for _, count in seen.layers]
        if len(whole) != len(self.plan.layers) or not all(whole[:-1]):
            raise TracekitError(
                f"llama.cpp evaluated the {len(tokens)} tokens at step {self.position} in parts, "
                "which a trace cannot tell apart; give --chunk 1."
            )
        return seen

    def _decode(self, tokens: list[int], want_logits: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = self.position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = 0
        batch.logits[len(tokens) - 1] = want_logits
        binding.log().forget()
        self._has_logits = False
        outcome = binding.load().llama_decode(self._context, batch)
        self._hook.reraise()
        if outcome != 0:
            raise TracekitError(
                f"llama.cpp cannot evaluate the tokens at step {self.position} "
                f"({outcome}): {binding.log().complaint()}."
            )
        self._has_logits = want_logits

    def _check_finite(self, seen: PassCapture) -> None:
        for values in (seen.logits, seen.weights):
            if values is not None and not np.isfinite(values).all():
                layers, counts = zip(*seen.layers, strict=True)
                row = int(np.isfinite(values).all(axis=1).argmin())
                raise self._no_numbers(f"in the router of layer {np.repeat(layers, counts)[row]}")

    def _no_numbers(self, where: str) -> TracekitError:
        return TracekitError(
            f"{self.file.paths[0]} computes values that are no finite numbers, {where}: "
            "its weights or its metadata are damaged; download it again."
        )

    def make_context(
        self, callback: "ctypes._CFunctionType", model: Model | None = None
    ) -> ctypes.c_void_p:
        """Make a context of llama.cpp that calls `callback` for its graphs' nodes."""
        llama = binding.load()
        params = llama.llama_context_default_params()
        # Flash attention computes in f16 and rounds by batch shape; runs that are to be compared
        # to the bit, and near ties of the router, want it off.
        binding.set_fields(
            params,
            n_ctx=self.options.n_ctx,
            n_batch=self.chunk,
            n_ubatch=self.chunk,
            n_outputs_max=1,
            n_threads=self.threads,
            n_threads_batch=self.threads,
            flash_attn_type=llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
            cb_eval=callback,
            offload_kqv=False,
            op_offload=False,
        )
        binding.log().forget()
        context = llama.llama_init_from_model((model or self.model).pointer, params)
        if not context:
            raise TracekitError(
                f"llama.cpp cannot make a context of {self.options.n_ctx} tokens: "
                f"{binding.log().complaint()}."
            )
        return context

    def _learn(self) -> Plan:
        """Evaluate one token to see the graph, then forget it."""
        llama = binding.load()
        nodes = self._hook.collect_nodes()
        llama.llama_set_n_threads(self._context, 1, 1)  # as it is guarded
        self._decode([self.model.first_token], want_logits=True)
        llama.llama_set_n_threads(self._context, self.threads, self.threads)
        if np.isnan(self.logits()).any():
            raise self._no_numbers("in the logits of a first token")
        try:
            plan = read_plan(nodes)
        except TracekitError as error:
            raise TracekitError(
                f"{self.file.paths[0]} ({self.file.arch}) cannot be recorded: {error}."
            ) from error
        wanted, used = self.options.n_expert_used, plan.layers[0].top_k
        if wanted not in (None, used):
            raise TracekitError(
                f"llama.cpp goes on using {used} experts per token of {self.file.paths[0]}, not "
                f"{wanted}: the file says it layer by layer; leave --n-expert-used away."
            )
        self.clear()
        return plan

    def _refusal(self, failed: binding.AbortError) -> TracekitError:
        asked, path = self.options.n_expert_used, self.file.paths[0]
        most = self._most_experts(asked) if asked is not None else 0
        if 0 < most < asked:
            return UsageError(
                f"llama.cpp has no room in its graph for {asked} experts per token of {path}; "
                f"{most} are the most it can run: give --n-expert-used {most}."
            )
        return TracekitError(f"llama.cpp cannot run {path} ({self.file.arch}): {failed}.")

    def _most_experts(self, limit: int) -> int:
        """Return how many experts a token can use, up to `limit`, for which a context can be made.

        llama.cpp sizes a graph by the number of the model's tensors, and adds up the experts one
        by one, so each takes nodes in every layer; how many are left for them is found by trial.
        """
        return bisect.bisect(range(1, limit + 1), False, key=lambda n: not self._has_room(n))

    def _has_room(self, n_expert_used: int) -> bool:
        trial = Model(self.file, n_expert_used, weights=False)
        try:
            unwatched = binding.load().ggml_backend_sched_eval_callback()
            context = binding.guarded(lambda: self.make_context(unwatched, trial))
            binding.load().llama_free(context)
        except binding.AbortError:
            return False
        finally:
            trial.close()
        return True

    def _stream(self, streaming: Streaming) -> None:
        stacked = [tensor for group in self._experts.values() for tensor in group]
        memory = replace_mappings(self.file, self.plan.weights, stacked)
        self.lanes = Lanes(self.file.paths, memory, streaming.lanes, streaming.direct_io)
        self._read_dense(memory)
        self.lanes.forget_cached()
        budget = streaming.cache_bytes
        if budget is None:
            budget = automatic_budget(self.file, self.options)
        self.store = ExpertStore(self._experts, memory, self.lanes, int(budget))
        self.chunk = min(self.chunk, tokens_that_fit(self.file, budget, self.options))
        self._hook.on_selection = self.store.load

    def _read_dense(self, memory: list[FileMemory | None]) -> None:
        """Read every weight but the experts into the memory that replaced the mapping."""
        streamed = {tensor.name for group in self.file.expert_tensors.values() for tensor in group}
        dense = [
            (tensor.file, tensor.start, tensor.stop)
            for tensor in self.file.tensors.values()
            if tensor.name not in streamed and _placed(memory, tensor)
        ]
        for file, start, stop in dense:
            memory[file].occupy(start, stop)
        self.lanes.read(dense)


def _placed(memory: list[FileMemory | None], tensor: StoredTensor) -> bool:
    place = memory[tensor.file]
    return place is not None and place.holds(tensor.start, tensor.stop)

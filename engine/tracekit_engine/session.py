"""A session: it evaluates tokens with a model, watches the routing and streams the experts.

A model's path and options go in; what each pass selected comes out. Nothing here writes a trace or
chooses a token.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine import binding, interrupts
from tracekit_engine.budget import (
    automatic_budget,
    check_given_budget,
    largest_chunk,
    tokens_that_fit,
)
from tracekit_engine.context import make_context, most_experts
from tracekit_engine.gguf_header import StoredTensor
from tracekit_engine.graph import Plan, read_plan
from tracekit_engine.hook import Hook, PassCapture
from tracekit_engine.lanes import Lanes
from tracekit_engine.memory import FileMemory, replace_mappings
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile, cut_while_used
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
    captured : PassCapture
        What each layer selected, and what else was to be copied.
    wall_ms : float
    store : StoreTotals or None
        Lookups and reads of the expert store; None if all experts are resident.
    """

    tokens: list[int]
    first_step: int
    captured: PassCapture
    wall_ms: float
    store: StoreTotals | None


class Session:
    """A loaded model and one context of it; closed with `close` or at the end of a with block.

    Parameters
    ----------
    model : path or Model
        The session owns a `Model` that it is given, and closes it.
    options : Options

    Raises
    ------
    TracekitError
        The model cannot be loaded, its graph has no MoE layer that can be followed, or the
        budget is less than one token's experts of one layer need.

    Examples
    --------
    >>> import tracekit
    >>> from tracekit.engine import Options, Streaming
    >>> options = Options(streaming=Streaming(cache_bytes=3000 << 20))
    >>> with tracekit.Session("model.gguf", options) as session:
    ...     tokens = session.model.tokenize("Once upon a time")
    ...     session.evaluate(tokens, want_logits=True).captured.experts
    """

    def __init__(self, model: str | os.PathLike[str] | Model, options: Options | None = None):
        self.options = options or Options()
        self._context: int | None = None
        self._has_logits = False
        self.lanes: Lanes | None = None
        self.store: ExpertStore | None = None
        if isinstance(model, Model):
            self.model = model
        else:
            file = ModelFile.open(Path(model))
            check_given_budget(file, self.options)
            self.model = Model(file, self.options.n_expert_used)
        try:
            with interrupts.counted() as ctrl_c:
                self._open(ctrl_c)
        except BaseException as error:
            self.close()
            if isinstance(error, binding.AbortError):
                raise self._refusal(error) from error
            raise

    def _open(self, ctrl_c: interrupts.CtrlC) -> None:
        self._stats_at_open = [path.stat() for path in self.file.paths]
        self.position = 0
        self.chunk = largest_chunk(self.file, self.options)
        self._hook = Hook(self.options.capture)
        self._hook.ctrl_c = ctrl_c
        binding.guarded(self._prepare)
        self._experts = {
            layer.layer: [self.file.tensors[name] for name in layer.experts]
            for layer in self.plan.layers
        }
        if self.options.streaming is not None:
            self._stream(self.options.streaming)
        self._hook.follow(self.plan)

    def _prepare(self) -> None:
        self._context = make_context(self.model, self.options, self.chunk, self._hook.callback)
        self._batch = binding.load().llama_batch_init(self.chunk, 0, 1)
        self.plan = self._plan_of_one_token()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A notebook's cell that runs again drops the session that it opened before.
        if hasattr(self, "model") and not sys.is_finalizing():
            self.close()

    def close(self) -> None:
        """Free the context, the model and the threads that read; Ctrl-C waits for it."""
        llama = binding.load()
        with interrupts.counted():
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
    def context(self) -> int:
        """Address of llama.cpp's context for a sampler; ValueError if there are no logits."""
        context = self._open_context()
        if not self._has_logits:
            raise ValueError("there are no logits: evaluate with want_logits first")
        return context

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
        llama = binding.load()
        llama.llama_memory_clear(llama.llama_get_memory(self._open_context()), True)
        self.position = 0
        self._has_logits = False

    def _open_context(self) -> int:
        if self._context is None:
            raise ValueError("the session is closed")
        return self._context

    def evaluate(self, tokens: list[int], want_logits: bool) -> Pass:
        """Evaluate up to `chunk` tokens that follow those evaluated so far, in one pass.

        Parameters
        ----------
        want_logits : bool
            Whether the last token's logits are wanted. If not, most models run no token
            through the last layer's experts.

        Raises
        ------
        ValueError
            The context has no room for the tokens, or there are too many of them, or none.
        TracekitError
            A model's file was cut, or a read failed.
        KeyboardInterrupt
            Ctrl-C ended the pass. After this, as after a failed read, the session has forgotten
            the tokens evaluated so far.
        """
        self._open_context()
        if not 1 <= len(tokens) <= self.chunk:
            raise ValueError(f"a pass takes 1 to {self.chunk} tokens, not {len(tokens)}")
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
            with interrupts.counted() as self._hook.ctrl_c:
                captured = self._evaluate_watched(tokens, want_logits)
        except BaseException:
            self.clear()
            if self.store is not None:
                self.store.take_totals()  # drops those of the pass that failed
            raise
        wall_ms = 1e3 * (time.perf_counter() - started)
        self.position += len(tokens)
        totals = self.store.take_totals() if self.store is not None else None
        return Pass(tokens, first_step, captured, wall_ms, totals)

    def _check_files(self) -> None:
        """Refuse to go on with a file that was cut: to touch its lost part would end the process."""
        for path, at_open in zip(self.file.paths, self._stats_at_open, strict=True):
            try:
                now = path.stat()
            except OSError:
                continue  # a file that lost its name is still mapped
            if now.st_ino == at_open.st_ino and now.st_size < at_open.st_size:
                raise cut_while_used(path, now.st_size)

    def logits(self) -> np.ndarray:
        """Return the last token's logits, float32 [n_vocab]."""
        pointer = binding.load().llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(pointer, (self.model.n_vocab,)).copy()

    def _evaluate_watched(self, tokens: list[int], want_logits: bool) -> PassCapture:
        self._hook.begin(len(tokens))
        self._decode(tokens, want_logits)
        captured = self._hook.end()
        self._check_finite(captured)
        has_all_tokens = [count == len(tokens) for _, count in captured.layers]
        if len(has_all_tokens) != len(self.plan.layers) or not all(has_all_tokens[:-1]):
            raise TracekitError(
                f"llama.cpp evaluated the {len(tokens)} tokens at step {self.position} in parts, "
                "which a trace cannot tell apart; give --chunk 1."
            )
        return captured

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
        binding.log().clear()
        self._has_logits = False
        status = binding.load().llama_decode(self._context, batch)
        self._hook.reraise()
        if status != 0:
            raise TracekitError(
                f"llama.cpp cannot evaluate the tokens at step {self.position} "
                f"({status}): {binding.log().first_error()}."
            )
        self._has_logits = want_logits

    def _check_finite(self, captured: PassCapture) -> None:
        for values in (captured.logits, captured.weights):
            if values is not None and not np.isfinite(values).all():
                layers, counts = zip(*captured.layers, strict=True)
                row = int(np.isfinite(values).all(axis=1).argmin())
                raise self._not_finite(f"in the router of layer {np.repeat(layers, counts)[row]}")

    def _not_finite(self, where: str) -> TracekitError:
        return TracekitError(
            f"{self.file.paths[0]} computes values that are not finite numbers, {where}: "
            "its weights or its metadata are damaged; download it again."
        )

    def _plan_of_one_token(self) -> Plan:
        """Evaluate one token, read the plan from its graph, and forget the token."""
        llama = binding.load()
        nodes = self._hook.collect_nodes()
        llama.llama_set_n_threads(self._context, 1, 1)  # what is guarded has one thread
        self._decode([self.model.first_token], want_logits=True)
        llama.llama_set_n_threads(self._context, self.threads, self.threads)
        if np.isnan(self.logits()).any():
            raise self._not_finite("in the logits of a first token")
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
                f"{wanted}, because the file gives a number for each layer; leave --n-expert-used "
                "away."
            )
        self.clear()
        return plan

    def _refusal(self, failed: binding.AbortError) -> TracekitError:
        asked, path = self.options.n_expert_used, self.file.paths[0]
        if asked is not None:
            most = most_experts(self.file, self.options, self.chunk, asked)
            if 0 < most < asked:
                return UsageError(
                    f"llama.cpp has no room in its graph for {asked} experts per token of {path}; "
                    f"it has room for {most}: give --n-expert-used {most}."
                )
        return TracekitError(f"llama.cpp cannot run {path} ({self.file.arch}): {failed}.")

    def _stream(self, streaming: Streaming) -> None:
        stacked = [tensor for group in self._experts.values() for tensor in group]
        memory = replace_mappings(self.file, self.plan.weights, stacked)
        self.lanes = Lanes(self.file.paths, memory, streaming.lanes, streaming.direct_io)
        self._read_dense(memory, self.lanes)
        self.lanes.forget_cached()
        budget = streaming.cache_bytes
        if budget is None:
            budget = automatic_budget(self.file, self.options)
        self.store = ExpertStore(self._experts, memory, self.lanes, int(budget))
        self.chunk = min(self.chunk, tokens_that_fit(self.file, budget, self.options))
        self._hook.on_selection = self.store.load

    def _read_dense(self, memory: dict[int, FileMemory], lanes: Lanes) -> None:
        """Read every weight but the experts into the memory that replaced the mapping."""
        streamed = {tensor.name for group in self.file.expert_tensors.values() for tensor in group}
        dense = [
            (tensor.file, tensor.start, tensor.stop)
            for tensor in self.file.tensors.values()
            if tensor.name not in streamed and _has_place(memory, tensor)
        ]
        for file, start, stop in dense:
            memory[file].occupy(start, stop)
        lanes.read(dense)


def _has_place(memory: dict[int, FileMemory], tensor: StoredTensor) -> bool:
    return tensor.file in memory and memory[tensor.file].holds(tensor.start, tensor.stop)

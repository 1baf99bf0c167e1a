"""A session: it evaluates tokens with a model, watches the routing and streams the experts.

A model's path and options go in; what each pass selected comes out. Nothing here writes a trace or
chooses a token.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from tracekit import meter
from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine import binding, interrupts
from tracekit_engine.budget import (
    automatic_budget,
    check_given_budget,
    largest_chunk,
    tokens_that_fit,
)
from tracekit_engine.context import fill_batch, forget_from, make_context, most_experts
from tracekit_engine.expert_check import check_plan
from tracekit_engine.graph import Plan, read_plan
from tracekit_engine.hook import Hook, PassCapture
from tracekit_engine.lanes import Lanes
from tracekit_engine.memory import occupy_dense, replace_mappings
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile
from tracekit_engine.options import Options, Streaming
from tracekit_engine.passes import Pass
from tracekit_engine.store import ExpertStore


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
        self._n_logits = 0  # so many of the last pass's last tokens have logits
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
        self.position = 0
        self.chunk = largest_chunk(self.file, self.options)
        self._hook = Hook(self.options.capture)
        self._hook.ctrl_c = ctrl_c
        with self._whole_files():
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
        if not self._n_logits:
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
        self._n_logits = 0

    def rewind(self, step: int) -> None:
        """Forget the tokens from `step` on, such as rejected drafts; the expert cache stays.

        Parameters
        ----------
        step : int
            Context position of the first token to forget.

        Raises
        ------
        ValueError
            The context does not reach that far.
        TracekitError
            The model keeps one state of all tokens, as recurrent ones do.
        """
        context = self._open_context()
        if not 0 <= step <= self.position:
            raise ValueError(f"there are steps 0 to {self.position - 1}; {step} is none of them")
        if step < self.position and not forget_from(context, step):
            raise TracekitError(
                f"{self.file.paths[0]} ({self.file.arch}) cannot forget its last tokens alone; clear "
                "the session and evaluate the others again."
            )
        if step < self.position:
            self.position, self._n_logits = step, 0

    def _open_context(self) -> int:
        if self._context is None:
            raise ValueError("the session is closed")
        return self._context

    def evaluate(self, tokens: list[int], want_logits: bool, every_token: bool = False) -> Pass:
        """Evaluate up to `chunk` tokens that follow those evaluated so far, in one pass.

        Parameters
        ----------
        want_logits : bool
            Whether the last token's logits are wanted. If not, most models run no token
            through the last layer's experts.
        every_token : bool
            Whether the logits of all tokens are wanted, as to verify drafted ones; then all of them
            run through the last layer's experts.

        Raises
        ------
        ValueError
            The context has no room for the tokens, or there are too many of them, or none; or more
            logits are wanted than the options have room for.
        TracekitError
            A model's file was cut or written to, or a read failed.
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
        n_logits = len(tokens) if every_token else int(want_logits)
        if n_logits > self.options.n_outputs:
            raise ValueError(
                f"the logits of {n_logits} tokens are wanted: open the session with n_outputs of as many"
            )
        self.model.check_tokens(tokens)
        used, first_step = meter.used(), self.position
        started = time.perf_counter()
        try:
            with interrupts.counted() as self._hook.ctrl_c, self._whole_files():
                captured = self._evaluate_watched(tokens, n_logits)
        except BaseException:
            self.clear()
            if self.store is not None:
                self.store.take_totals()  # drops those of the pass that failed
            raise
        wall_ms = 1e3 * (time.perf_counter() - started)
        usage = meter.used() - used
        self.position += len(tokens)
        totals = self.store.take_totals() if self.store is not None else None
        left = meter.available_bytes()
        return Pass(tokens, first_step, captured, wall_ms, totals, started, usage, left)

    @contextmanager
    def _whole_files(self) -> Iterator[None]:
        """Refuse what a block computes with files that were cut or written to before its end.

        It may then fail for a reason that follows from that; this one is told instead.
        """
        self.model.files.check()
        try:
            yield
        except Exception:
            self.model.files.check()
            raise
        self.model.files.check()

    def logits(self, index: int = -1) -> np.ndarray:
        """Return the logits of a token of the last pass, float32 [n_vocab].

        Parameters
        ----------
        index : int
            Counted from the end: -1 is the last token; another one needs ``every_token``.

        Raises
        ------
        ValueError
            That token has no logits.
        """
        context = self.context
        if not -self._n_logits <= index < 0:
            raise ValueError(f"of the last pass only the last {self._n_logits} tokens have logits")
        pointer = binding.load().llama_get_logits_ith(context, index)
        return np.ctypeslib.as_array(pointer, (self.model.n_vocab,)).copy()

    def _evaluate_watched(self, tokens: list[int], n_logits: int) -> PassCapture:
        self._hook.begin(len(tokens))
        self._decode(tokens, n_logits)
        captured = self._hook.end()
        self._check_finite(captured)
        has_all_tokens = [count == len(tokens) for _, count in captured.layers]
        if len(has_all_tokens) != len(self.plan.layers) or not all(has_all_tokens[:-1]):
            raise TracekitError(
                f"llama.cpp evaluated the {len(tokens)} tokens at step {self.position} in parts, "
                "which a trace cannot tell apart; give --chunk 1."
            )
        return captured

    def _decode(self, tokens: list[int], n_logits: int) -> None:
        fill_batch(self._batch, tokens, self.position, n_logits)
        binding.log().clear()
        self._n_logits = 0
        status = binding.load().llama_decode(self._context, self._batch)
        self._hook.reraise()
        if status != 0:
            raise TracekitError(
                f"llama.cpp cannot evaluate the tokens at step {self.position} "
                f"({status}): {binding.log().first_error()}."
            )
        self._n_logits = n_logits

    def _check_finite(self, captured: PassCapture) -> None:
        by_logits = {layer.layer for layer in self.plan.layers if layer.selects_by_logits}
        row = 0
        for layer, count in captured.layers:
            rows = slice(row, row + count)
            row += count
            is_finite = bool(np.isfinite(captured.weights[rows]).all())
            if captured.logits is not None and layer in by_logits:
                logits = captured.logits[rows]  # -inf of an expert that is never selected
                is_finite &= bool((np.isfinite(logits) | (logits == -np.inf)).all())
            if not is_finite:
                raise self._not_finite(f"in the router of layer {layer}")

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
        self._decode([self.model.first_token], n_logits=1)
        llama.llama_set_n_threads(self._context, self.threads, self.threads)
        if np.isnan(self.logits()).any():
            raise self._not_finite("in the logits of a first token")
        try:
            plan = read_plan(nodes)
            check_plan(plan, self.file)
        except TracekitError as error:
            raise TracekitError(
                f"{self.file.paths[0]} ({self.file.arch}) cannot be recorded: {error}."
            ) from error
        wanted, used = self.options.n_expert_used, plan.top_k
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
        self.model.files.release()
        self.lanes = Lanes(self.file.paths, memory, streaming.lanes, streaming.direct_io)
        self.model.files.check_names()
        self.lanes.read(occupy_dense(self.file, memory))
        self.lanes.forget_cached()
        budget = streaming.cache_bytes
        if budget is None:
            budget = automatic_budget(self.file, self.options)
        self.store = ExpertStore(self._experts, memory, self.lanes, int(budget))
        self.chunk = min(self.chunk, tokens_that_fit(self.file, budget, self.options))
        self._hook.on_selection = self.store.load

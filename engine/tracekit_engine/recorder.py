"""Recording: evaluate prompts, generate tokens, write every routing to a trace.

A model's path, prompts and options go in; a trace comes out. Nothing here prints.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.trace import TraceWriter
from tracekit.trace.agreement import Agreement
from tracekit.trace.errors import UsageError
from tracekit.trace.folder import check_target
from tracekit.trace.schema import DECODE, PREFILL
from tracekit_engine import interrupts
from tracekit_engine.budget import check_given_budget
from tracekit_engine.facts import facts_of_recording
from tracekit_engine.generation import Generation
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile
from tracekit_engine.options import Options
from tracekit_engine.own_check import verify_recording
from tracekit_engine.passes import Pass
from tracekit_engine.prompts import Prompt
from tracekit_engine.rows import Place, layer_rows, routing_rows, step_rows
from tracekit_engine.sampling import Sampler
from tracekit_engine.session import Session
from tracekit_engine.store import StoreTotals

CTX_STEP = 256

# Why a turn ended.
LENGTH = "length"
END_OF_TEXT = "end of text"
CONTEXT_FULL = "context full"
INTERRUPTED = "interrupted"


@dataclass
class Progress:
    """How far a recording is.

    Attributes
    ----------
    turn, turns : int
        Index of the current turn, and how many there are.
    n_decode : int
        The most decode passes of a turn.
    decoded, decoded_in_turn, prefilled : int
        Tokens decoded so far, those of the current turn, and tokens of prompts evaluated.
    decode_seconds : float
        Time spent in decode passes.
    totals : StoreTotals or None
        What the expert cache did so far; None if experts are not streamed.
    """

    turn: int = 0
    turns: int = 0
    n_decode: int = 0
    decoded: int = 0
    decoded_in_turn: int = 0
    prefilled: int = 0
    decode_seconds: float = 0.0
    totals: StoreTotals | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens per second, None before the first one."""
        return self.decoded / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def hit_rate(self) -> float | None:
        """Cumulative hit rate, None if experts are not streamed."""
        if self.totals is None or not self.totals.lookups:
            return None
        return self.totals.hits / self.totals.lookups


@dataclass(frozen=True)
class Recording:
    """What was recorded.

    Attributes
    ----------
    path : Path
    ended : str
        Why the last turn ended: ``length``, ``end of text``, ``context full``, ``interrupted``.
    progress : Progress
        The counts at the end.
    cache_bytes : int or None
        Budget of the expert cache; None if experts are not streamed.
    token_cycle : int
        Bytes of experts that one token touches over all layers.
    agreement : Agreement or None
        Whether a replay of the trace gives what was recorded; None if experts are not streamed.
    """

    path: Path
    ended: str
    progress: Progress
    cache_bytes: int | None
    token_cycle: int
    agreement: Agreement | None = None


def record(
    model: str | os.PathLike[str],
    prompts: str | Prompt | Sequence[str | Prompt],
    path: str | os.PathLike[str],
    *,
    options: Options | None = None,
    generation: Generation | None = None,
    force: bool = False,
    command: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
    on_piece: Callable[[int, bytes], None] | None = None,
    on_start: Callable[[Session], None] | None = None,
) -> Recording:
    """Record a run of a model to a trace.

    Parameters
    ----------
    model : path
        A GGUF file, or the first file of a split model.
    prompts : str or Prompt, or a sequence of them
        Each makes one turn. The context is cleared between turns, the expert cache is kept.
    path : path
        The trace to write.
    options : Options
        How the model is loaded and evaluated; its ``n_ctx`` is replaced by the generation's.
    generation : Generation
        What is generated in each turn.
    force : bool
        Overwrite a trace that exists.
    command : sequence of str
        The command line that ran this, which the trace keeps.
    on_progress : callable, optional
        Called with the progress after every pass.
    on_piece : callable, optional
        Called with the turn and the bytes of every decoded token.
    on_start : callable, optional
        Called with the session once the model is loaded.

    Raises
    ------
    TracekitError
        One sentence that says what is wrong. What was recorded before a failure stays readable,
        marked incomplete.

    Notes
    -----
    Ctrl-C ends the recording after the pass that runs; the trace is then complete, and `ended` is
    ``interrupted``. A second Ctrl-C ends the pass too, and the trace is left incomplete.

    Examples
    --------
    >>> import tracekit
    >>> from tracekit.engine import Generation, Options, Streaming
    >>> tracekit.record("model.gguf", "Once upon a time", "run.trace")
    >>> tracekit.record(
    ...     "model.gguf",
    ...     ["Once upon a time", "In a hole in the ground"],
    ...     "streamed.trace",
    ...     options=Options(streaming=Streaming(cache_bytes=3000 << 20)),
    ...     generation=Generation(n_decode=256),
    ... )
    """
    options, generation = options or Options(), generation or Generation()
    given = [prompts] if isinstance(prompts, str | Prompt) else prompts
    turns = [Prompt(each) if isinstance(each, str) else each for each in given]
    path = Path(path)
    if not turns:
        raise UsageError("There is no prompt; give one with -p.")
    check_target(path, force)  # before a large model is loaded
    file = ModelFile.open(Path(model))
    check_given_budget(file, options)
    loaded = Model(file, options.n_expert_used)
    try:
        token_lists = [turn.tokens(loaded, generation.chat) for turn in turns]
        options = replace(options, n_ctx=_context_length(token_lists, generation, loaded))
    except BaseException:
        loaded.close()
        raise
    with Session(loaded, options) as session:
        if on_start is not None:
            on_start(session)
        facts = facts_of_recording(session, turns, generation, command)
        with TraceWriter(
            path,
            facts,
            top_k=facts.model.top_k,
            n_expert=facts.model.n_expert if options.capture.logits else None,
            n_embd=facts.model.n_embd if options.capture.gate_inputs else None,
            gate_dtype=options.capture.gate_dtype,
            layer_times=True,
            force=force,
        ) as writer:
            run = _Run(session, writer, generation, token_lists, on_progress, on_piece)
            ended = run.record()
        budget = session.store.budget if session.store else None
        agreement = None if budget is None else verify_recording(path, budget)
        return Recording(path, ended, run.progress, budget, session.token_cycle, agreement)


class _Run:
    """One recording while it runs: its session, its writer, its progress."""

    def __init__(
        self,
        session: Session,
        writer: TraceWriter,
        generation: Generation,
        turns: list[list[int]],
        on_progress: Callable[[Progress], None] | None,
        on_piece: Callable[[int, bytes], None] | None,
    ):
        self.session = session
        self.writer = writer
        self.generation = generation
        self.turns = turns
        self.on_progress = on_progress
        self.on_piece = on_piece
        self.progress = Progress(turns=len(turns), n_decode=generation.n_decode)
        self._passes = 0
        self._began = time.perf_counter()

    def record(self) -> str:
        """Run all turns, close the session and the trace, return why the last turn ended."""
        self.writer.write_layers(layer_rows(self.session))
        sampler = Sampler(self.generation.sampling)
        ended = LENGTH
        try:
            with interrupts.counted(tolerated=1) as ctrl_c:
                for turn, tokens in enumerate(self.turns):
                    sampler.reset()
                    self.progress.turn, self.progress.decoded_in_turn = turn, 0
                    ended = self._turn(turn, tokens, sampler, ctrl_c)
                    if ended == INTERRUPTED:
                        break
                self.session.close()  # frees the experts' memory for joining the trace's parts
                self.writer.close(complete=True, ended=ended)
        finally:
            sampler.close()
        return ended

    def _turn(
        self, turn: int, tokens: list[int], sampler: Sampler, ctrl_c: interrupts.CtrlC
    ) -> str:
        """Evaluate a prompt, decode, and return why the turn ended."""
        session = self.session
        session.clear()
        for start in range(0, len(tokens), session.chunk):
            part = tokens[start : start + session.chunk]
            self._evaluate(part, turn, PREFILL, want_logits=start + len(part) == len(tokens))
            if ctrl_c.count:
                return INTERRUPTED
        for _ in range(self.generation.n_decode):
            token = sampler.sample(session.context)
            if session.model.ends_text(token) and not self.generation.ignore_eos:
                return END_OF_TEXT
            if session.position >= session.options.n_ctx:
                return CONTEXT_FULL
            self._evaluate([token], turn, DECODE, want_logits=True)
            if self.on_piece is not None:
                self.on_piece(turn, session.model.piece(token))
            if ctrl_c.count:
                return INTERRUPTED
        return LENGTH

    def _evaluate(self, tokens: list[int], turn: int, phase: int, want_logits: bool) -> None:
        evaluated = self.session.evaluate(tokens, want_logits)
        place = Place(turn, self._passes, phase)
        pieces = [self.session.model.piece(token) for token in tokens]
        steps = step_rows(evaluated, place, pieces, self._began)
        self.writer.write_pass(routing_rows(evaluated, place), steps)
        if phase == PREFILL:
            self.writer.flush()  # a chunk is large; write it before the next one takes memory
        self._passes += 1
        self._report(evaluated, phase)

    def _report(self, evaluated: Pass, phase: int) -> None:
        progress = self.progress
        if phase == DECODE:
            progress.decoded += len(evaluated.tokens)
            progress.decoded_in_turn += len(evaluated.tokens)
            progress.decode_seconds += evaluated.wall_ms / 1e3
        else:
            progress.prefilled += len(evaluated.tokens)
        if evaluated.store is not None:
            progress.totals = progress.totals or StoreTotals()
            progress.totals.add(evaluated.store)
        if self.on_progress is not None:
            self.on_progress(progress)


def _context_length(turns: list[list[int]], generation: Generation, model: Model) -> int:
    longest = max(len(tokens) for tokens in turns)
    if generation.n_ctx is not None:
        n_ctx, source = generation.n_ctx, "--ctx"
    else:
        n_ctx = min(model.n_ctx_train, -(-(longest + generation.n_decode) // CTX_STEP) * CTX_STEP)
        source = "the model's"
    if longest > n_ctx:
        raise UsageError(
            f"The longest prompt has {longest:,} tokens, and the context ({source}) "
            f"{n_ctx:,}; shorten the prompt or give a larger --ctx."
        )
    return n_ctx

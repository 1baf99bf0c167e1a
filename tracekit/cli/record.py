"""``tracekit record``: run a model and write its routing to a trace.

Options go in; the engine records; what it recorded and the next command to type go to stderr.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.console import INTERRUPTED, Console, ProgressLine, ending_at_once, silence
from tracekit.cli.options import MAX_MIB, ForceOption, QuietOption, VerboseOption, number, whole
from tracekit.cli.record_text import next_command, rates, summary
from tracekit.cli.record_transformers import (
    BACKENDS,
    check_backend,
    note_what_is_left,
    record_folder,
)
from tracekit.figures import MIB
from tracekit.trace.build import shown, spelt
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from tracekit.engine import Progress, Prompt, Session, Streaming


def record(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="TRACE", help="The trace to write.")
    ],
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A GGUF file, or the first file of a split model; with --backend transformers, "
            "a model's folder. Default: the bundled model.",
            show_default=False,
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="|".join(BACKENDS),
            help="What runs the model. transformers needs: pip install 'tracekit[hf]'.",
        ),
    ] = BACKENDS[0],
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "-p", "--prompt", metavar="TEXT", help="A prompt, which is one turn. May be repeated."
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-file", metavar="FILE", help="A file whose text is one prompt; - is stdin."
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="JSONL",
            help='A file with one prompt in each line: "text", {"prompt": text} or {"messages": [...]}.',
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put prompts into the model's chat template.")
    ] = False,
    n_decode: Annotated[
        int,
        typer.Option("-n", metavar="N", parser=whole("-n"), help="Tokens to decode in each turn."),
    ] = 128,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the token that ends a text.")
    ] = False,
    temperature: Annotated[
        float,
        typer.Option(
            "--temp",
            metavar="T",
            parser=number("--temp"),
            help="Sampling temperature; 0 is greedy.",
        ),
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p",
            metavar="P",
            parser=number("--top-p"),
            help="Sample from the likeliest tokens that sum to this probability.",
        ),
    ] = 1.0,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", parser=whole("--seed"), help="Seed of the sampling."),
    ] = 0,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx",
            metavar="N",
            parser=whole("--ctx"),
            help="Context length. Default: what the turns need.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            parser=whole("--threads"),
            help="Threads that compute. Default: cores − 1.",
        ),
    ] = None,
    n_expert_used: Annotated[
        int | None,
        typer.Option(
            "--n-expert-used",
            metavar="K",
            parser=whole("--n-expert-used"),
            help="How many experts a token uses. Default: as in the model.",
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            "--chunk",
            metavar="N",
            parser=whole("--chunk"),
            help="The most prompt tokens in one pass: more means fewer reads and more memory. By "
            "default up to 512, or as many as have 16 MiB of gate inputs and logits.",
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Read experts on demand, through a cache with a budget."),
    ] = False,
    cache_mib: Annotated[
        str | None,
        typer.Option(
            "--cache-mib",
            metavar="MIB|auto",
            help="Budget of the expert cache; auto (the default) takes 80 % of what is free.",
        ),
    ] = None,
    io_threads: Annotated[
        int | None,
        typer.Option(
            "--io-threads",
            metavar="N",
            parser=whole("--io-threads"),
            help="How many reads run at a time. Default: 4.",
        ),
    ] = None,
    direct_io: Annotated[
        bool, typer.Option("--direct-io", help="Read past the page cache (O_DIRECT).")
    ] = False,
    no_logits: Annotated[
        bool, typer.Option("--no-logits", help="Do not record the router's logits.")
    ] = False,
    no_gate_inputs: Annotated[
        bool, typer.Option("--no-gate-inputs", help="Do not record gate inputs and embeddings.")
    ] = False,
    gate_dtype: Annotated[
        str, typer.Option("--gate-dtype", metavar="f32|f16", help="Type of stored gate inputs.")
    ] = "f32",
    text: Annotated[
        bool, typer.Option("--text", help="Print the generated text to stdout.")
    ] = False,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a model on prompts and record how it routes every token.

    Without --stream all experts are in memory; with it they are read from the file when the
    router asks for them. The model runs on the CPU, without flash attention.
    """
    console = Console(quiet, verbose)
    others = {
        "--stream": stream,
        "--cache-mib": cache_mib,
        "--io-threads": io_threads,
        "--direct-io": direct_io,
        "--chunk": chunk,
        "--ctx": ctx,
        "--n-expert-used": n_expert_used,
    }
    if check_backend(backend, model, others):
        assert model is not None
        record_folder(
            console,
            model,
            _prompts(prompt or [], prompt_file, prompts, model),
            output,
            threads=threads,
            is_printed=text,
            n_decode=n_decode,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            ignore_eos=ignore_eos,
            chat=chat,
            logits=not no_logits,
            gate_inputs=not no_gate_inputs,
            gate_dtype=gate_dtype,
            force=force,
        )
        return
    with ending_at_once():
        from tracekit.datasets import model_path
        from tracekit.engine import Capture, Generation, Options, Sampling, load
        from tracekit.engine import record as record_run

        load()  # finds tracekit_engine in a checkout that is not installed
        from tracekit_engine import binding

        binding.load()

    options = Options(
        threads=threads,
        n_expert_used=n_expert_used,
        chunk=chunk,
        streaming=_streaming(stream, cache_mib, io_threads, direct_io),
        capture=Capture(not no_logits, not no_gate_inputs, not no_gate_inputs, gate_dtype),
    )
    generation = Generation(
        n_decode=n_decode,
        sampling=Sampling(temperature, top_p, seed),
        ignore_eos=ignore_eos,
        chat=chat,
        n_ctx=ctx,
    )
    turns = _prompts(prompt or [], prompt_file, prompts, model)
    printer = _TextPrinter(console) if text else None
    progress = _Progress(ProgressLine(shown=False) if text else console.progress_line())
    try:
        recording = record_run(
            model or model_path(),
            turns,
            output,
            options=options,
            generation=generation,
            force=force,
            command=["tracekit", *sys.argv[1:]],
            on_progress=progress.show,
            on_piece=printer.print if printer else None,
            on_start=lambda session: _describe_start(console, session),
        )
    except KeyboardInterrupt:
        progress.clear()
        if progress.has_begun:
            note_what_is_left(console, output)
        raise
    progress.clear()
    if printer:
        printer.end()
    console.note(summary(recording.path, recording.progress, recording.ended))
    if recording.agreement is not None and not recording.agreement.holds:
        console.warn(recording.agreement.sentence(str(recording.path)))
    console.note(next_command(recording.path, recording.cache_bytes))
    if recording.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _streaming(
    stream: bool, cache_mib: str | None, io_threads: int | None, direct_io: bool
) -> "Streaming | None":
    from tracekit.engine import Streaming

    if not stream:
        for option, given in (
            ("--cache-mib", cache_mib),
            ("--io-threads", io_threads),
            ("--direct-io", direct_io),
        ):
            if given is not None and given is not False:
                raise UsageError(f"{option} says how experts are streamed; add --stream.")
        return None
    lanes = 4 if io_threads is None else io_threads
    if cache_mib is None or cache_mib == "auto":
        return Streaming(None, lanes, direct_io)
    try:
        size = spelt(cache_mib, float)
    except ValueError:
        size = -1.0
    if not 0 <= size <= MAX_MIB:
        raise UsageError(
            f"--cache-mib takes a size in MiB from 0 to 1e12, or auto, not {shown(cache_mib)}."
        )
    return Streaming(round(size * MIB), lanes, direct_io)


def _prompts(
    texts: list[str], file: Path | None, jsonl: Path | None, model: Path | None
) -> "list[Prompt]":
    from tracekit.engine import Prompt, load

    load()  # finds tracekit_engine in a checkout that is not installed
    from tracekit_engine.prompts import from_file, from_jsonl

    if str(file) == str(jsonl) == "-":
        raise UsageError("Standard input is either --prompt-file or --prompts; name a file.")
    turns = [Prompt(text) for text in texts]
    if file is not None:
        turns.append(from_file(file))
    if jsonl is not None:
        turns += from_jsonl(jsonl)
    if not turns:
        hint = f"{model} was taken for the model. " if model and not model.exists() else ""
        raise UsageError(f"{hint}There is no prompt; give one with -p, --prompt-file or --prompts.")
    return turns


def _describe_start(console: Console, session: "Session") -> None:
    file, store = session.file, session.store
    console.detail(
        f"{file.name}: {file.arch}, {len(session.plan.layers)} MoE layers of {file.n_expert} "
        f"experts, {file.quantisation}; context {session.options.n_ctx}, prompts in chunks of "
        f"{session.chunk}, {session.threads} compute threads."
    )
    if store is None:
        return
    cycle = session.token_cycle
    console.detail(
        f"Expert cache {store.budget / MIB:,.2f} MiB; a token touches {cycle / MIB:,.2f} MiB."
    )
    if store.budget < cycle:
        console.warn(
            f"The cache of {store.budget / MIB:,.2f} MiB is smaller than what one token touches, "
            f"{cycle / MIB:,.2f} MiB: most experts are evicted before the next token needs them."
        )


class _TextPrinter:
    """Prints tokens as they come, each turn on a new line, as long as stdout takes them."""

    def __init__(self, console: Console):
        self._console = console
        self._turn = 0
        self._is_open = True

    def print(self, turn: int, piece: bytes) -> None:
        self._write(b"\n" * (turn - self._turn) + piece)
        self._turn = turn

    def end(self) -> None:
        self._write(b"\n")

    def _write(self, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except OSError as error:
            self._is_open = False
            silence(1)
            self._console.warn(
                f"The text is no longer printed ({error.strerror}); the recording goes on."
            )


class _Progress:
    """Draws how far the recording is.

    Attributes
    ----------
    has_begun : bool
        Whether a pass was recorded.
    """

    def __init__(self, line: ProgressLine):
        self.has_begun = False
        self._line = line

    def show(self, progress: "Progress") -> None:
        self.has_begun = True
        label = f"turn {progress.turn + 1}/{progress.turns}"
        done, total = progress.decoded_in_turn, progress.n_decode
        self._line.draw(label, done, total, rates(progress))

    def clear(self) -> None:
        self._line.clear()

"""``tracekit record``: run a model and write its routing to a trace.

Options go in; the engine records; what it recorded and the next command to type go to stderr.
"""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.console import INTERRUPTED, Console, ending_at_once
from tracekit.cli.options import ForceOption, QuietOption, VerboseOption, number, whole
from tracekit.cli.record_options import options_of, prompts_of
from tracekit.cli.record_rounds import record_in_turns, rounds_of
from tracekit.cli.record_task import Task
from tracekit.cli.record_text import next_command
from tracekit.cli.record_transformers import BACKENDS, check_backend, record_folder


def record(
    context: typer.Context,
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
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            metavar="N",
            parser=whole("--rounds"),
            help="Record this configuration and the one of --versus N times each, in the order A B B A: "
            "run-a1.trace, run-b1.trace … for -o run.trace.",
        ),
    ] = None,
    versus: Annotated[
        str | None,
        typer.Option(
            "--versus",
            metavar="OPTIONS",
            help="With --rounds: by which options the second configuration differs, such as "
            "'--cache-mib 2000'; '' records the same one twice, as a check.",
        ),
    ] = None,
    pause: Annotated[
        float | None,
        typer.Option(
            "--pause",
            metavar="SECONDS",
            parser=number("--pause"),
            help="With --rounds: how long the device may cool down between two runs. Default: 10.",
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a model on prompts and record how it routes every token.

    Without --stream all experts are in memory; with it they are read from the file when the
    router asks for them. The model runs on the CPU, without flash attention.
    """
    console = Console(quiet, verbose)
    given = {
        "threads": threads,
        "n_expert_used": n_expert_used,
        "chunk": chunk,
        "stream": stream,
        "cache_mib": cache_mib,
        "io_threads": io_threads,
        "direct_io": direct_io,
        "no_logits": no_logits,
        "no_gate_inputs": no_gate_inputs,
        "gate_dtype": gate_dtype,
    }
    others = {
        "--stream": stream,
        "--cache-mib": cache_mib,
        "--io-threads": io_threads,
        "--direct-io": direct_io,
        "--chunk": chunk,
        "--ctx": ctx,
        "--n-expert-used": n_expert_used,
        "--rounds": rounds,
        "--versus": versus,
        "--pause": pause,
    }
    if check_backend(backend, model, others):
        assert model is not None
        record_folder(
            console,
            model,
            prompts_of(prompt or [], prompt_file, prompts, model),
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
    in_turns = rounds_of(context, given, rounds=rounds, versus=versus, pause=pause, text=text)
    with ending_at_once():
        from tracekit.datasets import model_path
        from tracekit.engine import Generation, Sampling, load

        load()  # finds tracekit_engine in a checkout that is not installed
        from tracekit_engine import binding

        binding.load()

    generation = Generation(
        n_decode=n_decode,
        sampling=Sampling(temperature, top_p, seed),
        ignore_eos=ignore_eos,
        chat=chat,
        n_ctx=ctx,
    )
    options = options_of(given)
    turns = prompts_of(prompt or [], prompt_file, prompts, model)
    task = Task(console, model or model_path(), turns, generation, force, text)
    if in_turns is not None:
        record_in_turns(task, options, in_turns, output)
        return
    recording = task.record(options, output)
    console.note(next_command(recording.path, recording.cache_bytes))
    if recording.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)

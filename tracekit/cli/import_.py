"""``tracekit import``: turn other tools' files into a ``.trace`` directory."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import MAX_MIB, ForceOption, QuietOption, VerboseOption, number
from tracekit.cli.output import check_free
from tracekit.datasets import resolve
from tracekit.figures import MIB, exact_mib, in_bytes
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from tracekit.trace import Trace

# What somebody with arrays writes; README and docs/formats.md show the same lines.
EPILOG = """\
With arrays at hand, these lines write a file to import; docs/formats.md has the same as CSV, Parquet and JSON lines:

\b
  import numpy as np
  experts = np.stack(chosen)  # of each token, integers [layers, k]; the first 512 are the prompt
  np.savez("run.npz", experts=experts, prompt_lengths=[512], lengths=[len(experts)], n_expert=64)
  # then: tracekit import run.npz --expert-mib 3.5 -o run.trace
"""


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            parser=resolve,
            help="The file to import; several files of one run, or a folder of them.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="X.trace", help="The trace to write.", show_default=False
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="PATH",
            parser=resolve,
            help="The model's GGUF file, its safetensors file or folder, or its config.json: gives "
            "sizes, numbers and routers.",
            show_default=False,
        ),
    ] = None,
    expert_mib: Annotated[
        float | None,
        typer.Option(
            "--expert-mib", metavar="M", help="Size of one expert in MiB, if FILE does not say it."
        ),
    ] = None,
    n_expert: Annotated[
        int | None,
        typer.Option(
            "--n-expert",
            metavar="N",
            help="Experts of a MoE layer. Default: as FILE says, else its largest id + 1.",
        ),
    ] = None,
    n_layer: Annotated[
        int | None,
        typer.Option(
            "--n-layer",
            metavar="N",
            help="Layers of the model, those without experts too. Default: as FILE says, else up "
            "to the last that routed.",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", metavar="K", help="Experts that a token uses at a layer."),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(
            "--axes",
            metavar="tokens,layers,k",
            help="What the axes of an array of experts are, in their order.",
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            "--chunk",
            metavar="N",
            help="Most tokens of a prefill pass, if FILE does not show its passes. Default: each "
            "prompt is one pass.",
        ),
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            help="With --model: keep the embedding of each token too, for embedding-gate. FILE has to "
            "say the ids of its tokens.",
        ),
    ] = False,
    cache_mib: Annotated[
        float | None,
        typer.Option(
            "--cache-mib",
            metavar="MIB",
            parser=number("--cache-mib"),
            help="Size of the engine's expert cache, if FILE does not say it.",
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            metavar="FILE",
            parser=resolve,
            help="The .metrics file of BigMoeOnEdge beside a route trace: the time of each decoded token.",
            show_default=False,
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Turn other tools' files into a trace.

    The format is recognised by what is in the files, not by their names; `tracekit formats` lists
    what can be read. What a file says of the engine's cache is compared with a replay, and the trace
    keeps what came out.
    """
    console = Console(quiet, verbose)
    check_free(output, force)
    from tracekit.formats import ImportOptions, import_any, is_read_whole
    from tracekit.formats.metrics import with_metrics
    from tracekit.model_files import read_model
    from tracekit.trace import write_trace
    from tracekit.trace.folder import check_target

    check_target(output, force)
    if cache_mib is not None and not 0 <= cache_mib <= MAX_MIB:
        raise UsageError(f"--cache-mib takes a size in MiB from 0 to 1e12, not {cache_mib:g}.")
    sizes = None if model is None else read_model(model, top_k)
    for warning in sizes.warnings if sizes else ():
        console.warn(warning)
    options = ImportOptions(
        model=sizes,
        expert_mib=expert_mib,
        n_expert=n_expert,
        n_layer=n_layer,
        top_k=top_k,
        axes=None if axes is None else tuple(axes.replace(" ", "").split(",")),
        chunk=chunk,
        embeddings=embeddings,
    )
    cache_bytes = None if cache_mib is None else round(cache_mib * MIB)
    ask = ""
    if is_read_whole(files):
        trace = open_trace(files, console, cache_bytes, options=options)
        if metrics is not None:
            trace = with_metrics(trace, metrics)
        write_trace(trace, output, force=force)
        facts, n_rows, has_residency = trace.facts, trace.n_rows, trace.has("residency")
        if has_residency and trace.budget_bytes is None:
            ask = _ask_for_budget(trace, files[0])
    elif metrics is not None:
        raise UsageError(
            f"--metrics goes with a route trace of BigMoeOnEdge or a .trace, and {files[0]} is neither; "
            "leave it out."
        )
    else:
        done = import_any(files, output, options, force=force, cache_bytes=cache_bytes)
        for warning in done.warnings:
            console.warn(warning)
        facts, n_rows, has_residency = done.facts, done.n_rows, "residency" in done.columns
    n_bytes = sum(part.stat().st_size for part in output.iterdir())
    console.note(f"Wrote {output}: {n_rows} routings, {in_bytes(n_bytes)}.")
    for name, how in facts.inferred.items():
        console.note(f"{files[0]} does not say {_WORDS.get(name, name)}: {how}.")
    if ask:
        console.note(ask)
    validate = ["--validate"] if has_residency and not ask else []
    console.note(f"Next: {shlex.join(['tracekit', 'replay', str(output), *validate])}")


_WORDS = {
    "n_expert": "how many experts a layer has",
    "n_layer": "how many layers the model has",
    "expert_bytes": "how large an expert is",
    "passes": "its passes",
    "phases": "what is prompt",
    "layers": "which layers these are",
    "turns": "which tokens are of one request",
    "experts": "which experts were selected",
    "prompts": "where prompts begin",
    "steps": "the positions of tokens",
}


def _ask_for_budget(trace: "Trace", file: Path) -> str:
    """Ask for the budget that the file does not give; name the one that fits what it recorded."""
    from tracekit.replaying.reasons import fitting_budget
    from tracekit.routing.residency import sizes_are_known

    text = f"{file} does not say how large the engine's cache was; give --cache-mib"
    fits = fitting_budget(trace) if sizes_are_known(trace) else None
    if fits is None:
        return f"{text}."
    size = exact_mib(fits)
    return f"{text} {size}, if it was that: lru at {size} MiB gives what was recorded."

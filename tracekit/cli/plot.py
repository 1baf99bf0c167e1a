"""``tracekit plot``: one picture of a trace, or the numbers behind it."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from tracekit.cli import completion, options
from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace, open_trace_or_counts
from tracekit.cli.options import (
    BypassOption,
    ForceOption,
    JobsOption,
    OptionalTraceArgument,
    QuietOption,
    SeedOption,
)
from tracekit.cli.output import check_file, to_csv, to_parquet, written_whole
from tracekit.figures import settings
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PICTURES = ("png", "svg", "pdf")
NUMBERS = ("csv", "parquet")
OPTIONS = {
    "policies": "--policy",
    "params": "--param",
    "predictors": "--predictor",
    "cache_bytes": "--cache-mib",
    "bypass": "--bypass",
    "horizon": "--horizon",
    "named": "--named",
}

KindArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="KIND",
        help="What to draw; --list names the kinds.",
        show_default=False,
        autocompletion=completion.kinds,
    ),
]


def plot(
    kind: KindArgument = None,
    trace: OptionalTraceArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write: .png, .svg or .pdf for the picture, .csv or .parquet for the "
            "numbers behind it.",
        ),
    ] = None,
    list_kinds: Annotated[bool, typer.Option("--list", help="List the kinds and exit.")] = False,
    policy: Annotated[
        list[str] | None,
        options.policy_option("Cache policies to draw; `recorded` is what the engine found."),
    ] = None,
    predictor: Annotated[list[str] | None, options.predictor_option("Predictors to draw.")] = None,
    cache_mib: Annotated[list[str] | None, options.cache_mib_option()] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.FIELD=VALUE[,VALUE…]",
            help="A parameter of a policy to draw. Several values draw the policy once for each.",
        ),
    ] = None,
    horizon: Annotated[
        list[str] | None,
        typer.Option(metavar="N[,N…]", help="How many MoE layers ahead the predictors look."),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(metavar="M[,M…]", help="How many experts the predictors name."),
    ] = None,
    bypass: BypassOption = False,
    dpi: Annotated[
        int,
        typer.Option(metavar="N", parser=options.whole("--dpi"), help="Dots per inch of a .png."),
    ] = 150,
    seed: SeedOption = 0,
    jobs: JobsOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Draw one picture of a trace, or write its numbers."""
    if list_kinds:
        _print_kinds()
        return
    if kind is None or trace is None:
        raise UsageError("plot needs a KIND and a TRACE; `tracekit plot --list` names the kinds.")
    from tracekit.plots.kinds import KINDS, Choices, find_kind

    if kind not in KINDS and str(trace) in KINDS:
        raise UsageError(f"The kind comes first: tracekit plot {trace} {kind}.")
    chosen = find_kind(kind)
    if output is None:
        raise UsageError(f"plot needs a file to draw into, for instance -o {kind}.png.")
    form = output.suffix.removeprefix(".").lower()
    if form not in PICTURES + NUMBERS:
        raise UsageError(
            f"plot cannot write {output.name!r}; its name must end in one of "
            f"{', '.join('.' + ending for ending in PICTURES + NUMBERS)}."
        )
    if not 30 <= dpi <= 1200:
        raise UsageError(f"--dpi takes a whole number from 30 to 1200, not {dpi}.")
    check_file(output, force, [trace])
    console = Console(quiet)

    from tracekit.plots import add_caption, caption

    choices = Choices(
        policies=options.split("--policy", policy) if policy else None,
        params=options.params(param or []),
        predictors=options.split("--predictor", predictor) if predictor else None,
        cache_bytes=options.cache_bytes(cache_mib) if cache_mib else None,
        horizon=options.whole_numbers("--horizon", horizon) if horizon else None,
        named=options.whole_numbers("--named", named) if named else None,
        bypass=bypass,
        seed=seed,
        jobs=jobs,
    )
    for name, option in OPTIONS.items():
        if getattr(choices, name) and name not in chosen.reads:
            raise UsageError(f"plot {kind} takes no {option}; leave it out.")
    opened = (open_trace_or_counts if chosen.takes_counts else open_trace)(trace, console)
    data = chosen.compute(opened, choices)
    for sentence in data.attrs.get("notes", []):
        console.note(sentence)
    with written_whole(output) as file:
        if form in PICTURES:
            axes = chosen.draw(data)
            add_caption(axes, caption(opened))
            # A plot that was given no Axes made a whole figure for itself.
            _save(cast("Figure", axes.figure), file, form, dpi)
        else:
            records = _records(data)
            file.write(to_csv(records).encode() if form == "csv" else to_parquet(records))
    console.note(f"Wrote {output}.")


def _records(data: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows of a frame; the parameters of a policy as text, ``seed=0``, and no label."""
    data = data.drop(columns="label", errors="ignore")
    if "params" in data:
        data = data.assign(params=data["params"].map(settings))
    records: list[dict[str, Any]] = data.astype(object).where(data.notna(), None).to_dict("records")
    return records


def _save(figure: "Figure", file: BinaryIO, form: str, dpi: int) -> None:
    from matplotlib import rc_context

    # Without a date, and with names that are not random, the same data give the same file.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
    with rc_context({"svg.hashsalt": "tracekit"}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)


def _print_kinds() -> None:
    from tracekit.plots.kinds import KINDS

    width = max(map(len, KINDS))
    for kind in KINDS.values():
        print(f"{kind.name:<{width}}  {kind.summary}")

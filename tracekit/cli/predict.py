"""``tracekit predict``: how much of the routing is known before it runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli import options
from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import (
    ForceOption,
    FormatOption,
    JobsOption,
    OutputOption,
    QuietOption,
    SeedOption,
    TraceArgument,
    TrainOption,
    VerboseOption,
)
from tracekit.cli.output import Output

if TYPE_CHECKING:
    from tracekit.scoring.rows import Row


def predict(
    trace: TraceArgument,
    predictor: Annotated[
        list[str] | None,
        options.predictor_option(
            "Predictors to score, or module:Class of your own. Default: all that the trace has "
            "the columns for."
        ),
    ] = None,
    horizon: Annotated[
        list[str] | None,
        typer.Option(
            "--horizon",
            metavar="N[,N…]",
            help="How many MoE layers ahead to predict; `token`: before the token has begun. "
            "Default: 1.",
        ),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(
            "--named",
            metavar="M[,M…]",
            help="Also give the recall when the predictor names M experts instead of k.",
        ),
    ] = None,
    per_layer: Annotated[
        bool,
        typer.Option("--per-layer", help="Also write a row for each layer to CSV and Parquet."),
    ] = False,
    train: TrainOption = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME.FIELD=VALUE",
            help="A parameter of a predictor, for instance layer-lag.lag=12.",
        ),
    ] = None,
    seed: SeedOption = 0,
    jobs: JobsOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Score how well predictors foresee each layer's routing."""
    console = Console(quiet, verbose)
    destination = Output(console, output, format, force, inputs=[trace, train])
    predictors = options.split("--predictor", predictor) if predictor else None
    horizons = options.horizons(horizon) if horizon else [1]
    more_named = options.whole_numbers("--named", named) if named else None
    params = options.settings(param or [])
    from tracekit.formats import open_any
    from tracekit.scoring import predict as run

    opened = open_trace(trace, console)
    with console.progress("predict") as progress:
        result = run(
            opened,
            predictors,
            horizons,
            more_named,
            train=open_any(train) if train else None,
            params=params,
            seed=seed,
            jobs=jobs,
            progress=progress,
        )
    console.detail(f"seed {seed}")
    destination.write(
        table=result.to_text,
        document=result.to_json,
        records=lambda: records(result.rows, per_layer),
        notes=result.notes,
    )


def records(rows: "Sequence[Row]", per_layer: bool) -> list[dict[str, Any]]:
    """Return the flat records of CSV and Parquet, with a record for each layer if asked.

    The record of a layer repeats the predictor and its horizon; in that of a whole row `layer` is
    null. A column has one type, so all horizons are texts where one is ``token``.
    """
    from tracekit.predictors import TOKEN

    as_text = any(row.horizon == TOKEN for row in rows)
    found: list[dict[str, Any]] = []
    for row in rows:
        horizon = str(row.horizon) if as_text and row.horizon is not None else row.horizon
        identity = {"predictor": row.predictor, "horizon": horizon}
        if not per_layer:
            found.append(row.to_flat() | identity)
            continue
        found.append({**row.to_flat(), **identity, "layer": None})
        found += [identity | layer.to_flat() for layer in row.layers]
    return found

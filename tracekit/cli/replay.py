"""``tracekit replay``: replay a trace through cache policies, and score predictors on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli import completion, options
from tracekit.cli.console import Console
from tracekit.cli.names import find_class
from tracekit.cli.opening import open_trace
from tracekit.cli.options import (
    BypassOption,
    CacheSlotsOption,
    ForceOption,
    FormatOption,
    FromDiskOption,
    JobsOption,
    OutputOption,
    QuietOption,
    SeedOption,
    SkipOption,
    TraceArgument,
    TrainOption,
    VerboseOption,
    WarmOption,
)
from tracekit.cli.output import Output, flat_records
from tracekit.datasets import resolve
from tracekit.trace.build import shown
from tracekit.trace.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from tracekit.replaying import ReplayResult
    from tracekit.scoring import PredictResult
    from tracekit.timing import Fit


def replay(
    trace: TraceArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME[,NAME…]",
            help="Cache policies and predictors, or module:Class of your own; `tracekit policies` "
            "lists them. Default: lru, belady and bound; with --validate, lru.",
            autocompletion=completion.policies_and_predictors,
        ),
    ] = None,
    cache_mib: Annotated[
        list[str] | None,
        options.cache_mib_option(
            "Default: the recorded budget, else 10, 25 and 50 % of all expert bytes."
        ),
    ] = None,
    cache_fraction: Annotated[
        list[str] | None,
        typer.Option(
            "--cache-fraction",
            metavar="F[,F…]",
            help="Cache budgets as fractions of all expert bytes.",
        ),
    ] = None,
    cache_slots: CacheSlotsOption = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME.FIELD=VALUE[,VALUE…]",
            help="A parameter of a policy or predictor. Several values replay a policy once for "
            "each.",
        ),
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Also give the figures of each layer.")
    ] = False,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="Compare each decode lookup with the recorded one, at the recorded budget.",
        ),
    ] = False,
    bypass: BypassOption = False,
    from_disk: FromDiskOption = False,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="Also replay lossy policies statically: count which misses of plain LRU they "
            "would drop.",
        ),
    ] = False,
    flash_mib_s: Annotated[
        float | None,
        typer.Option(
            "--flash-mib-s",
            metavar="R",
            parser=options.number("--flash-mib-s"),
            help="Also give the time per decoded token for which flash that reads R MiB/s is busy: a "
            "rougher thing than --time. Default with --time: as the fit says.",
        ),
    ] = None,
    time: Annotated[
        bool,
        typer.Option(
            "--time",
            help="Also predict how long a decoded token takes, from the times that TRACE carries.",
        ),
    ] = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="RUN.trace",
            parser=resolve,
            help="With --time: take the times of this recording of the same model on the device.",
        ),
    ] = None,
    repeated: Annotated[
        list[Path] | None,
        typer.Option(
            "--repeated",
            metavar="RUN2.trace",
            parser=resolve,
            help="With --time: the same configuration and tokens recorded again, which shows how much "
            "runs differ. May be given several times.",
        ),
    ] = None,
    ram_mib: Annotated[
        float | None,
        typer.Option(
            "--ram-mib",
            metavar="M",
            parser=options.number("--ram-mib"),
            help="With --time: memory of the device.",
        ),
    ] = None,
    mem_floor_mib: Annotated[
        float | None,
        typer.Option(
            "--mem-floor-mib",
            metavar="M",
            parser=options.number("--mem-floor-mib"),
            help="With --time: the least memory that was free while the times were recorded.",
        ),
    ] = None,
    train: TrainOption = None,
    skip: SkipOption = 0,
    warm: WarmOption = None,
    pin_from: Annotated[
        Path | None,
        typer.Option(
            "--pin-from",
            metavar="FILE",
            parser=resolve,
            help="Take the experts to pin from this file, which counts how often each was used, or "
            "from another trace. Default: learned as --train says.",
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
    """Replay a trace through cache policies.

    The table gives for each policy and cache budget how many expert lookups hit and how many bytes
    were read. A predictor named in --policy is scored, as `tracekit predict` does.
    """
    console = Console(quiet, verbose)
    destination = Output(
        console,
        output,
        format,
        force,
        inputs=[trace, train, warm, pin_from, calibrate, *(repeated or [])],
    )
    budgets_mib = options.cache_mib(cache_mib) if cache_mib else None
    budgets_fraction = options.cache_fraction(cache_fraction) if cache_fraction else None
    slots = options.cache_slots(cache_slots) if cache_slots else None
    settings = options.settings(param or [])
    from tracekit.formats import open_any
    from tracekit.replaying import DEFAULT_POLICIES
    from tracekit.replaying import replay as run

    default = ("lru",) if validate else DEFAULT_POLICIES
    names = options.split("--policy", policy) if policy else default
    policies, predictors = _by_kind(names)
    predictor_settings = _of_predictors(settings, predictors)
    params = options.several({k: v for k, v in settings.items() if k not in predictor_settings})
    if params and not policies:
        owner = _owner(next(iter(params)))
        raise UsageError(f"A parameter is set for {shown(owner)}, which is not replayed here.")
    if not policies and (cache_slots or skip or warm or pin_from or time):
        raise UsageError(
            "--cache-slots, --skip, --warm, --pin-from and --time are for cache policies, and none is "
            "replayed; leave them out, or name one with --policy."
        )
    if static:
        params |= _dynamic_and_static(policies)
    if not time and (calibrate or repeated or ram_mib is not None or mem_floor_mib is not None):
        raise UsageError(
            "--calibrate, --repeated, --ram-mib and --mem-floor-mib are for --time; add it, or leave "
            "them out."
        )
    opened = open_trace(trace, console)
    learned_on = open_any(train) if train else None
    warmed_by = open_any(warm) if warm else None
    replayed = scored = None
    start = perf_counter()
    if policies:
        fitted: Fit | bool = False
        if time:
            from tracekit.timing import fit

            fitted = fit(
                open_any(calibrate) if calibrate else opened,
                repeated=[open_any(path) for path in repeated or ()],
                ram_mib=ram_mib,
                mem_floor_mib=mem_floor_mib,
            )
        with console.progress("replay") as progress:
            replayed = run(
                opened,
                policies,
                cache_mib=budgets_mib,
                cache_fraction=budgets_fraction,
                cache_slots=slots,
                params=params,
                seed=seed,
                jobs=jobs,
                bypass=bypass,
                per_layer=per_layer,
                validate=validate,
                flash_mib_s=flash_mib_s,
                time=fitted,
                train=learned_on,
                skip=skip,
                warm=warmed_by,
                pin_from=pin_from,
                from_disk=from_disk or None,
                progress=progress,
            )
    if predictors:
        from tracekit.scoring import predict

        try:
            with console.progress("predict") as progress:
                scored = predict(
                    opened,
                    predictors,
                    train=learned_on,
                    params=predictor_settings,
                    seed=seed,
                    jobs=jobs,
                    progress=progress,
                )
        except MissingDataError as error:
            if replayed is None:
                raise
            replayed.notes.append(f"Left out: {error}")
    console.detail(f"seed {seed}; took {perf_counter() - start:.2f} s")
    _write(destination, replayed, scored, per_layer)


def _by_kind(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide `names` into policies and predictors.

    Raises
    ------
    UsageError
        A name is neither a policy nor a predictor; the sentence gives the nearest match.
    """
    from tracekit.policies import POLICIES, Policy

    if all(name in POLICIES for name in names):
        return list(names), []
    policies: list[str] = []
    predictors: list[str] = []
    for name in names:
        (policies if issubclass(find_class(name), Policy) else predictors).append(name)
    return policies, predictors


def _owner(param: str) -> str:
    return param.rpartition(".")[0]


def _of_predictors(settings: Mapping[str, str], predictors: Sequence[str]) -> dict[str, str]:
    """Return the settings of `predictors`: of what the user calls them, or of their own names."""
    if not predictors:
        return {}
    from tracekit.predictors import PREDICTORS

    owners = {*predictors, *(PREDICTORS.find(name).name for name in predictors)}
    return {key: value for key, value in settings.items() if _owner(key) in owners}


def _dynamic_and_static(policies: Sequence[str]) -> dict[str, list[str]]:
    """Return the parameters that replay lossy policies both dynamically and statically.

    Raises
    ------
    UsageError
        None of `policies` has the parameter ``static``.
    """
    from tracekit.policies import POLICIES

    lossy = [name for name in policies if hasattr(POLICIES.find(name).Params(), "static")]
    if not lossy:
        raise UsageError("--static is for policies that drop experts, such as drop-cold; add one.")
    return {f"{name}.static": ["false", "true"] for name in lossy}


def _write(
    destination: Output,
    replayed: "ReplayResult | None",
    scored: "PredictResult | None",
    per_layer: bool,
) -> None:
    results = [result for result in (replayed, scored) if result is not None]
    destination.write(
        table=lambda: "\n\n".join(result.to_text() for result in results),
        document=lambda: _document(results),
        records=lambda: _records(replayed, scored, per_layer),
        notes=_notes(results),
    )


def _notes(results: "Sequence[ReplayResult | PredictResult]") -> list[str]:
    """Return what is to be said of the results; the trace's warnings were printed when it opened."""
    printed = results[0].trace.warnings
    return list(dict.fromkeys(n for result in results for n in result.notes if n not in printed))


def _document(results: "Sequence[ReplayResult | PredictResult]") -> dict[str, Any]:
    documents = [result.to_json() for result in results]
    document = documents[0]
    for more in documents[1:]:
        document = {
            **document,
            "config": {**document["config"], **more["config"]},
            "notes": list(dict.fromkeys([*document["notes"], *more["notes"]])),
            "results": [*document["results"], *more["results"]],
        }
    return document


def _records(
    replayed: "ReplayResult | None", scored: "PredictResult | None", per_layer: bool
) -> list[dict[str, Any]]:
    from tracekit.cli.predict import records

    rows = []
    if replayed is not None:
        identity = ("policy", "params", "cache_bytes", "cache_mib", "cache_fraction", "cache_slots")
        rows += flat_records(replayed.records, identity)
    if scored is not None:
        rows += records(scored.rows, per_layer)
    return rows

"""``tracekit replay``: replay traces through cache policies, and score predictors on them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from tracekit.cli import completion, options
from tracekit.cli.console import Console
from tracekit.cli.names import find_class
from tracekit.cli.options import (
    BypassOption,
    CacheSlotsOption,
    ForceOption,
    FormatOption,
    FromDiskOption,
    JobsOption,
    OnOption,
    OutputOption,
    QuietOption,
    SeedOption,
    SkipOption,
    TracesArgument,
    TrainOption,
    VerboseOption,
    WarmOption,
)
from tracekit.cli.output import Output
from tracekit.cli.replay_output import write
from tracekit.cli.replay_task import Task
from tracekit.datasets import resolve
from tracekit.figures import joined
from tracekit.trace.build import shown
from tracekit.trace.errors import UsageError


def replay(
    trace: TracesArgument,
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
    on: OnOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Replay a trace through cache policies.

    The table gives for each policy and cache budget how many expert lookups hit and how many bytes
    were read. A predictor named in --policy is scored, as `tracekit predict` does. Of several traces
    each has its own table; rows of CSV and Parquet name their trace.
    """
    console = Console(quiet, verbose)
    destination = Output(
        console,
        output,
        format,
        force,
        inputs=[*trace, train, warm, pin_from, calibrate, *(repeated or [])],
    )
    budgets: dict[str, Any] = {
        "cache_mib": options.cache_mib(cache_mib) if cache_mib else None,
        "cache_fraction": options.cache_fraction(cache_fraction) if cache_fraction else None,
        "cache_slots": options.cache_slots(cache_slots) if cache_slots else None,
    }
    settings = options.settings(param or [])
    from tracekit.formats import open_any
    from tracekit.replaying import DEFAULT_POLICIES

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
    if len(trace) > 1:
        _refuse_missing(trace)
    if on is not None:
        _refuse_on_workers(
            {
                "predictors": bool(predictors),
                "--per-layer": per_layer,
                "--validate": validate,
                "--from-disk": from_disk,
                "--flash-mib-s": flash_mib_s is not None,
                "--time": time,
                "--train": train is not None,
                "--pin-from": pin_from is not None,
            },
        )
        from tracekit.cli.replay_on import on_workers, run_of

        asked = run_of(policies, budgets, params, bypass, skip)
        write(destination, on_workers(on, jobs, console, trace, asked, warm, seed))
        return
    start = perf_counter()
    learned_on = open_any(train) if train else None
    task = Task(
        console,
        policies,
        predictors,
        replayed_with={
            **budgets,
            "params": params,
            "seed": seed,
            "jobs": jobs,
            "bypass": bypass,
            "per_layer": per_layer,
            "validate": validate,
            "flash_mib_s": flash_mib_s,
            "train": learned_on,
            "skip": skip,
            "warm": open_any(warm) if warm else None,
            "pin_from": pin_from,
            "from_disk": from_disk or None,
        },
        scored_with={
            "train": learned_on,
            "params": predictor_settings,
            "seed": seed,
            "jobs": jobs,
        },
        fitted_with={
            "calibrate": calibrate,
            "repeated": repeated or (),
            "ram_mib": ram_mib,
            "mem_floor_mib": mem_floor_mib,
        }
        if time
        else None,
    )
    parts = [task.said_of(path, f" {path.name}" if len(trace) > 1 else "") for path in trace]
    console.detail(f"seed {seed}; took {perf_counter() - start:.2f} s")
    write(destination, parts)


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


def _refuse_on_workers(asked: Mapping[str, bool]) -> None:
    """Refuse what workers do not do.

    Raises
    ------
    UsageError
        It is asked for.
    """
    found = [what for what, is_asked in asked.items() if is_asked]
    if found:
        raise UsageError(
            f"--on only replays cache policies at budgets: leave out {joined(found)}, or leave out --on."
        )


def _refuse_missing(paths: Sequence[Path]) -> None:
    """Refuse a path where nothing is, before the first of several traces is replayed.

    Raises
    ------
    TracekitError
    """
    from tracekit.formats import open_any
    from tracekit.trace.urls import UrlPath

    for path in paths:
        if not isinstance(path, UrlPath) and not path.exists():
            open_any(path)


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

"""Options that several commands share, and how their text becomes values.

In comes what the user typed, out come numbers and names, or a sentence that says what is wrong.
Nothing here knows what a command does with them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tracekit.cli import completion
from tracekit.cli.output import FORMATS
from tracekit.datasets import resolve
from tracekit.figures import MIB
from tracekit.trace.build import shown, spelt
from tracekit.trace.errors import UsageError

N = TypeVar("N", int, float)

MAX_MIB = 10**12  # in bytes, this is still a 64-bit number


def _whole(option: str, least: int) -> Callable[[str], int]:
    def parse(given: str | int) -> int:
        text = str(given)  # typer sends the default through here too
        try:
            number = spelt(text, int)
        except ValueError:
            number = least - 1
        if number < least:
            digits = " of up to 18 digits" if text.isdecimal() and len(text) > 18 else ""
            raise UsageError(
                f"{option} takes a whole number{digits}, {least} or more, not {shown(text)}."
            )
        return number

    return parse


def whole(option: str) -> Callable[[str], int]:
    """Make a parser of a whole number; whoever takes the number says which are allowed."""
    return _spelt(option, int, "a whole number")


def number(option: str) -> Callable[[str], float]:
    """Make a parser of a number; whoever takes the number says which are allowed."""
    return _spelt(option, float, "a number")


def _spelt(option: str, kind: type[N], what: str) -> Callable[[str], N]:
    def parse(given: str | N) -> N:
        text = str(given)
        try:
            return spelt(text, kind)
        except ValueError as error:
            raise UsageError(f"{option} takes {what}, not {shown(text)}.") from error

    return parse


_A_TRACE = (
    "A .trace directory, a file that `tracekit import` reads, the URL of one, or bundled:NAME."
)


def _trace_argument(metavar: str, help: str) -> Any:
    return typer.Argument(
        metavar=metavar,
        parser=resolve,
        help=help,
        show_default=False,
        autocompletion=completion.traces,
    )


TraceArgument = Annotated[Path, _trace_argument("TRACE", _A_TRACE)]
TracesArgument = Annotated[
    list[Path], _trace_argument("TRACE…", f"{_A_TRACE} Several are replayed one by one.")
]
OptionalTraceArgument = Annotated[Path | None, _trace_argument("TRACE", _A_TRACE)]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="|".join(FORMATS),
        help="Format of the result. Default: by the ending of -o, else a table.",
        autocompletion=completion.one_of(*FORMATS),
    ),
]
TableOrJsonOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="table|json",
        help="Format of the result. Default: by the ending of -o, else a table.",
        autocompletion=completion.one_of("table", "json"),
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Write the result to this file, not to stdout."
    ),
]
BypassOption = Annotated[
    bool,
    typer.Option(
        "--bypass",
        help="The engine may drop at once what it has just used: it stages what it reads in a scratch "
        "buffer that is not charged to the cache.",
    ),
]
FromDiskOption = Annotated[
    bool,
    typer.Option(
        "--from-disk",
        help="Read TRACE piece by piece and hold none of it in memory; figures are the same. This is "
        "the default for a trace that would take a quarter of this machine's memory.",
    ),
]
TrainOption = Annotated[
    Path | None,
    typer.Option(
        "--train",
        metavar="TRACE",
        parser=resolve,
        help="Learn on this trace of the same model. Default: on the other turns of TRACE.",
        autocompletion=completion.traces,
    ),
]
SkipOption = Annotated[
    int,
    typer.Option(
        "--skip",
        metavar="N",
        parser=_whole("--skip", 0),
        help="Replay the first N decoded tokens of each turn, and leave them out of all decode figures.",
    ),
]
WarmOption = Annotated[
    Path | None,
    typer.Option(
        "--warm",
        metavar="TRACE",
        parser=resolve,
        help="Replay this trace of the same model first, to fill the cache; it counts in no figure.",
        autocompletion=completion.traces,
    ),
]
CacheSlotsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cache-slots",
        metavar="N[,N…]",
        help="Cache budgets in experts of every MoE layer: a layer-* policy holds so many of each, any "
        "other as many bytes as they take in all.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print no notes, warnings or progress.")
]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Print details to stderr.")]
SeedOption = Annotated[
    int,
    typer.Option(metavar="N", parser=_whole("--seed", 0), help="Seed of all random draws."),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=_whole("--jobs", 1), help="Threads to use. Default: all cores."
    ),
]


OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="dask|ADDRESS",
        help="Run on dask: on workers of this machine, or of the scheduler at this address, as in "
        "tcp://host:8786.",
    ),
]


def policy_option(help: str) -> Any:
    """Return the option ``--policy``, which takes names of policies."""
    return typer.Option(
        "--policy", metavar="NAME[,NAME…]", help=help, autocompletion=completion.policies
    )


def predictor_option(help: str) -> Any:
    """Return the option ``--predictor``, which takes names of predictors."""
    return typer.Option(
        "--predictor", metavar="NAME[,NAME…]", help=help, autocompletion=completion.predictors
    )


def cache_mib_option(default: str = "") -> Any:
    """Return the option ``--cache-mib``; `default` is the sentence that names its default."""
    help = f"Cache budgets in MiB (2^20 bytes). {default}".strip()
    return typer.Option("--cache-mib", metavar="MIB[,MIB…]", help=help)


def split(option: str, values: Sequence[str]) -> list[str]:
    """Split the repeated and comma-separated values of `option`; keep each once, in order.

    Raises
    ------
    UsageError
        A value is empty: there is nothing between two commas.
    """
    parts = dict.fromkeys(part.strip() for text in values for part in text.split(","))
    if "" in parts:
        raise UsageError(f"{option} has an empty value in {shown(','.join(values))}.")
    return list(parts)


def whole_numbers(option: str, values: Sequence[str]) -> list[int]:
    """Read the whole numbers of 1 or more of a repeated or comma-separated option."""
    return [_whole(option, 1)(text) for text in split(option, values)]


def horizons(values: Sequence[str]) -> list[Any]:
    """Read ``--horizon``: whole numbers of 1 or more, or ``token``."""
    from tracekit.predictors import TOKEN  # it loads all predictors

    parts = split("--horizon", values)
    for text in parts:
        if text != TOKEN and not any(c.isdecimal() for c in text):
            raise UsageError(f"--horizon takes whole numbers or {TOKEN!r}, not {shown(text)}.")
    return [text if text == TOKEN else _whole("--horizon", 1)(text) for text in parts]


def _numbers(option: str, values: Sequence[str], what: str, most: float) -> list[float]:
    numbers = []
    for text in split(option, values):
        try:
            number = spelt(text, float)
        except ValueError:
            number = -1.0
        if not 0 <= number <= most:
            raise UsageError(f"{option} takes {what}, not {shown(text)}.")
        numbers.append(number)
    return numbers


def cache_mib(values: Sequence[str]) -> list[float]:
    """Read ``--cache-mib``: sizes in MiB, 0 is legal."""
    return _numbers("--cache-mib", values, "sizes in MiB from 0 to 1e12", MAX_MIB)


def cache_bytes(values: Sequence[str]) -> list[int]:
    """Read ``--cache-mib`` into whole bytes."""
    return [round(mib * MIB) for mib in cache_mib(values)]


def cache_fraction(values: Sequence[str]) -> list[float]:
    """Read ``--cache-fraction``: fractions of the expert bank."""
    what = "fractions of the expert bank from 0 to 1 (0.5 is half of it)"
    return _numbers("--cache-fraction", values, what, 1)


def cache_slots(values: Sequence[str]) -> list[int]:
    """Read ``--cache-slots``: numbers of experts, 0 is legal."""
    return [_whole("--cache-slots", 0)(text) for text in split("--cache-slots", values)]


def settings(values: Sequence[str]) -> dict[str, str]:
    """Read ``--param NAME.FIELD=VALUE`` into ``{"NAME.FIELD": value}``; a value is taken as it is.

    Raises
    ------
    UsageError
        A text does not have this form, or a field is set twice.
    """
    result: dict[str, str] = {}
    for text in values:
        target, _, value = text.partition("=")
        name, _, field = target.rpartition(".")
        if not (name and field and value):
            raise UsageError(
                f"--param takes NAME.FIELD=VALUE, as in prefetch.spec_max=2, not {shown(text)}."
            )
        if target in result:
            raise UsageError(
                f"--param sets {target} twice; give several values in one: {target}=1,2."
            )
        result[target] = value
    return result


def several(settings: Mapping[str, str]) -> dict[str, list[str]]:
    """Split each value of the settings of policies at its commas: several values, several results.

    Raises
    ------
    UsageError
        There is nothing between two commas.
    """
    return {target: split(f"--param {target}", [value]) for target, value in settings.items()}


def params(values: Sequence[str]) -> dict[str, list[str]]:
    """Read ``--param NAME.FIELD=VALUE[,VALUE…]`` into ``{"NAME.FIELD": [value, …]}``."""
    return several(settings(values))

"""The table of times of a replay, and the lines above it: what the fit says whatever is replayed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tracekit.figures import NONE, counted, percent, printable
from tracekit.replaying.rows import Row
from tracekit.replaying.times import RowTime
from tracekit.table import Column, Part, Table
from tracekit.timing.prediction import per_second

# Where reading is less than this share of a token, a larger cache buys little.
COMPUTE_BOUND = 0.1
_NOISE = "~"
_OUTSIDE = "x"
_COMPUTES = "c"


class HasRow(Protocol):
    """Something that a table is made of, and its row."""

    @property
    def row(self) -> Row:
        """The row."""


T = TypeVar("T", bound=HasRow)


def time_parts(
    leading: Sequence[Column[T]], labelled: Sequence[T], fitted: Mapping[str, Any]
) -> list[Part]:
    """Return the lines about the fit, the table of times, and what its marks mean.

    Parameters
    ----------
    leading : sequence of Column
        What a row is of.
    labelled : sequence
        The rows, as `leading` takes them.
    fitted : mapping
        ``ReplayResult.config["time"]``.
    """
    if fitted["refused"] is not None:
        return ["time of a decoded token: no prediction, see the notes below"]
    times = [each.row.time for each in labelled if each.row.time is not None]
    columns: list[Column[T]] = [
        *leading,
        _column("typical\ntokens/s", typical),
        _column("95 %\ninterval\ntokens/s", interval),
    ]
    if any(time.mean_ms is not None for time in times):
        columns.append(Column("mean\ntokens/s", lambda each: _mean(each.row)))
    columns += [
        _column("slowest\n1 in 20\nms", lambda time: _ms(time.p95_ms)),
        _column("reading\n% of\ntoken ", _reading),
    ]
    if any(time.tok_s_above_lru is not None for time in times):
        columns.append(_column("typical\ntokens/s\nagainst\nLRU, % ", _gain))
    return [_head(fitted), Table(columns, labelled), "\n".join(_legend(times, fitted))]


def _column(header: str, text: Callable[[RowTime], str]) -> Column[T]:
    return Column(header, lambda each: NONE if each.row.time is None else text(each.row.time))


def _head(fitted: Mapping[str, Any]) -> str:
    ceiling = fitted["ceiling_tok_s"]
    share = fitted["point_of_hit_rate_share"]
    lines = [
        f"time of a decoded token: {fitted['a_ms']:.4g} ms + {fitted['b_ms_per_mib']:.4g} ms for each "
        f"MiB read, fitted to {counted(fitted['tokens'], 'token')} of {fitted['calibrated_on']}",
    ]
    if ceiling is not None:
        lines.append(
            f"no cache and no policy can exceed {ceiling:.3g} tokens/s: what a token takes that reads "
            "nothing"
        )
    of_token = f", {percent(share, 1)} % of the recorded typical token" if share is not None else ""
    lines.append(
        f"one point of hit rate is worth {fitted['point_of_hit_rate_ms']:.3g} ms{of_token}"
    )
    return "\n".join(map(printable, lines))


def _rate(ms: float | None) -> str:
    rate = per_second(ms)
    return NONE if rate is None else f"{rate:#.3g}".removesuffix(".")


def _ms(ms: float | None) -> str:
    return NONE if ms is None else f"{ms:.4g}"


def typical(time: RowTime) -> str:
    """Write tokens a second: one figure, a range or a limit, with a mark where it is extrapolated."""
    if time.at_least_ms is not None:
        return f"≤ {_rate(time.at_least_ms)}"
    if time.typical_fastest_ms is not None and time.typical_slowest_ms is not None:
        slow, fast = _rate(time.typical_slowest_ms), _rate(time.typical_fastest_ms)
        return f"≤ {fast}" if slow == fast else f"{slow} … {fast}"
    outside = _OUTSIDE if time.is_extrapolated and time.typical_ms is not None else ""
    return f"{_rate(time.typical_ms)}{outside}"


def interval(time: RowTime) -> str:
    """Write the 95 % interval of tokens a second."""
    if time.typical_low_ms is None or time.typical_high_ms is None:
        return NONE
    return f"{_rate(time.typical_high_ms)} … {_rate(time.typical_low_ms)}"


def _mean(row: Row) -> str:
    ms = None if row.time is None else row.time.mean_ms
    return f"≤ {_rate(ms)}" if row.is_bound and ms is not None else _rate(ms)


def _reading(time: RowTime) -> str:
    share = time.reading_share
    if share is None:
        return f"{NONE} "
    return f"{100 * share:.0f}{_COMPUTES if share < COMPUTE_BOUND else ' '}"


def _gain(time: RowTime) -> str:
    gain = time.tok_s_above_lru
    if gain is None:
        return f"{NONE} "
    at_most = "≤ " if time.typical_fastest_ms is not None else ""
    return f"{at_most}{100 * gain:+.1f}{' ' if time.is_measurable else _NOISE}"


def _legend(times: Sequence[RowTime], fitted: Mapping[str, Any]) -> list[str]:
    spread = 100 * fitted["run_spread"]
    runs = fitted["runs"]
    whence = f"found from {runs} runs" if runs > 1 else "assumed, --repeated RUN.trace measures it"
    lines = [
        "typical: the median token; interval: of the typical token of another run, with a spread "
        f"between runs of {spread:.2g} % ({whence})"
    ]
    if any(time.is_measurable is False for time in times):
        lines.append(
            f"{_NOISE} not measurable: less than twice that spread, so a run of each would not show it"
        )
    if any(time.is_extrapolated and time.typical_ms is not None for time in times):
        lines.append(f"{_OUTSIDE} extrapolated: the fitted run read no such bytes")
    if any(time.reading_share is not None and time.reading_share < COMPUTE_BOUND for time in times):
        lines.append(f"{_COMPUTES} compute-bound: a larger cache buys under 10 % of a token")
    if any(time.at_least_ms is not None for time in times):
        lines.append("≤ typical: at most; memory would run short")
    if any(time.typical_fastest_ms is not None for time in times):
        lines.append(
            "a policy that acts on a prediction gets a range or a limit, from waiting for all that is "
            "read ahead to hiding it behind computing; what the prediction itself costs is not in it"
        )
    return lines

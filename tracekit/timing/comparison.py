"""`compare`: recordings of two configurations, made in turns, token by token beside each other.

In: traces and the order of their configurations. Out: a `Comparison` with its sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from tracekit.figures import MIB, NONE, joined
from tracekit.table import Column, render
from tracekit.timing.effect import START_TOKENS, Effect, effect_of
from tracekit.timing.facts import mem_floor_mib
from tracekit.trace import Trace, UsageError
from tracekit.trace.errors import MissingDataError, TraceError
from tracekit.trace.facts import CAPTURES
from tracekit.trace.schema import DECODE

ORDERS = ("ABBA", "ABAB")
_PARTS = {
    "total_ms": "difference of the mean token",
    "bytes_ms": "of that, what its bytes explain",
    "typical_ms": "the rest of the typical token",
    "start_ms": f"the first {START_TOKENS} tokens beyond that",
    "stalls_ms": "slow tokens later on",
}


@dataclass(frozen=True)
class ComparedRun:
    """One of the recordings.

    Attributes
    ----------
    name, configuration : str
        The trace's name; ``A`` or ``B``.
    cache_mib : float or None
        Of the engine that recorded it.
    typical_ms, mean_ms, read_mib : float
        The median and the mean token after the first ones; what the mean token read.
    against_all : float
        By which fraction its typical token takes longer than the same tokens do on average.
    mem_floor_mib : float or None
        The least memory that was available.
    """

    name: str
    configuration: str
    cache_mib: float | None
    typical_ms: float
    mean_ms: float
    read_mib: float | None
    against_all: float
    mem_floor_mib: float | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two configurations, run in turns on the same tokens.

    Attributes
    ----------
    runs : list of ComparedRun
        In the order they ran.
    effect : Effect
    b_ms_per_mib : float or None
        What a MiB costs, by the tokens of the first run of A; None where that cannot be said.
    n_tokens : int
        Decoded tokens of each run.
    notes : list of str
    """

    runs: list[ComparedRun]
    effect: Effect
    b_ms_per_mib: float | None
    n_tokens: int
    notes: list[str]

    @property
    def verdict(self) -> str:
        """What the runs show, in a sentence."""
        effect = self.effect
        size = f"{abs(100 * effect.change):.1f} % {'longer' if effect.change > 0 else 'less long'}"
        if effect.interval is None or effect.least_shown is None:
            return (
                f"The typical token of B takes {size} than that of A. One run of each shows no more: the "
                "same configuration run twice differs as well; record A B B A."
            )
        low, high = (f"{100 * end:+.1f}" for end in effect.interval)
        interval = f"95 % interval {low} to {high} %, from {len(self.runs)} runs"
        if effect.is_shown:
            return f"B is {effect.verdict}: its typical token takes {size} than that of A ({interval})."
        return (
            f"No difference is shown: the typical token of B takes {size} than that of A ({interval}). "
            f"With this scatter between runs, a difference of {100 * effect.least_shown:.1f} % would "
            "have been shown."
        )

    def to_text(self) -> str:
        """Return the table that ``tracekit compare`` prints."""
        runs: list[Column[ComparedRun]] = [
            Column("run", lambda r: r.name, left=True),
            Column("configuration", lambda r: r.configuration, left=True),
            Column("cache\nMiB", lambda r: NONE if r.cache_mib is None else f"{r.cache_mib:,.4g}"),
            Column("typical token\nms", lambda r: f"{r.typical_ms:.4g}"),
            Column("mean token\nms", lambda r: f"{r.mean_ms:.4g}"),
            Column(
                "read per token\nMiB", lambda r: NONE if r.read_mib is None else f"{r.read_mib:.4g}"
            ),
            Column("against all runs\n%", lambda r: f"{100 * r.against_all:+.1f}"),
        ]
        if any(run.mem_floor_mib is not None for run in self.runs):
            runs.append(
                Column(
                    "least memory\navailable MiB",
                    lambda r: NONE if r.mem_floor_mib is None else f"{r.mem_floor_mib:,.0f}",
                )
            )
        parts: list[Column[tuple[str, float]]] = [
            Column("B less A", lambda p: p[0], left=True),
            Column("ms", lambda p: f"{p[1]:+.3f}"),
        ]
        of_parts = [
            (words, getattr(self.effect.parts, name))
            for name, words in _PARTS.items()
            if name != "bytes_ms" or self.b_ms_per_mib is not None
        ]
        return "\n\n".join(
            [
                render(runs, self.runs),
                self.verdict,
                render(parts, of_parts),
                f"typical token: the median of the {self.n_tokens - START_TOKENS} tokens after the first "
                f"{START_TOKENS}; against all runs: the median over them of how much longer a token "
                "takes than the same token on average",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        effect = self.effect
        return {
            "schema": "tracekit.compare/1",
            "verdict": effect.verdict,
            "sentence": self.verdict,
            "change": effect.change,
            "interval": None if effect.interval is None else list(effect.interval),
            "least_shown": effect.least_shown,
            "tokens": self.n_tokens,
            "b_ms_per_mib": self.b_ms_per_mib,
            "parts": vars(effect.parts),
            "runs": [vars(run) for run in self.runs],
            "notes": self.notes,
        }


def compare(traces: Sequence[Trace], order: str = "ABBA") -> Comparison:
    """Compare two configurations that were recorded in turns, on the same prompts.

    Parameters
    ----------
    traces : sequence of Trace
        In the order in which they were recorded.
    order : {"ABBA", "ABAB"}
        Which configuration each of them is of; the pattern repeats. A linear drift over the runs
        cancels with A B B A.

    Raises
    ------
    UsageError
        There are fewer than two traces, one of them twice, or the order is unknown.
    MissingDataError
        A trace has no times.
    TraceError
        The tokens or the routings of two runs differ; the sentence says where they part.
    """
    if order not in ORDERS:
        raise UsageError(f"order takes {' or '.join(ORDERS)}, not {order!r}.")
    if len(traces) < 2:
        raise UsageError("compare needs at least two recordings: one of A and one of B.")
    is_b = np.array([letter == "B" for letter in islice(cycle(order), len(traces))])
    first, *others = traces
    wall = [_times(trace) for trace in traces]
    for r, times in enumerate(wall):
        if any(np.array_equal(times, earlier) for earlier in wall[:r]):
            raise UsageError(
                f"{traces[r].name} has the times of a run before it: the same recording is given twice; "
                "compare recordings that were made one after the other."
            )
    for other in others:
        _check_same(first, other)
    wall_ms = np.stack(wall)
    if wall_ms.shape[1] <= START_TOKENS:
        raise UsageError(
            f"The runs have {wall_ms.shape[1]} decoded tokens, of which the first {START_TOKENS} do not "
            "count; record more."
        )
    read = [_read_mib(trace) for trace in traces]
    known = [mib for mib in read if mib is not None]
    read_mib = np.stack(known) if len(known) == len(traces) else None
    slope, notes = _slope(first, wall_ms[0], read_mib)
    effect = effect_of(wall_ms, is_b, read_mib, slope)
    if len(traces) % 4 and len(traces) > 2 and order == "ABBA":
        notes.append(
            f"{len(traces)} runs are no whole number of A B B A, so a drift over the runs does not "
            "cancel."
        )
    notes += _of_capture(traces)
    runs = [
        ComparedRun(
            name=trace.name,
            configuration="B" if is_b[r] else "A",
            cache_mib=None if trace.budget_bytes is None else trace.budget_bytes / MIB,
            typical_ms=float(np.median(wall_ms[r, START_TOKENS:])),
            mean_ms=float(wall_ms[r].mean()),
            read_mib=None if read_mib is None else float(read_mib[r].mean()),
            against_all=float(np.expm1(effect.by_run[r])),
            mem_floor_mib=mem_floor_mib(trace),
        )
        for r, trace in enumerate(traces)
    ]
    return Comparison(runs, effect, slope, wall_ms.shape[1], notes)


def _of_capture(traces: Sequence[Trace]) -> list[str]:
    """Say which runs copied what others did not: that takes time, too."""
    captured = [trace.facts.captured for trace in traces]
    found = []
    for name, called in CAPTURES.items():
        having = [t.name for t, each in zip(traces, captured, strict=True) if name in (each or ())]
        if None not in captured and 0 < len(having) < len(traces):
            found.append(
                f"{called.capitalize()} were copied in {joined(having)} alone; what that took is part of "
                "the difference."
            )
    return found


def _times(trace: Trace) -> np.ndarray:
    """Return the time of each decoded token that stayed, float64 [T].

    Raises
    ------
    MissingDataError
        There is none, one is missing, or a pass has several tokens.
    """
    if trace.most_decoded_at_once > 1:
        raise MissingDataError(
            f"{trace.name} has decode passes of several tokens, whose times cannot be told apart; "
            "compare recordings of one token a pass."
        )
    columns = trace.steps(["phase", "wall_ms"]) if trace.has_steps("wall_ms") else {}
    wall = columns["wall_ms"][columns["phase"] == DECODE] if columns else np.empty(0)
    if not len(wall) or not (wall > 0).all():
        raise MissingDataError(
            f"{trace.name} does not give the time of every decoded token (wall_ms of steps.parquet), "
            "so it cannot be compared."
        )
    return np.asarray(wall)


def _read_mib(trace: Trace) -> np.ndarray | None:
    if not trace.has_steps("read_bytes"):
        return None
    columns = trace.steps(["phase", "read_bytes"])
    read = columns["read_bytes"][columns["phase"] == DECODE]
    return None if (read < 0).any() else np.asarray(read / MIB)


def _slope(
    trace: Trace, wall_ms: np.ndarray, read_mib: np.ndarray | None
) -> tuple[float | None, list[str]]:
    """Return what a MiB costs, by the tokens of a run, and what a reader has to know."""
    from tracekit.timing import fit

    if read_mib is None:
        return None, [
            "What bytes explain is not told apart: a run does not say what its tokens read."
        ]
    try:
        fitted = fit(wall_ms=wall_ms, read_bytes=read_mib[0] * MIB)
    except UsageError as error:
        return None, [f"What bytes explain is not told apart, by {trace.name}: {error}"]
    return float(fitted.b_ms_per_mib), []


def _check_same(first: Trace, other: Trace) -> None:
    """Refuse runs that did not decode the same tokens in the same way."""
    ours, theirs = first.facts.model, other.facts.model
    if any(getattr(ours, n) != getattr(theirs, n) for n in ("n_layer", "n_expert", "top_k")):
        raise TraceError(
            f"{other.name} is of another model than {first.name}; compare recordings of one model."
        )
    columns = ["turn", "step", "phase"]
    both = first.has_steps("token") and other.has_steps("token")
    a, b = (trace.steps([*columns, "token"] if both else columns) for trace in (first, other))
    n = min(len(a["turn"]), len(b["turn"]))
    different = np.zeros(n, np.bool_)
    for name in a:
        different |= a[name][:n] != b[name][:n]
    if different.any() or len(a["turn"]) != len(b["turn"]):
        at = int(different.argmax()) if different.any() else n
        longer = a if len(a["turn"]) > n or different.any() else b
        raise TraceError(
            f"{other.name} parts from {first.name} in turn {int(longer['turn'][at])}, step "
            f"{int(longer['step'][at])}: the tokens are others from there on, so their times cannot be "
            "compared; record the same prompts with the same seed."
        )
    x, y = (trace.routing(["turn", "step", "layer", "experts"]) for trace in (first, other))
    same = len(x["turn"]) == len(y["turn"])
    changed = (x["experts"] != y["experts"]).any(axis=1) if same else np.ones(1, np.bool_)
    if changed.any():
        row = int(changed.argmax())
        raise TraceError(
            f"{other.name} routes otherwise than {first.name} in turn {int(x['turn'][row])}, step "
            f"{int(x['step'][row])}, layer {int(x['layer'][row])}, so it does other work; compare runs "
            "that compute the same."
        )

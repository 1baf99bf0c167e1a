"""Findings about predictions: what keeping or reading ahead what they name would bring."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracekit.advice.findings import Finding, Number
from tracekit.advice.subject import Subject, number, rate
from tracekit.figures import counted, in_mib, joined, points
from tracekit.predictors import PREDICTORS
from tracekit.replaying import replay
from tracekit.replaying.rows import Row
from tracekit.routing.routers import Routers
from tracekit.scoring.usable import why_unusable

CANDIDATES = ("recall", "stale-gate", "recall-gate")
HORIZONS = (1, 2, 4)
ORACLE = "oracle"
# A change of hit rate below this is not worth a line of code.
_LITTLE = 0.005


def of_predictions(subject: Subject, policy: str) -> list[Finding]:
    """Return what a prediction would bring where `policy` evicts, or LRU if it cannot carry one."""
    trace = subject.trace
    base = subject.one("prefetch.base", policy if policy == "follow" else "lru")
    horizons = subject.params.get("prefetch.horizon") or [
        h for h in HORIZONS if h < len(trace.moe_layers)
    ]
    if not horizons:
        return []
    routers = Routers(trace)
    predictors = [
        name for name in subject.params.get("prefetch.predictor", ()) if name != ORACLE
    ] or [n for n in CANDIDATES if why_unusable(trace, routers, PREDICTORS.find(n)) is None]
    params: dict[str, Sequence[Any]] = {
        "prefetch.base": [base],
        "prefetch.predictor": [*predictors, ORACLE],
        "prefetch.horizon": horizons,
    }
    with_oracle = replace(subject, params=_without(subject.params, "prefetch.predictor"))
    rows, command = _replayed(with_oracle, [base, "prefetch"], params)
    alone, *ahead = rows
    found = [
        _of_predictor(
            subject, name, alone, [r for r in ahead if r.params["predictor"] == name], command
        )
        for name in predictors
    ]
    perfect = next(row for row in ahead if row.params["predictor"] == ORACLE)
    found.append(_of_oracle(alone, perfect, command))
    ahead_of = horizons[min(1, len(horizons) - 1)]
    return [*found, _of_retention(subject, policy, predictors[-1], ahead_of)]


def _without(params: Mapping[str, Sequence[Any]], name: str) -> dict[str, Sequence[Any]]:
    return {each: values for each, values in params.items() if each != name}


def _replayed(
    subject: Subject, policies: Sequence[str], params: dict[str, Sequence[Any]]
) -> tuple[list[Row], str]:
    """Replay policies at the budget; return the rows, and the command that prints them."""
    result = replay(
        subject.trace,
        list(dict.fromkeys(policies)),
        cache_bytes=[subject.budget],
        params=subject.params_of(policies, params),
        time=subject.fit or False,
        kept=subject.kept,
    )
    return result.rows, subject.replay(policies, [subject.budget], params)


def _of_predictor(
    subject: Subject, name: str, alone: Row, rows: Sequence[Row], command: str
) -> Finding:
    """Say what reading ahead by one predictor brings at each horizon."""
    horizons = [int(row.params["horizon"]) for row in rows]
    hits = [rate(row.hit_rate_decode) for row in rows]
    base = rate(alone.hit_rate_decode)
    n = subject.trace.n_decoded
    reads = [in_mib((row.read_bytes_decode or 0) / n) for row in rows]
    read_alone = in_mib((alone.read_bytes_decode or 0) / n)
    layers = f"{joined([str(h) for h in horizons])} {'layer' if horizons == [1] else 'layers'}"
    sentence = (
        f"Reading ahead what {name} names {layers} ahead, on {alone.policy}: {joined(hits)} of the "
        f"lookups hit instead of {base}, if every read arrives in time, and a token reads "
        f"{joined(reads)} instead of {read_alone}."
    )
    numbers = [number(base, alone, "hit_rate_decode", command)]
    numbers.append(number(read_alone, alone, "read_bytes_decode", command))
    for row, hit, read in zip(rows, hits, reads, strict=True):
        numbers.append(number(hit, row, "hit_rate_decode", command))
        numbers.append(number(read, row, "read_bytes_decode", command))
    in_time, timed = _of_time(alone, rows, command)
    return Finding("reading ahead", sentence + in_time, [*numbers, *timed])


def _of_time(alone: Row, rows: Sequence[Row], command: str) -> tuple[str, list[Number]]:
    """Say between which times the best horizon lies, if the times can say it."""
    known = [
        (row, row.time.typical_fastest_ms, row.time.typical_slowest_ms)
        for row in rows
        if row.time is not None
        and row.time.typical_fastest_ms is not None
        and row.time.typical_slowest_ms is not None
    ]
    if not known or alone.time is None or alone.time.typical_ms is None:
        return "", []
    row, fastest, slowest = min(known, key=lambda each: each[2])
    base = alone.time.typical_ms
    horizon = counted(int(row.params["horizon"]), "layer")
    verdict = (
        "it pays however the reads overlap with computing"
        if slowest < base
        else "it does not pay, however they overlap with computing"
        if fastest > base
        else "it pays only if the reads overlap with computing"
    )
    sentence = (
        f" At {horizon} ahead the typical token takes {fastest:.4g} to {slowest:.4g} ms instead of "
        f"{base:.4g}: {verdict}."
    )
    return sentence, [
        number(f"{fastest:.4g}", row, "typical_fastest_ms", command),
        number(f"{slowest:.4g}", row, "typical_slowest_ms", command),
        number(f"{base:.4g}", alone, "typical_ms", command),
    ]


def _of_oracle(alone: Row, perfect: Row, command: str) -> Finding:
    text = rate(perfect.hit_rate_decode)
    most = counted(int(perfect.params["spec_max"]), "expert")
    in_time, timed = _of_time(alone, [perfect], command)
    return Finding(
        "reading ahead",
        f"With a predictor that makes no mistake the same policy hits {text}; it reads at most {most} "
        f"ahead for a layer.{in_time}",
        [number(text, perfect, "hit_rate_decode", command), *timed],
    )


def _of_retention(subject: Subject, policy: str, predictor: str, horizon: int) -> Finding:
    """Say whether keeping what is predicted, without reading it, changes anything."""
    base = subject.one("retention.base", policy if policy == "follow" else "lru")
    predictor = subject.one("retention.predictor", predictor)
    params: dict[str, Sequence[Any]] = {
        "retention.base": [base],
        "retention.predictor": [predictor],
        "retention.horizon": [horizon],
    }
    (alone, kept), command = _replayed(subject, [base, "retention"], params)
    change = (kept.hit_rate_decode or 0.0) - (alone.hit_rate_decode or 0.0)
    texts = rate(kept.hit_rate_decode), rate(alone.hit_rate_decode)
    worth = "not worth building" if change < _LITTLE else "worth trying: it reads nothing"
    sentence = (
        f"Only keeping what {predictor} names, on {base}, is {worth}: {texts[0]} instead of {texts[1]} "
        f"({points(change)} points)."
    )
    numbers = [
        number(texts[0], kept, "hit_rate_decode", command),
        number(texts[1], alone, "hit_rate_decode", command),
    ]
    fastest = None if kept.time is None else kept.time.typical_fastest_ms
    before = None if alone.time is None else alone.time.typical_ms
    if fastest is not None and before is not None:
        sentence += f" The typical token takes {fastest:.4g} ms instead of {before:.4g}."
        numbers.append(number(f"{fastest:.4g}", kept, "typical_fastest_ms", command))
        numbers.append(number(f"{before:.4g}", alone, "typical_ms", command))
    return Finding("retention", sentence, numbers)

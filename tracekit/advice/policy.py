"""Findings about the policy: which of those that an engine can run is best, and what it gains."""

from dataclasses import dataclass
from typing import Any

from tracekit.advice.findings import Finding, Number
from tracekit.advice.subject import Subject, number, rate
from tracekit.analysis.closure import demand_policies
from tracekit.analysis.gains import Gain, gains_over
from tracekit.figures import in_mib, known, points
from tracekit.policies import load_policies
from tracekit.replaying import replay
from tracekit.replaying.rows import Row

_NOT_BUILT = ("lru", "random")


@dataclass(frozen=True, eq=False)
class Choice:
    """The policy that should evict, and the finding that says so.

    Attributes
    ----------
    policy : str
        ``lru`` where no other is worth building.
    best : str
        The one that hits most, be it worth building or not.
    finding : Finding
    """

    policy: str
    best: str
    finding: Finding


def of_policy(subject: Subject) -> Choice:
    """Return the best policy without a predictor at the budget, and whether it beats LRU."""
    names = [*demand_policies(), "bound"]
    result = replay(subject.trace, names, cache_bytes=[subject.budget], time=subject.fit or False)
    rows = {row.policy: row for row in result.rows}
    lru, bound = rows["lru"], rows["bound"]
    rivals = [
        row
        for row in result.rows
        if row.policy not in _NOT_BUILT and not row.is_bound and row.kept_to_budget
    ]
    best = max(rivals, key=lambda row: row.hit_rate_decode or 0.0)
    command = subject.replay(["lru", best.policy, "bound"], [subject.budget])
    loaded = load_policies([best.policy], subject.params_of([best.policy]))
    (gain,) = gains_over(subject.trace, loaded, cache_bytes=[subject.budget])
    texts = {row.policy: rate(row.hit_rate_decode) for row in (lru, best, bound)}
    numbers = [
        number(texts[row.policy], row, "hit_rate_decode", command) for row in (lru, best, bound)
    ]
    limit = (
        f" No policy that reads only on demand and keeps each load until it ends hits more than "
        f"{texts['bound']}."
    )
    if known(gain.ci95_low) and gain.ci95_low <= 0:
        return Choice(
            "lru",
            best.policy,
            Finding(
                "policy",
                f"Keep LRU: at {in_mib(subject.budget)} it hits {texts['lru']} of the lookups of decoded "
                f"tokens, and no other policy is shown to hit more; the best, {best.policy}, hits "
                f"{texts[best.policy]} ({_interval(gain)}).{limit}",
                [*numbers, *_of_gain(subject, gain)],
            ),
        )
    read, more = _of_bytes(subject, lru, best, command)
    in_time, timed = _of_time(lru, best, command)
    is_felt = best.time is None or best.time.is_measurable is not False
    opening = (
        f"Of the policies that need no predictor, build {best.policy}"
        if is_felt
        else f"Keep LRU: no policy is worth building for this. The best that needs no predictor is {best.policy}"
    )
    return Choice(
        best.policy if is_felt else "lru",
        best.policy,
        Finding(
            "policy",
            f"{opening}. At {in_mib(subject.budget)} it hits {texts[best.policy]} of the lookups of decoded "
            f"tokens where LRU hits {texts['lru']} ({_interval(gain)}), {read}.{in_time}{limit}",
            [*numbers, *_of_gain(subject, gain), *more, *timed],
        ),
    )


def _interval(gain: Gain) -> str:
    size = f"{points(gain.gain)} points"
    if not known(gain.ci95_low):
        return f"{size}; there are too few tokens for an interval"
    return f"{size}, 95 % interval {points(gain.ci95_low)} to {points(gain.ci95_high)}"


def _of_gain(subject: Subject, gain: Gain) -> list[Number]:
    command = subject.plot_gains(gain.policy)
    row: dict[str, Any] = {"policy": gain.policy, "cache_bytes": gain.cache_bytes}
    figures = {"gain": gain.gain, "ci95_low": gain.ci95_low, "ci95_high": gain.ci95_high}
    return [
        Number(points(value), value, column, row, command)
        for column, value in figures.items()
        if known(value)
    ]


def _of_bytes(subject: Subject, lru: Row, best: Row, command: str) -> tuple[str, list[Number]]:
    n = subject.trace.n_decoded
    texts = [in_mib((row.read_bytes_decode or 0) / n) for row in (best, lru)]
    numbers = [
        number(text, row, "read_bytes_decode", command)
        for text, row in zip(texts, (best, lru), strict=True)
    ]
    return f"and a token reads {texts[0]} instead of {texts[1]}", numbers


def _of_time(lru: Row, best: Row, command: str) -> tuple[str, list[Number]]:
    """Say what the policy is worth in time, if the times can say it."""
    time = best.time
    if time is None or time.tok_s_above_lru is None or lru.time is None or not time.typical_ms:
        return "", []
    text = f"{100 * time.tok_s_above_lru:+.1f} %"
    numbers = [
        number(text, best, "tok_s_above_lru", command),
        number(f"{time.typical_ms:.4g} ms", best, "typical_ms", command),
        number(f"{lru.time.typical_ms:.4g}", lru, "typical_ms", command),
    ]
    sentence = (
        f" The typical token would take {time.typical_ms:.4g} ms instead of "
        f"{lru.time.typical_ms:.4g}, {text} tokens a second"
    )
    if time.is_measurable:
        return f"{sentence}.", numbers
    return (
        f"{sentence}: less than two runs of one configuration differ, so it would not be felt.",
        numbers,
    )

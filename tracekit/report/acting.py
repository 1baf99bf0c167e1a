"""What acting on the routing buys: LRU beside the policies that act on a prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tracekit.analysis.gains import Gain, gains_over
from tracekit.figures import NONE, joined, known, points
from tracekit.policies import LRU, Follow, Prefetch, Retention
from tracekit.predictors import PREDICTORS, LearnedPredictor
from tracekit.replaying.inputs import Kept
from tracekit.report.accuracy import Accuracy, best_of, rivals
from tracekit.report.caching import Cache
from tracekit.report.words import mib, percent
from tracekit.routing.routers import Routers
from tracekit.scoring.rows import Row
from tracekit.scoring.usable import why_unusable
from tracekit.trace import Trace, TraceError

ORACLE = "oracle"
DEFAULT = Prefetch.Params().predictor
_NOTHING = "is not distinguishable from LRU here"
_LITTLE = "moves LRU's hit rate by less than 0.1 points"


@dataclass(frozen=True)
class GainTexts:
    """The texts of a policy beside LRU; `share` is the fraction behind its bar."""

    name: str
    details: str
    share: float
    decode: str
    gain: str
    interval: str
    demand: str
    ahead: str


@dataclass(frozen=True)
class Acting:
    """What policies that act on a prediction gain over LRU at one budget.

    Attributes
    ----------
    budget : str
    rows : list of GainTexts
        The table; the first row is of LRU, which the others are compared with.
    verdict : str or None
        What the figures come to.
    notes : list of str
        Whose predictions these are, and what is not tried here.
    lacks : str or None
        Why there are no figures.
    """

    budget: str = ""
    rows: list[GainTexts] = field(default_factory=list)
    verdict: str | None = None
    notes: list[str] = field(default_factory=list)
    lacks: str | None = None


@dataclass(frozen=True)
class Comparison:
    """What the verdict is about.

    Attributes
    ----------
    predictor : str
        What `retention` and `prefetch` act on.
    tried : sequence of str
        The predictors of which this one served prefetch best.
    lru, follow, retention, prefetch : Gain
    on_follow : Gain
        Prefetch with the same predictor, where `follow` evicts.
    perfect : sequence of Gain
        Prefetch on all that the next layer will select, by how much of that it reads.
    n_tokens : int
        Decoded tokens.
    """

    predictor: str
    tried: Sequence[str]
    lru: Gain
    follow: Gain
    retention: Gain
    prefetch: Gain
    on_follow: Gain
    perfect: Sequence[Gain]
    n_tokens: int


def compare_with_lru(
    trace: Trace, accuracy: Accuracy, cache: Cache, seed: int, kept: Kept | None = None
) -> Acting:
    """Compare retention and prefetch with LRU at the budget that the headline is about.

    They act on the predictor that they take by default where the trace can run it, and otherwise on
    the one, of those that were scored, with which prefetch does best. Guesses are taken from `kept`.
    """
    if cache.main is None:
        return Acting(lacks=cache.lacks)
    tried = _predictors(trace, accuracy.scored)
    if not tried:
        return Acting(lacks=accuracy.lacks or "No predictor that was scored can be acted on here.")
    horizon = _horizon(trace)
    perfect = _perfect(trace)
    runs = [
        LRU(),
        Follow(),
        *(Retention(Retention.Params(name, horizon)) for name in tried),
        *(Prefetch(Prefetch.Params(name, horizon)) for name in tried),
        *(Prefetch(Prefetch.Params(name, horizon, base="follow")) for name in tried),
        *perfect.values(),
    ]
    try:
        lru, follow, *gains = gains_over(
            trace, runs, cache_bytes=[cache.main], bypass=cache.bypass, seed=seed, kept=kept
        )
    except TraceError as error:
        return Acting(lacks=str(error))
    n = len(tried)
    retention, prefetch, on_follow = (
        dict(zip(tried, gains[first : first + n], strict=True)) for first in (0, n, 2 * n)
    )
    name = max(tried, key=lambda name: prefetch[name].hit_rate_decode)
    found = Comparison(
        predictor=name,
        tried=tried,
        lru=lru,
        follow=follow,
        retention=retention[name],
        prefetch=prefetch[name],
        on_follow=on_follow[name],
        perfect=gains[3 * n :],
        n_tokens=trace.n_decoded,
    )
    return Acting(
        mib(cache.main),
        [
            _texts(lru, "", found),
            _texts(follow, "", found),
            _texts(found.retention, name, found),
            _texts(found.prefetch, name, found),
            _texts(found.on_follow, f"{name}, base=follow", found),
            *(_texts(*each, found) for each in zip(found.perfect, perfect, strict=True)),
        ],
        verdict(found),
        _notes(accuracy.scored, name, horizon),
    )


def _predictors(trace: Trace, scored: Sequence[Row]) -> list[str]:
    if why_unusable(trace, Routers(trace), PREDICTORS.find(DEFAULT)) is None:
        return [DEFAULT]
    return [row.predictor for row in rivals(scored) if _in_time(row.predictor)]


def _in_time(name: str) -> bool:
    # One of the user's own is known here by its name only, which does not say where to find it.
    return name in PREDICTORS and PREDICTORS.find(name).in_time


def _perfect(trace: Trace) -> dict[str, Prefetch]:
    """Return prefetch on what will be selected: as much as by default, and all of it."""
    params = Prefetch.Params(ORACLE)
    found = {ORACLE: Prefetch(params)}
    if trace.top_k > params.spec_max:
        everything = replace(params, spec_max=trace.top_k)
        found[f"{ORACLE}, spec_max={trace.top_k}"] = Prefetch(everything)
    return found


def _horizon(trace: Trace) -> int:
    """Return how far ahead policies look by default, or as far as the model has layers."""
    return min(Prefetch.Params().horizon, max(len(trace.moe_layers) - 1, 1))


def _texts(of: Gain, details: str, found: Comparison) -> GainTexts:
    is_lru = of is found.lru
    low, high = of.ci95_low, of.ci95_high
    return GainTexts(
        name=of.policy,
        details=details,
        share=of.hit_rate_decode,
        decode=percent(of.hit_rate_decode),
        gain=NONE if is_lru else points(of.gain),
        interval=NONE if is_lru or not known(low) else f"{points(low)} to {points(high)}",
        demand=mib(of.demand_bytes_decode / found.n_tokens),
        ahead=mib(of.speculative_bytes_decode / found.n_tokens),
    )


def verdict(found: Comparison) -> str:
    """Say what the figures come to, and no more than their intervals allow."""
    sentences = [_of_acting(found), _of_follow(found), _of_perfect(found)]
    name = found.predictor
    if name != DEFAULT:
        others = len(found.tried) > 1
        best = f", the best for prefetch of {joined(list(found.tried))}," if others else ""
        sentences.append(
            f"{DEFAULT}, which retention and prefetch act on by default, cannot run on this trace; "
            f"{name}{best} stands in, and says nothing about {DEFAULT}."
        )
    return " ".join(sentences)


def _of_acting(found: Comparison) -> str:
    """Say what retention and prefetch do to LRU's hit rate, to its bytes and to its waiting."""
    of_retention, of_prefetch = _effect(found.retention), _effect(found.prefetch)
    subject = ", and prefetch"
    if of_retention == of_prefetch == _NOTHING:
        text = f"Neither retention nor prefetch with {found.predictor} is distinguishable from LRU here"
    elif of_retention == of_prefetch == _LITTLE:
        text = (
            f"Neither retention nor prefetch with {found.predictor} moves LRU's hit rate by "
            "0.1 points"
        )
    else:
        text = f"Retention with {found.predictor} {of_retention}; prefetch {of_prefetch}"
        subject = " and"
    base, waits = found.lru.demand_bytes_decode, found.prefetch.demand_bytes_decode
    ratio = (waits + found.prefetch.speculative_bytes_decode) / base if base else 1
    if f"{ratio:.2f}" != "1.00":
        text += f"{subject} reads {ratio:.2f} times as much as LRU"
    if of_prefetch not in (_NOTHING, _LITTLE):
        text += (
            f": if what it reads ahead arrives in time, a token waits for "
            f"{mib(waits / found.n_tokens)} instead of {mib(base / found.n_tokens)}"
        )
    return f"{text}."


def _of_follow(found: Comparison) -> str:
    """Say what a better eviction does without a prediction, and what reading ahead adds to it."""
    ahead, alone = found.on_follow, found.follow
    text = f"Without a prediction, the policy follow {_effect(alone)}"
    added = 100 * (ahead.hit_rate_decode - alone.hit_rate_decode)
    if round(added, 1) == 0:
        return f"{text}; reading ahead adds nothing to that."
    return (
        f"{text}; prefetch on follow comes to {percent(ahead.hit_rate_decode)}, which is "
        f"{abs(added):.1f} points {'more' if added > 0 else 'less'} than follow alone, and a token then "
        f"waits for {mib(ahead.demand_bytes_decode / found.n_tokens)}."
    )


def _of_perfect(found: Comparison) -> str:
    """Say what LRU gains if it reads the whole next layer ahead: a run, and no proven limit."""
    most = max(found.perfect, key=lambda gain: gain.hit_rate_decode)
    read = most.demand_bytes_decode + most.speculative_bytes_decode
    return (
        f"If all of the next layer were predicted and read ahead, LRU's "
        f"{percent(found.lru.hit_rate_decode)} would be {percent(most.hit_rate_decode)}, with "
        f"{mib(read / found.n_tokens)} still read for a token. That is what reading one layer ahead "
        "buys LRU; a policy that evicts otherwise may gain more."
    )


def _effect(of: Gain) -> str:
    """Say what a policy does to the hit rate of LRU, as far as its interval allows."""
    size = f"{abs(100 * of.gain):.1f} points"
    if not known(of.ci95_low):
        where = "above" if of.gain > 0 else "below"
        return f"is {size} {where} LRU, of too few tokens for an interval"
    if of.ci95_low <= 0 <= of.ci95_high:
        return _NOTHING
    if abs(of.gain) < 0.0005:
        return _LITTLE
    interval = f"(95 % interval {points(of.ci95_low)} to {points(of.ci95_high)})"
    return f"adds {size} {interval}" if of.gain > 0 else f"takes {size} off {interval}"


def _notes(scored: Sequence[Row], name: str, horizon: int) -> list[str]:
    predictor = PREDICTORS.find(name)
    notes = []
    if predictor.has_horizon:
        layers = "1 MoE layer" if horizon == 1 else f"{horizon} MoE layers"
        notes.append(
            f"{name} looks {layers} ahead, as policies do by default: such a guess is in hand when "
            "an engine evicts."
        )
    if issubclass(predictor, LearnedPredictor):
        notes.append(
            f"{name} guesses each turn from the others; of a single turn its first half trains, and "
            "nothing is guessed there."
        )
    best = best_of([row for row in scored if _in_time(row.predictor)])
    own = next((row for row in scored if row.predictor == name), None)
    if name == DEFAULT and best and own and best is not own:
        notes.append(
            f"Not tried here: {best.predictor}, which names more one layer ahead "
            f"({percent(best.slot_accuracy)}, not {percent(own.slot_accuracy)}); "
            f"`tracekit replay` does it with --policy prefetch "
            f"--param prefetch.predictor={best.predictor}."
        )
    return notes

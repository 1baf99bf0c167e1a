"""What acting on the routing buys: LRU beside the policies that act on a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracekit.analysis import hit_rate_gains
from tracekit.figures import NONE, joined, known, points
from tracekit.policies import LRU, Policy, Prefetch, Retention
from tracekit.predictors import PREDICTORS, LearnedPredictor
from tracekit.report.accuracy import Accuracy, best_of, rivals
from tracekit.report.caching import Cache
from tracekit.report.words import mib, percent
from tracekit.routing.routers import Routers
from tracekit.scoring.rows import Row as Scored
from tracekit.scoring.usable import why_unusable
from tracekit.trace import Trace, TraceError

Row = Mapping[str, Any]
ORACLE = "oracle"
DEFAULT = Prefetch.Params().predictor
_NOTHING = "is not distinguishable from LRU here"
_LITTLE = "moves LRU's hit rate by less than 0.1 points"


@dataclass(frozen=True)
class Acting:
    """What policies that act on a prediction gain over LRU at one budget.

    Attributes
    ----------
    budget : str
    rows : list of dict
        Texts of the table; the first is of LRU, which the others are compared with.
    verdict : str or None
        What the figures come to.
    notes : list of str
        Whose predictions these are, and what is not tried here.
    lacks : str or None
        Why there are none.
    """

    budget: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    verdict: str | None = None
    notes: list[str] = field(default_factory=list)
    lacks: str | None = None


def study(trace: Trace, accuracy: Accuracy, cache: Cache, seed: int) -> Acting:
    """Compare retention and prefetch with LRU at the budget that the headline is about.

    They act on the predictor that they take by default where the trace can run it, and otherwise on
    that of the scored ones with which prefetch does best.
    """
    if cache.main is None:
        return Acting(lacks=cache.lacks)
    tried = _predictors(trace, accuracy.scored)
    if not tried:
        return Acting(lacks=accuracy.lacks or "No predictor that was scored can be acted on here.")
    runs = _runs(trace, tried)
    try:
        frame = hit_rate_gains(trace, list(runs.values()), cache_bytes=[cache.main], seed=seed)
    except TraceError as error:
        return Acting(lacks=str(error))
    rows = dict(zip(runs, frame.to_dict("records"), strict=True))
    name = max(tried, key=lambda name: rows["prefetch", name]["hit_rate_decode"])
    shown = {run: row for run, row in rows.items() if run[1] not in tried or run[1] == name}
    n_tokens = trace.n_decoded
    return Acting(
        mib(cache.main),
        [_texts(*run, row, n_tokens) for run, row in shown.items()],
        _verdict(tried, name, list(shown.values()), n_tokens),
        _notes(accuracy.scored, name, _horizon(trace)),
    )


def _predictors(trace: Trace, scored: Sequence[Scored]) -> list[str]:
    if why_unusable(trace, Routers(trace), PREDICTORS.find(DEFAULT)) is None:
        return [DEFAULT]
    return [row.predictor for row in rivals(scored) if _in_time(row.predictor)]


def _in_time(name: str) -> bool:
    # One of the user's own is known here by its name only, which does not say where to find it.
    return name in PREDICTORS and PREDICTORS.find(name).in_time


def _runs(trace: Trace, tried: Sequence[str]) -> dict[tuple[str, str], Policy]:
    """Return what is compared, by policy and detail: LRU first, what knows the future last."""
    horizon = _horizon(trace)
    runs: dict[tuple[str, str], Policy] = {("lru", ""): LRU()}
    for name in tried:
        runs["retention", name] = Retention(Retention.Params(name, horizon))
        runs["prefetch", name] = Prefetch(Prefetch.Params(name, horizon))
    perfect = Prefetch.Params(ORACLE)
    runs["prefetch", ORACLE] = Prefetch(perfect)
    if trace.top_k > perfect.spec_max:
        most = replace(perfect, spec_max=trace.top_k)
        runs["prefetch", f"{ORACLE}, spec_max={most.spec_max}"] = Prefetch(most)
    return runs


def _horizon(trace: Trace) -> int:
    """Return how far ahead policies look by default, or as far as the model has layers."""
    return min(Prefetch.Params().horizon, max(len(trace.moe_layers) - 1, 1))


def _texts(policy: str, detail: str, row: Row, n_tokens: int) -> dict[str, Any]:
    base = policy == "lru"
    low, high = row["ci95_low"], row["ci95_high"]
    return {
        "name": policy,
        "details": detail,
        "share": row["hit_rate_decode"],
        "decode": percent(row["hit_rate_decode"]),
        "gain": NONE if base else points(row["gain"]),
        "interval": NONE if base or not known(low) else f"{points(low)} to {points(high)}",
        "demand": mib(row["demand_bytes_decode"] / n_tokens),
        "ahead": mib(row["speculative_bytes_decode"] / n_tokens),
    }


def _verdict(tried: Sequence[str], name: str, rows: Sequence[Row], n_tokens: int) -> str:
    lru, retention, prefetch, *perfect = rows
    kept, ahead = _effect(retention), _effect(prefetch)
    subject = ", and prefetch"
    if kept == ahead == _NOTHING:
        said = f"Neither retention nor prefetch with {name} is distinguishable from LRU here"
    elif kept == ahead == _LITTLE:
        said = f"Neither retention nor prefetch with {name} moves LRU's hit rate by 0.1 points"
    else:
        said = f"Retention with {name} {kept}; prefetch {ahead}"
        subject = " and"
    waits, base = prefetch["demand_bytes_decode"], lru["demand_bytes_decode"]
    ratio = (waits + prefetch["speculative_bytes_decode"]) / base if base else 1
    if f"{ratio:.2f}" != "1.00":
        said += f"{subject} reads {ratio:.2f} times as much as LRU"
    if ahead not in (_NOTHING, _LITTLE):
        said += (
            f": if what it reads ahead arrives in time, a token waits for {mib(waits / n_tokens)} "
            f"instead of {mib(base / n_tokens)}"
        )
    most = max(perfect, key=lambda row: row["hit_rate_decode"])
    still = mib((most["demand_bytes_decode"] + most["speculative_bytes_decode"]) / n_tokens)
    said += (
        f". If all of the next layer were predicted and read ahead, LRU's "
        f"{percent(lru['hit_rate_decode'])} would be {percent(most['hit_rate_decode'])}, with "
        f"{still} still read for a token: reading one layer ahead of LRU can buy no more."
    )
    if name != DEFAULT:
        best = f", the best for prefetch of {joined(list(tried))}," if len(tried) > 1 else ""
        said += (
            f" {DEFAULT}, which retention and prefetch act on by default, cannot run on this trace; "
            f"{name}{best} stands in, and says nothing about {DEFAULT}."
        )
    return said


def _effect(row: Row) -> str:
    """Say what a policy does to the hit rate of LRU, as far as its interval allows."""
    gain, low, high = row["gain"], row["ci95_low"], row["ci95_high"]
    size = f"{abs(100 * gain):.1f} points"
    if not known(low):
        where = "above" if gain > 0 else "below"
        return f"is {size} {where} LRU, of too few tokens for an interval"
    if low <= 0 <= high:
        return _NOTHING
    if abs(gain) < 0.0005:
        return _LITTLE
    interval = f"(95 % interval {points(low)} to {points(high)})"
    return f"adds {size} {interval}" if gain > 0 else f"takes {size} off {interval}"


def _notes(scored: Sequence[Scored], name: str, horizon: int) -> list[str]:
    predictor = PREDICTORS.find(name)
    said = []
    if predictor.has_horizon:
        layers = "1 MoE layer" if horizon == 1 else f"{horizon} MoE layers"
        said.append(
            f"{name} looks {layers} ahead, as policies do by default: such a guess is in hand when "
            "an engine evicts."
        )
    if issubclass(predictor, LearnedPredictor):
        said.append(
            f"{name} guesses each turn from the others; of a single turn its first half trains, and "
            "nothing is guessed there."
        )
    best = best_of([row for row in scored if _in_time(row.predictor)])
    own = next((row for row in scored if row.predictor == name), None)
    if name == DEFAULT and best and own and best is not own:
        said.append(
            f"Not tried here: {best.predictor}, which names more one layer ahead "
            f"({percent(best.slot_accuracy)}, not {percent(own.slot_accuracy)}); "
            f"`tracekit replay` does it with --policy prefetch "
            f"--param prefetch.predictor={best.predictor}."
        )
    return said

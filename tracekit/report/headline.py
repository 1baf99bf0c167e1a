"""The figures that stand first: a few large ones, and sentences that say what they mean."""

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.figures import known
from tracekit.report.accuracy import best_of
from tracekit.report.acting import Acting
from tracekit.report.caching import Cache
from tracekit.report.overview import Figure, sizes_known
from tracekit.report.words import mib, percent
from tracekit.scoring.rows import Row
from tracekit.trace import Trace


def figures(trace: Trace, accuracy: Sequence[Row], cache: Cache) -> list[Figure]:
    """Return the large figures, as far as the trace gives them."""
    found = []
    if sizes_known(trace):
        note = f"of {mib(trace.bank_bytes)} of experts"
        found.append(Figure("One token cycle", mib(trace.token_cycle_bytes), note))
    at_main = _at_main(cache)
    if "lru" in at_main:
        rate = percent(at_main["lru"]["hit_rate_decode"])
        found.append(Figure("LRU hit rate, decode", rate, f"with {mib(cache.main)} of cache"))
    if "bound" in at_main:
        rate = percent(at_main["bound"]["hit_rate_decode"])
        found.append(
            Figure(
                "No policy that reads only on demand exceeds", rate, "decode, at the same budget"
            )
        )
    best = best_of(accuracy)
    if best:
        found.append(Figure("Slots named early", percent(best.slot_accuracy), f"by {best.label}"))
    return found


def _at_main(cache: Cache) -> dict[str, dict[str, Any]]:
    return {r["policy"]: r for r in cache.records if r["cache_bytes"] == cache.main}


def sentences(trace: Trace, accuracy: Sequence[Row], cache: Cache, acting: Acting) -> list[str]:
    """Return what the figures say, in words."""
    return [
        *_of_cache(trace, cache),
        *filter(None, [acting.verdict]),
        *_of_accuracy(trace, accuracy),
    ]


def _of_cache(trace: Trace, cache: Cache) -> list[str]:
    at_main, main = _at_main(cache), cache.main
    lru = at_main.get("lru")
    if lru is None or main is None or not known(lru["hit_rate_decode"]):
        return []
    which = "the recorded budget" if main == trace.budget_bytes else "a budget"
    said = (
        f"With {which} of {mib(main)}, {percent(main / trace.bank_bytes)} of all experts and "
        f"{main / trace.token_cycle_bytes:.3g} token cycles, "
        f"global LRU finds {percent(lru['hit_rate_decode'])} of the decode lookups resident "
        f"({percent(lru['hit_rate_cumulative'])} of all, prompts included)"
    )
    gap = lru["gap_to_bound"]
    if known(gap):
        said += (
            "; the most that any policy which reads only on demand could gain on that total is "
            f"{100 * gap:.1f} points"
        )
    return [f"{said}.{_of_rivals(cache, lru)}"]


def _of_rivals(cache: Cache, lru: Mapping[str, Any]) -> str:
    """Say which other policy of LRU's kind is best, and which only seems so."""
    alike = {
        policy.name
        for policy in cache.policies
        if not (policy.offline or policy.lossy or policy.needs_predictor or policy.speculative)
    }
    rivals = [r for name, r in _at_main(cache).items() if name in alike - {"lru"}]
    # The bound holds for what keeps to its budget, prompts included, but for the batch in hand.
    kept = [r for r in rivals if known(r["gap_to_bound"])]
    said = ""
    best = max(kept, key=_rate, default=None)
    if best is not None:
        said = (
            " The best of the other policies that act on no prediction and keep to the budget, "
            f"{best['policy']}, is {_beside(best, lru)}."
        )
    over = max((r for r in rivals if r not in kept), key=_rate, default=None)
    if over is not None and _rate(over) > max(map(_rate, [lru, *kept])):
        said += (
            f" {over['policy']} is {_beside(over, lru)}, but it did not keep to the budget: it held "
            f"as much as {mib(over['peak_resident_bytes'])}."
        )
    return said


def _rate(record: Mapping[str, Any]) -> float:
    rate: float = record["hit_rate_decode"]
    return rate


def _beside(record: Mapping[str, Any], lru: Mapping[str, Any]) -> str:
    than = round(100 * (_rate(record) - _rate(lru)), 1)
    if than == 0:
        return "level with LRU"
    return f"{abs(than):.1f} points {'above' if than > 0 else 'below'} LRU"


def _of_accuracy(trace: Trace, accuracy: Sequence[Row]) -> list[str]:
    best = best_of(accuracy)
    if best is None:
        return []
    chance = trace.top_k / trace.n_expert
    return [
        f"The best predictor scored, {best.label}, names {percent(best.slot_accuracy)} of the "
        f"selected experts before their layer runs, and whole routings {percent(best.exact_rate)} "
        f"of the time; guessing at random names {percent(chance)}."
    ]

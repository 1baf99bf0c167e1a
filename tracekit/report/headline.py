"""The figures that stand first: a few large ones, and sentences that say what they mean."""

from collections.abc import Sequence
from typing import Any

from tracekit.predictors.scoring.report import label
from tracekit.report.caching import Cache
from tracekit.report.overview import Figure, bank_bytes, cycle_bytes, sizes_known
from tracekit.report.words import known, mib, percent
from tracekit.trace import Trace

Records = Sequence[dict[str, Any]]
# Neither a way to predict nor a rival of one: the control, and the floor.
_MARKS = ("ctrl", "random-guess")


def figures(trace: Trace, accuracy: Records, cache: Cache) -> list[Figure]:
    """Return the large figures, as far as the trace gives them."""
    found = []
    if sizes_known(trace):
        bank = bank_bytes(trace)
        found.append(
            Figure("One token cycle", mib(cycle_bytes(trace)), f"of {mib(bank)} of experts")
        )
    at_main = _at_main(cache)
    if "lru" in at_main:
        rate = percent(at_main["lru"]["hit_rate_decode"])
        found.append(Figure("LRU hit rate, decode", rate, f"with {mib(cache.main)} of cache"))
    if "bound" in at_main:
        rate = percent(at_main["bound"]["hit_rate_decode"])
        found.append(Figure("No policy exceeds", rate, "decode, at the same budget"))
    best = _best(accuracy)
    if best:
        figure = Figure("Slots named early", percent(best["slot_accuracy"]), f"by {label(best)}")
        found.append(figure)
    return found


def _best(accuracy: Records) -> dict[str, Any] | None:
    scored = [r for r in accuracy if r["slots"] and r["predictor"] not in _MARKS]
    return max(scored, key=lambda r: r["slot_accuracy"], default=None)


def _at_main(cache: Cache) -> dict[str, dict[str, Any]]:
    return {r["policy"]: r for r in cache.records if r["cache_bytes"] == cache.main}


def sentences(trace: Trace, accuracy: Records, cache: Cache) -> list[str]:
    """Return what the figures say, in words."""
    return [*_of_cache(trace, cache), *_of_accuracy(trace, accuracy)]


def _of_cache(trace: Trace, cache: Cache) -> list[str]:
    at_main, main = _at_main(cache), cache.main
    lru = at_main.get("lru")
    if lru is None or not known(lru["hit_rate_decode"]):
        return []
    which = "the recorded budget" if main == trace.budget_bytes else "a budget"
    said = (
        f"With {which} of {mib(main)}, which holds {main / cycle_bytes(trace):.3g} token cycles, "
        f"global LRU finds {percent(lru['hit_rate_decode'])} of the decode lookups resident "
        f"({percent(lru['hit_rate_cumulative'])} of all, prompts included)"
    )
    gap = lru["gap_to_bound"]
    if known(gap):
        said += f"; the most any policy could gain on that total is {100 * gap:.1f} points"
    online = [
        r
        for name, r in at_main.items()
        if name not in ("lru", "belady", "bound")
        and known(r["hit_rate_decode"])
        and not r["over_budget_decode"]
    ]
    best = max(online, key=lambda r: r["hit_rate_decode"], default=None)
    if best is not None:
        than = best["hit_rate_decode"] - lru["hit_rate_decode"]
        said += (
            f". The best of the others that keep to the budget, {best['policy']}, is "
            f"{abs(100 * than):.1f} points {'above' if than > 0 else 'below'} LRU"
        )
    return [f"{said}."]


def _of_accuracy(trace: Trace, accuracy: Records) -> list[str]:
    best = _best(accuracy)
    if best is None:
        return []
    chance = trace.top_k / trace.n_expert
    return [
        f"The best predictor scored, {label(best)}, names {percent(best['slot_accuracy'])} of the "
        f"selected experts before their layer runs, and whole routings {percent(best['exact_rate'])} "
        f"of the time; guessing at random names {percent(chance)}."
    ]

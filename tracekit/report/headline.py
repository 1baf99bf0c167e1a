"""The figures that stand first: a few large ones, and sentences that say what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.replaying.rows import Row
from tracekit.report.accuracy import best_of
from tracekit.report.caching import Cache
from tracekit.report.overview import sizes_known
from tracekit.report.words import mib, percent
from tracekit.scoring.rows import Row as Scored
from tracekit.trace import Trace


@dataclass(frozen=True)
class LargeFigure:
    """A figure that stands large at the top."""

    label: str
    value: str
    note: str


def figures(trace: Trace, accuracy: Sequence[Scored], cache: Cache) -> list[LargeFigure]:
    """Return the large figures, as far as the trace gives them."""
    found = []
    if sizes_known(trace):
        note = f"of {mib(trace.bank_bytes)} of experts"
        found.append(LargeFigure("One token cycle", mib(trace.token_cycle_bytes), note))
    lru, bound = cache.at_main.get("lru"), cache.at_main.get("bound")
    if lru is not None and cache.sizes is not None:
        note = f"with a cache of {cache.sizes.text(lru.budget)}"
        found.append(LargeFigure("LRU hit rate, decode", percent(lru.hit_rate_decode), note))
    if bound is not None:
        note = "decode, at the same budget"
        what = f"No policy that {_of_bound(cache)}, exceeds"
        found.append(LargeFigure(what, percent(bound.hit_rate_decode), note))
    best = best_of(accuracy)
    if best:
        rate = percent(best.slot_accuracy)
        found.append(LargeFigure("Slots named early", rate, f"by {best.label}"))
    return found


def of_cache(trace: Trace, cache: Cache) -> list[str]:
    """Say in words what LRU hits at the main budget, and the best of its rivals."""
    lru = cache.at_main.get("lru")
    if lru is None or lru.hit_rate_decode is None or cache.sizes is None:
        return []
    sizes = cache.sizes
    budget = lru.budget
    is_recorded = sizes.in_bytes and budget == trace.budget_bytes
    text = (
        f"With {'the recorded' if is_recorded else 'a'} budget of {sizes.text(budget)}, "
        f"{percent(budget / sizes.bank)} of all experts and "
        f"{budget / sizes.token_cycle:.3g} token cycles, global LRU finds {percent(lru.hit_rate_decode)} of the decode lookups resident "
        f"({percent(lru.hit_rate_cumulative)} of all, prompts included)"
    )
    if lru.gap_to_bound is not None:
        text += (
            f"; the most that any policy which {_of_bound(cache)}, could gain on that total is "
            f"{100 * lru.gap_to_bound:.1f} points"
        )
    return [" ".join([f"{text}.", *_of_rivals(cache, lru)])]


def _of_bound(cache: Cache) -> str:
    """Say which policies the bound is of, and no more: in few words, as `bounded` does."""
    kept = "keeps to the budget" if cache.bypass else "keeps what it reads until the load ends"
    return f"reads only on demand, and {kept}"


def _of_rivals(cache: Cache, lru: Row) -> list[str]:
    """Say which other policy of LRU's kind is best, and which only seems so."""
    rivals = [row for row in cache.at_main.values() if row is not lru and _acts_as_lru(row)]
    # What keeps to its budget, prompts included, but for the batch in hand, compares with LRU.
    kept_to_budget = [row for row in rivals if row.kept_to_budget]
    found = []
    best = max(kept_to_budget, key=_rate, default=None)
    if best is not None:
        found.append(
            "The best of the other policies that act on no prediction and keep to the budget, "
            f"{best.policy}, is {_beside(best, lru)}."
        )
    over = max((row for row in rivals if not row.kept_to_budget), key=_rate, default=None)
    if over is not None and _rate(over) > max(map(_rate, [lru, *kept_to_budget])):
        peak = over.peak_resident_bytes
        held = "" if peak is None else f": it held as much as {mib(peak)}"
        found.append(
            f"{over.policy} is {_beside(over, lru)}, but it did not keep to the budget{held}."
        )
    return found


def _acts_as_lru(row: Row) -> bool:
    """Say whether a policy can run in an engine, on demand, and looks up what the model selects."""
    policy = row.replayed
    return not (policy.offline or policy.lossy or policy.needs_predictor or policy.speculative)


def _rate(row: Row) -> float:
    return -1.0 if row.hit_rate_decode is None else row.hit_rate_decode


def _beside(row: Row, lru: Row) -> str:
    than = round(100 * (_rate(row) - _rate(lru)), 1)
    if than == 0:
        return "level with LRU"
    return f"{abs(than):.1f} points {'above' if than > 0 else 'below'} LRU"


def of_accuracy(trace: Trace, accuracy: Sequence[Scored]) -> list[str]:
    """Say in words how much the best predictor names."""
    best = best_of(accuracy)
    if best is None:
        return []
    chance = trace.top_k / trace.n_expert
    return [
        f"The best predictor scored, {best.label}, names {percent(best.slot_accuracy)} of the "
        f"selected experts before their layer runs, and whole routings {percent(best.exact_rate)} "
        f"of the time; guessing at random names {percent(chance)}."
    ]

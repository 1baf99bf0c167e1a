"""From a trace to the text of its report."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tracekit.formats import as_trace
from tracekit.plots.kinds import KINDS, Choices
from tracekit.replaying.inputs import Kept
from tracekit.report import accuracy, acting, caching, headline, matrix, overview, short, times
from tracekit.report.long import studied
from tracekit.report.pictures import Picture, draw
from tracekit.report.render import render
from tracekit.trace import Trace, TraceError
from tracekit.version import version

T = TypeVar("T")

# The kinds of plot in each section of the page.
PICTURES: Mapping[str, Sequence[str]] = {
    "predictability": ("predictability", "horizon", "recall"),
    "cache": ("curves", "read-bytes", "reuse", "working-set"),
    "time": ("time", "time-curves"),
    "routing": ("popularity", "popularity-sorted", "overlap", "concentration", "reuse-tokens"),
}


def build_report(
    trace: Trace | str | Path,
    *,
    policies: Sequence[str] | None = None,
    predictors: Sequence[str] | None = None,
    cache_bytes: Sequence[int] | None = None,
    pictures: Mapping[str, Sequence[str]] | None = None,
    advice: bool = True,
    bypass: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Return one self-contained HTML page about `trace`.

    The page loads nothing and sends nothing. What the trace cannot tell (it has no gate inputs, no
    expert sizes, no decoded token) is left out, and the page says in one sentence why.

    Parameters
    ----------
    trace : Trace, str or Path
    policies : sequence of str, optional
        Cache policies to replay; `caching.DEFAULT_POLICIES` by default.
    predictors : sequence of str, optional
        Predictors to score; all that the trace's columns allow by default.
    cache_bytes : sequence of int, optional
        Budgets. By default the recorded one, and 5, 10, 25 and 50 % of all experts.
    pictures : mapping, optional
        The kinds of plot in each section of the page: `PICTURES` by default. Drawing takes longest.
    advice : bool
        The page begins with what ``tracekit advise`` says; without, and with `bypass`, which it does not
        know, with the main figures in words.
    bypass : bool
        The engine may drop at once what it has just used, in all that is replayed.
    seed : int
    jobs : int, optional
        Threads; all cores by default.
    progress : callable, optional
        Called with (done, total) as parts get done.

    Raises
    ------
    UsageError
        An unknown policy or predictor, a budget that is not a size in bytes.
    TraceError
        A predictor that was named needs a column that the trace lacks.
    """
    trace = as_trace(trace)
    chosen = PICTURES if pictures is None else pictures
    kinds = {section: chosen.get(section, ()) for section in PICTURES}
    steps = itertools.count(1)
    total = sum(map(len, kinds.values())) + 6

    def step(result: T) -> T:
        done = next(steps)
        if progress is not None:
            progress(done, total)
        return result

    replayed = caching.DEFAULT_POLICIES if policies is None else policies
    fitted = times.fit_of(trace)
    cache = step(caching.replay_table(trace, replayed, cache_bytes, seed, jobs, bypass, fitted))
    tried = studied(trace)
    scored = step(accuracy.score(tried.trace, predictors, seed, jobs))
    kept: Kept = {}  # each predictor is asked once, for the advice and for what acts on it
    budget = cache.main if cache_bytes else None
    advised = step(short.advice_of(tried.trace, budget, kept) if advice and not bypass else None)
    acted = step(acting.compare_with_lru(tried.trace, scored, cache, seed, kept))
    browser = step(_browser(trace, cache))
    drawn = {name for names in kinds.values() for name in names}
    frames = scored.frames | step(times.frames(trace, cache, fitted, drawn, seed, jobs))
    if "horizon" in drawn:
        frames |= accuracy.by_horizon(tried.trace, scored, seed, jobs)

    def picture(name: str) -> Picture:
        kind = KINDS[name]
        # What shows one budget shows the one that the headline is about.
        budget = [cache.main] if kind.at_one_budget and cache.main is not None else None
        choices = Choices(cache_bytes=budget, bypass=bypass, seed=seed, jobs=jobs)
        return step(draw(kind, trace, choices, frames.get(name)))

    drawings = {section: list(map(picture, names)) for section, names in kinds.items()}
    return render(
        title=trace.facts.model.name or "A model without a name",
        lead=overview.lead(trace),
        warnings=[*trace.warnings, *tried.warnings, *scored.alarm],
        figures=headline.figures(trace, scored.scored, cache),
        short=short.in_short(trace, advised, scored.scored, cache, acted, tried.is_excerpt),
        facts=overview.facts(trace),
        accuracy=replace(scored, notes=[*tried.notes, *scored.notes]),
        cache=cache,
        cache_lead=headline.of_cache(trace, cache),
        acting=replace(acted, notes=[*tried.notes, *acted.notes]),
        matrix=browser,
        pictures=drawings,
        colophon=f"Made by tracekit {version()} from {trace.name}, seed {seed}.",
    )


def _browser(trace: Trace, cache: caching.Cache) -> matrix.Browser:
    try:
        grid = matrix.shown_grid(trace)
        views, note = caching.views(trace, grid, cache)
        if not views:
            return matrix.Browser(lacks=cache.lacks)
        return matrix.pack(trace, grid, views, note)
    except TraceError as error:
        return matrix.Browser(lacks=str(error))

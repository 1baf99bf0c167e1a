"""What stands in short at the top of the page: the advice, where there is some.

In: a trace, and what was found of it already. Out: paragraphs with their headings. The text is that of
``tracekit advise``; where it can say nothing, the main figures are put into words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.advice.advise import Advice, advise
from tracekit.replaying.inputs import Kept
from tracekit.report.acting import Acting
from tracekit.report.caching import Cache
from tracekit.report.headline import of_accuracy, of_cache
from tracekit.scoring.rows import Row as Scored
from tracekit.trace import Trace, TracekitError


@dataclass(frozen=True)
class Topic:
    """What is said about one thing.

    Attributes
    ----------
    title : str
        Empty where all is one topic.
    sentences : sequence of str
    commands : sequence of str
        They show the figures in the sentences.
    """

    title: str
    sentences: Sequence[str]
    commands: Sequence[str] = field(default=())


def advice_of(trace: Trace, cache_bytes: int | None, kept: Kept) -> Advice | None:
    """Return the advice for a trace, None where it can say nothing."""
    try:
        return advise(trace, cache_bytes=cache_bytes, kept=kept)
    except TracekitError:
        return None


def in_short(
    trace: Trace,
    advice: Advice | None,
    accuracy: Sequence[Scored],
    cache: Cache,
    acting: Acting,
    is_of_excerpt: bool = False,
) -> list[Topic]:
    """Return the advice by its topics; without any, the main figures in words.

    Commands are left out where they would show other figures, since the advice is of an excerpt.
    """
    if advice is None:
        sentences = [*of_cache(trace, cache), *filter(None, [acting.verdict])]
        return [Topic("", [*sentences, *of_accuracy(trace, accuracy)])]
    found = [
        Topic(title, sentences, [] if is_of_excerpt else commands)
        for title, sentences, commands in advice.by_topic()
    ]
    if is_of_excerpt:
        whole = "This advice is of an excerpt; `tracekit advise` tries all of the trace."
        found.insert(0, Topic("Of an excerpt", [whole]))
    return [*found, *([Topic("What would say more", advice.lacking)] if advice.lacking else [])]

"""Findings about the size of the cache: where it pays no more, and where LRU collapses."""

from itertools import pairwise

from tracekit.advice.findings import Finding, Number
from tracekit.advice.subject import Subject, number, rate, round_size
from tracekit.figures import in_mib
from tracekit.replaying import replay
from tracekit.replaying.rows import Row

TENTHS = tuple(round(0.1 * i, 1) for i in range(1, 10))
# A further tenth of the experts that adds less than this pays no more.
_FLAT = 0.02
# A token that spends less than this on reading is bound by computing.
_COMPUTE_BOUND = 0.1
_UNDER, _OVER = 0.95, 1.5  # token cycles


def of_cache(subject: Subject, policy: str, best: str) -> list[Finding]:
    """Return what the size of the cache does with `policy` evicting, and where LRU falls off a cliff.

    There it is compared with `best`, the policy that hits most.
    """
    bank = subject.trace.bank_bytes
    sizes = sorted({round_size(tenth * bank) for tenth in TENTHS})
    rows = replay(
        subject.trace,
        [policy],
        cache_bytes=sizes,
        params=subject.params_of([policy]),
        time=subject.fit or False,
    ).rows
    command = subject.replay([policy], sizes)
    found = [_of_returns(policy, rows, command)]
    found += _of_computing(policy, rows, command)
    return found + _of_cliff(subject, best)


def _of_returns(policy: str, rows: list[Row], command: str) -> Finding:
    """Say from which size on a larger cache adds little."""
    rates = [row.hit_rate_decode or 0.0 for row in rows]
    gains = [after - before for before, after in pairwise(rates)]
    flat = next(
        (i for i in range(len(gains)) if all(gain < _FLAT for gain in gains[i:])), len(gains)
    )
    row, text = rows[flat], rate(rates[flat])
    size = f"{in_mib(row.budget)} ({rate(row.cache_fraction, 0)} of all experts)"
    numbers = [number(text, row, "hit_rate_decode", command)]
    if flat == len(gains):
        less = rate(rates[-2])
        return Finding(
            "cache size",
            f"A larger cache keeps paying: with {policy} it hits {text} at {size}, and {less} with a tenth "
            "of the experts less.",
            [*numbers, number(less, rows[-2], "hit_rate_decode", command)],
        )
    more = rate(rates[flat + 1])
    return Finding(
        "cache size",
        f"Returns flatten at {size}: there {policy} hits {text}, and a tenth of all experts more makes "
        f"that {more}. Each tenth after that adds less than 2 points.",
        [*numbers, number(more, rows[flat + 1], "hit_rate_decode", command)],
    )


def _of_computing(policy: str, rows: list[Row], command: str) -> list[Finding]:
    """Say from which size on reading hardly matters to a token's time."""
    timed = [row for row in rows if row.time is not None and row.time.reading_share is not None]
    if not timed:
        return []
    for row in timed:
        share = row.time.reading_share if row.time is not None else None
        if share is not None and share < _COMPUTE_BOUND:
            text = rate(share)
            return [
                Finding(
                    "cache size",
                    f"From {in_mib(row.budget)} on a token is bound by computing: with {policy} it spends "
                    f"{text} of its time on reading, and a larger cache or a better policy can save no "
                    "more than that.",
                    [_of_time(text, row, "reading_share", command)],
                )
            ]
    last = timed[-1]
    share = last.time.reading_share if last.time is not None else None
    text = rate(share)
    return [
        Finding(
            "cache size",
            f"Reading matters at every size tried: at {in_mib(last.budget)} a token with {policy} still "
            f"spends {text} of its time on it.",
            [_of_time(text, last, "reading_share", command)],
        )
    ]


def _of_time(text: str, row: Row, column: str, command: str) -> Number:
    return number(text, row, column, command)


def _of_cliff(subject: Subject, policy: str) -> list[Finding]:
    """Say what LRU does under one token cycle, where that is a cliff."""
    cycle = subject.trace.token_cycle_bytes
    sizes = [round_size(_UNDER * cycle), round_size(_OVER * cycle)]
    if policy == "lru" or sizes[1] > subject.trace.bank_bytes:
        return []
    params = subject.params_of([policy])
    rows = replay(subject.trace, ["lru", policy], cache_bytes=sizes, params=params).rows
    under, over, better = rows[0], rows[1], rows[2]
    rates = [row.hit_rate_decode or 0.0 for row in (under, over, better)]
    if rates[0] > rates[1] / 3:
        return []
    plain = Subject(subject.trace, subject.where, subject.budget, params=subject.params)
    command = plain.replay(["lru", policy], sizes)
    texts = [rate(each) for each in rates]
    where = "below" if subject.budget < cycle else "above"
    return [
        Finding(
            "cache size",
            f"LRU needs more than one token cycle, {in_mib(cycle)}: with {in_mib(sizes[0])} it hits "
            f"{texts[0]}, with {in_mib(sizes[1])} {texts[1]}. {policy} has no such cliff: it hits "
            f"{texts[2]} with the smaller cache. The cache in question, {in_mib(subject.budget)}, is "
            f"{where} it.",
            [
                number(text, row, "hit_rate_decode", command)
                for text, row in zip(texts, (under, over, better), strict=True)
            ],
        )
    ]

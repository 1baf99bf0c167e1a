"""What a fit cannot say of another run, each reason one sentence, and what is not known of the two.

In: a fit's quality, and the facts of both runs. Out: sentences, and what each of them takes away.
"""

from dataclasses import dataclass
from enum import Enum

from tracekit.figures import joined
from tracekit.timing.facts import RunFacts

# Free memory under this share of all memory slows runs in a way that bytes do not show.
LEAST_FREE = 0.15

UNSEEN = "A replay cannot see what a policy or a larger cache does to memory."


class Loses(Enum):
    """What a reason takes away from a prediction."""

    ALL = "the prediction"
    POINT = "all but that it takes at least so long"
    INTERVAL = "its interval"
    MEAN = "its mean"


@dataclass(frozen=True)
class Refusal:
    """A reason, and what it takes away."""

    loses: Loses
    says: str


_UNLIKE = {
    "top_k": "{} experts for a token and layer",
    "lanes": "{} lanes that read",
    "mode": "the mode {!r}",
}
_IN_WORDS = {
    "ram_mib": "the memory of the device",
    "mem_floor_mib": "the least free memory of the calibrated run",
    "cache_mib": "the cache sizes",
    "lanes": "the lanes",
    "mode": "the mode",
    "lossy": "whether experts were left out",
    "top_k": "the experts of a token",
}


def of_facts(before: RunFacts, after: RunFacts) -> list[Refusal]:
    """Return what forbids to carry the times of a run over to another.

    Parameters
    ----------
    before, after : RunFacts
        Of the calibrated run, and of the one that is predicted.
    """
    found = []
    for name, words in _UNLIKE.items():
        was, now = getattr(before, name), getattr(after, name)
        if was is not None and now is not None and was != now:
            found.append(
                Refusal(
                    Loses.ALL,
                    f"The calibrated run had {words.format(was)}, and this one has "
                    f"{words.format(now)}: its times do not carry over.",
                )
            )
    lossy = [
        whose
        for whose, facts in (("the calibrated run", before), ("this run", after))
        if facts.lossy
    ]
    if lossy:
        found.append(
            Refusal(
                Loses.ALL,
                f"Experts that the router selected are left out in {joined(lossy)}: what is computed "
                "differs, so its times do not carry over.",
            )
        )
    was_mib, now_mib = before.cache_mib, after.cache_mib
    if was_mib is not None and now_mib is not None and (was_mib > 0) != (now_mib > 0):
        one, other = ("on", "off") if was_mib > 0 else ("off", "on")
        found.append(
            Refusal(
                Loses.ALL,
                f"The cache of the calibrated run was {one}, and that of this one is {other}: its "
                "times do not carry over.",
            )
        )
    return found + _of_memory(before, after)


def _of_memory(before: RunFacts, after: RunFacts) -> list[Refusal]:
    ram = after.ram_mib
    if ram is None:
        return []
    found = []
    least = LEAST_FREE * ram
    free = free_mib(before, after)
    if free is not None and free < least:
        found.append(
            Refusal(
                Loses.POINT,
                f"Free memory would fall to {max(free, 0):.0f} MiB, which is under 15 % of the "
                f"{ram:.0f} MiB of the device; runs so short of memory were slower than their bytes "
                "say, so only the most tokens a second are given.",
            )
        )
    elif before.mem_floor_mib is not None and before.mem_floor_mib < least:
        found.append(
            Refusal(
                Loses.INTERVAL,
                f"The calibrated run was short of memory: {before.mem_floor_mib:.0f} MiB were free, "
                f"under 15 % of the {ram:.0f} MiB of the device; its times hold what that cost, so no "
                "interval is given.",
            )
        )
    return found


def free_mib(before: RunFacts, after: RunFacts) -> float | None:
    """Return the least free memory of the run that is predicted, None where it cannot be told.

    It is that of the calibrated run less what the cache grows by. Whatever that was, a cache leaves
    no more free than the rest of the memory.
    """
    if after.mem_floor_mib is not None:
        return after.mem_floor_mib
    if (
        before.mem_floor_mib is not None
        and before.cache_mib is not None
        and after.cache_mib is not None
    ):
        return before.mem_floor_mib - (after.cache_mib - before.cache_mib)
    if after.ram_mib is not None and after.cache_mib is not None:
        rest = after.ram_mib - after.cache_mib
        return rest if rest < LEAST_FREE * after.ram_mib else None
    return None


def unknown(before: RunFacts, after: RunFacts) -> list[str]:
    """Say in one sentence which facts of the two runs are not known, and so were not compared."""
    lacks = [
        name
        for name in ("cache_mib", "lanes", "mode", "lossy", "top_k")
        if getattr(before, name) is None or getattr(after, name) is None
    ]
    if after.ram_mib is None:
        lacks.append("ram_mib")
    if before.mem_floor_mib is None and after.mem_floor_mib is None:
        lacks.append("mem_floor_mib")
    if not lacks:
        return []
    words = joined([_IN_WORDS[name] for name in lacks])
    return [f"Not known, and so not compared between the two runs: {words}."]

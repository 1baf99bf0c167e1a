"""What ``tracekit record`` says of a recording: how fast it goes, how it ended, what to type next."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.figures import MIB, counted, exact_mib, percent

if TYPE_CHECKING:
    from tracekit.engine import Progress


def rates(progress: "Progress") -> str:
    """Return how fast a recording goes, as far as that is known, each figure after a comma."""
    text = ""
    if progress.tokens_per_second is not None:
        text += f", {progress.tokens_per_second:.1f} tokens/s"
    if progress.hit_rate is not None:
        text += f", hit rate {percent(progress.hit_rate, 1)} % (cumulative)"
    if progress.totals is not None:
        text += f", {progress.totals.read_bytes / MIB:,.1f} MiB read"
    return text


def summary(path: Path, progress: "Progress", ended: str) -> str:
    """Return what was recorded to `path`, and how it ended."""
    return (
        f"Recorded {counted(progress.turn + 1, 'turn')} to {path}: {progress.prefilled} prompt and "
        f"{progress.decoded} decoded tokens{rates(progress)}; ended: {ended}."
    )


def next_command(path: Path, cache_bytes: int | None) -> str:
    """Return the command that replays the recording, at the budget of its cache if it had one."""
    command = ["tracekit", "replay", str(path)]
    if cache_bytes is not None:
        command += ["--policy", "lru", "--cache-mib", exact_mib(cache_bytes), "--validate"]
    return shlex.join(command)

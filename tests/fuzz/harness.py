"""Runs a fuzzer: draws inputs, checks each in a process that may die or hang, and counts what came out.

A fuzzer is a class with a ``name`` and a method ``check(rng)``. The method draws one input, gives it to
a reader and returns how that ended in one word; it raises `ChangedError` if the reader accepted the input with
another meaning than it has. Any other exception is a traceback that a user would see. An input is known
by its seed and its number, so that each can be drawn again.
"""

import faulthandler
import json
import mmap
import os
import random
import re
import resource
import select
import signal
import struct
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tracekit.trace import TracekitError

SENTENCE = re.compile(r"[^\r\n]{20,900}[.?]")
CPU_SECONDS = 1.0  # more for one input is a hang
SILENT_SECONDS = 30.0  # a process that has been silent for so long is killed
MEMORY_BYTES = 3 << 30  # beyond what the process had before its first input


class ChangedError(Exception):
    """An input was accepted with another meaning than it has."""


class Fuzzer(Protocol):
    """What draws and checks inputs of one reader."""

    name: str

    def check(self, rng: random.Random) -> str: ...


@dataclass
class Report:
    """What came out."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: "Report") -> None:
        self.counts.update(other.counts)
        self.faults += other.faults


def refusal(error: TracekitError) -> str:
    """Return the outcome of a refusal; one that is no single sentence is wrong."""
    if not SENTENCE.fullmatch(str(error)):
        raise ChangedError(f"this is no sentence: {error}") from error
    return "refused"


def rng_of(fuzzer: Fuzzer, seed: int, number: int) -> random.Random:
    return random.Random(f"{fuzzer.name} {seed} {number}")


def check_one(fuzzer: Fuzzer, seed: int, number: int) -> tuple[str, str | None]:
    """Check one input; return how it ended, and what is wrong with that."""
    start = time.process_time()
    try:
        outcome, fault = fuzzer.check(rng_of(fuzzer, seed, number)), None
    except ChangedError as wrong:
        outcome, fault = "changed", str(wrong)
    except Exception:
        outcome, fault = "traceback", traceback.format_exc()
    seconds = time.process_time() - start
    if seconds > CPU_SECONDS:
        return "hang", f"{seconds:.1f} s of processor time ({outcome})"
    return outcome, fault


def run(
    fuzzer: Fuzzer,
    seed: int,
    count: int,
    first: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Check `count` inputs, beginning with number `first`.

    The processes that check are copies of this one: what the fuzzer has loaded and compiled is there.
    """
    report, number = Report(), first
    while number < first + count:
        done, reached, ended = _in_child(fuzzer, seed, number, first + count, say)
        report.add(done)
        number = reached
        if ended is not None:
            report.counts[ended] += 1
            report.faults.append({"number": number, "outcome": ended, "fault": ended})
            say(f"{number}: {ended}")
            number += 1
    return report


def _in_child(
    fuzzer: Fuzzer, seed: int, start: int, stop: int, say: Callable[[str], None]
) -> tuple[Report, int, str | None]:
    """Check inputs in a process of their own; return also the number reached and how it died."""
    at = mmap.mmap(-1, 8)  # the number of the input that is being checked, for the parent
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                _child(fuzzer, seed, start, stop, at, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    report, ended = Report(), None
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        for line in _lines(pipe, at):
            if line is None:
                os.kill(child, signal.SIGKILL)
                ended = "silent"
                break
            message = json.loads(line)
            report.counts.update(message.get("counts", {}))
            if "fault" in message:
                report.faults.append(message)
                say(f"{message['number']}: {message['outcome']}: {message['fault'][-300:]}")
    status = os.waitpid(child, 0)[1]
    reached = struct.unpack("q", at[:8])[0]
    if ended is None and status != 0:
        ended = f"died of status {status}"
    if ended is None:
        return report, stop, None
    # What was counted since the last message is lost with the process.
    report.counts["counted before a death"] += reached - start - report.counts.total()
    return report, reached, ended


def _lines(pipe: Any, at: mmap.mmap) -> Iterator[bytes | None]:
    """Yield what the child says line by line, and None once it hangs."""
    rest, last, since = b"", at[:8], time.monotonic()
    while True:
        if select.select([pipe], [], [], 1.0)[0]:
            data = pipe.read(1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        if at[:8] != last:
            last, since = at[:8], time.monotonic()
        elif time.monotonic() - since > SILENT_SECONDS:
            yield None
            return


def _child(fuzzer: Fuzzer, seed: int, start: int, stop: int, at: mmap.mmap, pipe: Any) -> None:
    faulthandler.disable()
    warnings.simplefilter("error")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # llama.cpp prints to it
    _limit_memory()
    counts: Counter[str] = Counter()
    for number in range(start, stop):
        at[:8] = struct.pack("q", number)
        outcome, fault = check_one(fuzzer, seed, number)
        if outcome == "hang":  # a kernel may have been compiled; the second time it is not
            outcome, fault = check_one(fuzzer, seed, number)
        counts[outcome] += 1
        if fault is not None:
            message = {"number": number, "outcome": outcome, "fault": fault}
            print(json.dumps(message), file=pipe, flush=True)
        if number % 1000 == 999:
            print(json.dumps({"counts": counts}), file=pipe, flush=True)
            counts.clear()
    print(json.dumps({"counts": counts}), file=pipe, flush=True)


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))

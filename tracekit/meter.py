"""What a process uses while something runs: CPU time and page faults, and which memory it leaves.

The system is asked before and after. It answers for all threads of the process together.
"""

import os
import resource
from dataclasses import dataclass

MEMORY_FILE = "/proc/meminfo"
_READ = 512  # bytes: MemAvailable is on the third line


@dataclass(frozen=True)
class Usage:
    """What the process has used.

    Attributes
    ----------
    cpu_ms : float
        CPU time of all threads, in the program and in the system for it.
    major_faults : int
        How often a page had to be read from storage before a thread could go on.
    """

    cpu_ms: float
    major_faults: int

    def __sub__(self, before: "Usage") -> "Usage":
        """Return what was used since `before`."""
        return Usage(self.cpu_ms - before.cpu_ms, self.major_faults - before.major_faults)


def used() -> Usage:
    """Return what the process has used since it began."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(1e3 * (usage.ru_utime + usage.ru_stime), usage.ru_majflt)


def available_bytes() -> int | None:
    """Return the bytes that can be allocated without swapping, as the kernel estimates them.

    None where the system gives no estimate.
    """
    return _memory(b"MemAvailable:")


def total_bytes() -> int | None:
    """Return the memory of the device that the kernel can give out; None where it does not say."""
    return _memory(b"MemTotal:")


def _memory(name: bytes) -> int | None:
    try:
        file = os.open(MEMORY_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(file, _READ)
    except OSError:
        return None
    finally:
        os.close(file)
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) == 3 and words[0] == name and words[1].isdigit():
            return int(words[1]) * 1024
    return None

"""Peak memory of processes, as the kernel counts it: VmHWM.

``ru_maxrss`` survives exec, so it would count the memory of whoever started a process.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

INTERVAL_S = 0.05


def own_peak_bytes() -> int:
    """Return the peak of this process."""
    return _peak_bytes(os.getpid())


def run_measured(
    command: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[int, float, float]:
    """Run a command whose output goes where that of this process goes.

    Returns
    -------
    code : int
        Its exit code.
    cpu_s : float
        Processor time of it and of all that it started.
    peak_mib : float
        The largest peak of one of these processes. It is read again and again: what a process takes
        in its last twentieth of a second may be missed.
    """
    before = os.times()
    sys.stdout.flush()
    process = subprocess.Popen(list(command), env=dict(env) if env is not None else None)
    peak = 0
    try:
        while process.poll() is None:
            peak = max(peak, *map(_peak_bytes, _family(process.pid)))
            time.sleep(INTERVAL_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    after = os.times()
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    return process.returncode, cpu_s, peak / (1 << 20)


def _family(pid: int) -> Iterator[int]:
    """Iterate over a process and all that it started and that still run."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # it has ended meanwhile
            continue
        for child in children:
            yield from _family(int(child))


def _peak_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) * 1024 if found else 0

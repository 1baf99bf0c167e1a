"""Run the command line in tests; a small route_trace file to run it on."""

import io
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typer.main import get_command

from tracekit.cli.app import app

TRACEKIT = (sys.executable, "-m", "tracekit")
# A command line reads the signature of a command before it runs it. That takes some ms, and the
# tests call hundreds of times.
COMMANDS = get_command(app)

N_LAYER, N_EXPERT, TOP_K = 2, 8, 2
EXPERT_BYTES = (1 << 20, 3 << 19)
HEADER = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


def run(*args: str | Path) -> Finished:
    """Run ``tracekit ARGS`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            COMMANDS([str(arg) for arg in args], prog_name="tracekit")
        except SystemExit as end:
            code = end.code or 0
    return Finished(code, out.getvalue(), err.getvalue())


def run_process(*args: str | Path, **how) -> Finished:
    """Run ``tracekit ARGS`` in a process of its own."""
    done = subprocess.run(
        [*TRACEKIT, *map(str, args)], capture_output=True, text=True, timeout=300, **how
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def csv_lines(prefill: int = 3, decode: int = 5, turns: int = 1) -> list[str]:
    """Return the lines of a route_trace file; the last layer sees only the prompt's last token."""
    rng = np.random.default_rng(0)
    lines = [
        "# route_trace v1",
        f"# model=small.gguf arch=small n_layer={N_LAYER} n_expert={N_EXPERT} "
        f"n_expert_used={TOP_K}",
        *(
            f"# layer={layer} expert_bytes={size} dense_bytes=1024"
            for layer, size in enumerate(EXPERT_BYTES)
        ),
        HEADER,
    ]
    for turn in range(turns):
        places = [(0, step, 0) for step in range(prefill)] + [(0, prefill - 1, 1)]
        places += [(1, prefill + t, layer) for t in range(decode) for layer in range(N_LAYER)]
        for phase, step, layer in places:
            chosen = rng.choice(N_EXPERT, TOP_K, replace=False)
            lines += [
                f"{turn},{phase},{step},{layer},{slot},{expert},0.5,0,{EXPERT_BYTES[layer]}"
                for slot, expert in enumerate(chosen)
            ]
    return lines


def write_csv(path: Path, lines: Sequence[str] | None = None, end: str = "\n") -> Path:
    """Write a route_trace file."""
    path.write_bytes("".join(line + end for line in lines or csv_lines()).encode())
    return path

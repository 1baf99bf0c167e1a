"""Damage to files, and what a sentence about a damaged file looks like; for tests of every format."""

import json
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.formats import ImportOptions, open_any
from tracekit.trace import TracekitError, describe

# One sentence of readable length.
SENTENCE = re.compile(r"[^\r\n]{20,600}\.")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, cut, remove, insert or repeat bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes(b ^ 1 << rng.randrange(8) for b in changed[at : at + 1])
        elif kind == 1:
            changed[at : at + 1] = rng.randbytes(1)
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            del changed[at : at + rng.choice((1, 3, 50))]
        elif kind == 4:
            changed[at:at] = rng.choice(
                (rng.randbytes(8), b"\n", b",", b"nan", b"-1", b"9" * 20, b'"', b"\0" * 8, b"[")
            )
        else:
            source = rng.randrange(len(changed) + 1)
            changed[at : at + 10] = changed[source : source + 10]
    return bytes(changed)


def refusals(path: Path, options: ImportOptions | None = None) -> list[str]:
    """Ask the trace at `path` everything; return the sentence that refused it, if one did."""
    try:
        trace = open_any(path, options=options or ImportOptions())
        json.dumps(describe(trace))
        lists = [c for c in ("experts", "logits", "gate_input") if trace.has(c)]
        for _ in trace.iter_routing(lists):
            pass
        trace.steps(["step"])
        for layer in trace.moe_layers.tolist():
            trace.layer_array(layer, "router_matrix")
        if (trace.layer_columns["expert_bytes"] >= 0).any():
            _ = trace.expert_bytes
    except TracekitError as error:
        return [str(error)]
    return []


def not_one_sentence(refused: list[str]) -> list[str]:
    return [sentence for sentence in refused if not SENTENCE.fullmatch(sentence)]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after `seconds`, even while it waits for a pipe."""

    def stop(*_):
        raise TimeoutError(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

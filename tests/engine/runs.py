"""Runs of a model to compare, and what a cache must have done in them."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.trace import Trace
from tracekit_engine import Options, Session
from tracekit_engine.lanes import LANE

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. "


@dataclass(frozen=True)
class Run:
    """What two runs must agree on to the bit: a hash of all logits, all greedy tokens."""

    logits: str
    tokens: tuple[int, ...]


def greedy(path: Path, options: Options, n_decode: int, text: str = TEXT) -> Run:
    """Evaluate a text in chunks, then decode greedily; every token's logits are hashed."""
    digest, tokens = hashlib.sha256(), []
    with Session(path, options) as session:
        prompt = session.model.tokenize(text)
        for start in range(0, len(prompt), session.chunk):
            part = prompt[start : start + session.chunk]
            session.evaluate(part, want_logits=start + len(part) == len(prompt))
        for _ in range(n_decode):
            logits = session.logits()
            digest.update(logits.tobytes())
            tokens.append(int(logits.argmax()))
            session.evaluate(tokens[-1:], want_logits=True)
        digest.update(session.logits().tobytes())
    return Run(digest.hexdigest(), tuple(tokens))


@dataclass(frozen=True)
class Expected:
    """What a least-recently-used cache does with a trace's routings."""

    residency: np.ndarray
    lookups: dict[int, int]
    hits: dict[int, int]
    read_bytes: dict[int, int]
    peak_bytes: int


def replay_lru(trace: Trace, budget: int) -> Expected:
    """Replay a trace in plain Python: batch by batch, eviction after the batch."""
    rows = trace.routing(["pass", "layer", "experts"])
    sizes = dict(zip(trace.moe_layers.tolist(), trace.expert_bytes.tolist(), strict=True))
    residency = np.ones(rows["experts"].shape, np.uint8)
    lookups: dict[int, int] = {}
    hits, read_bytes = dict(lookups), dict(lookups)
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    batch, touched, peak = None, set(), 0

    def evict() -> int:
        held = sum(sizes[layer] for layer, _ in cache)
        for key in list(cache):
            if held <= budget:
                break
            if key not in touched:
                del cache[key]
                held -= sizes[key[0]]
        return held

    for row, (number, layer) in enumerate(zip(rows["pass"], rows["layer"], strict=True)):
        if (number, layer) != batch:
            peak = max(peak, evict())
            batch, touched = (number, layer), set()
        number = int(number)
        for slot, expert in enumerate(rows["experts"][row].tolist()):
            key = (int(layer), expert)
            if key not in touched:
                lookups[number] = lookups.get(number, 0) + 1
                hits[number] = hits.get(number, 0) + (key in cache)
                if key not in cache:
                    residency[row, slot] = 0
                    read_bytes[number] = read_bytes.get(number, 0) + sizes[key[0]]
            touched.add(key)
            cache[key] = None
            cache.move_to_end(key)
    return Expected(residency, lookups, hits, read_bytes, max(peak, evict()))


def lane_threads() -> list[threading.Thread]:
    """Return the threads that read experts, of all sessions that are open."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{LANE}-")]


def totals_by_pass(trace: Trace, name: str) -> dict[int, int]:
    """Return a counter of the steps table by pass; each pass has it on its last row."""
    rows = trace.steps(["pass", name])
    known = rows[name] >= 0
    return dict(
        zip(rows["pass"][known].tolist(), rows[name][known].astype(int).tolist(), strict=True)
    )

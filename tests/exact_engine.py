"""An engine that streams experts, in plain Python, and what it writes down of its runs.

It shares no code with the project. It evaluates prompts in chunks, verifies drafted tokens several
at a time, rejects some of them, starts a cancelled prompt anew, and keeps an LRU cache of experts.
"""

import random
from collections import OrderedDict
from dataclasses import dataclass, field

HEADER = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped"


@dataclass
class Written:
    """What the engine wrote and counted.

    Attributes
    ----------
    lines : list of str
        A ``# route_trace v1`` file.
    hits, lookups : list of int
        Of prefill and of decode.
    read_bytes : list of int
    passes : list of (turn, phase, first step, tokens)
    kept : dict of (turn, step) to int
        The pass whose evaluation of the token counts in the end.
    """

    budget: int
    lines: list[str] = field(default_factory=list)
    hits: list[int] = field(default_factory=lambda: [0, 0])
    lookups: list[int] = field(default_factory=lambda: [0, 0])
    read_bytes: list[int] = field(default_factory=lambda: [0, 0])
    passes: list[tuple[int, int, int, int]] = field(default_factory=list)
    kept: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class Engine:
    """A model of made-up routing, and an LRU cache that holds what a load has read until it ends."""

    def __init__(self, rng: random.Random, sizes: list[int], n_expert: int, k: int, budget: int):
        self.rng, self.sizes, self.n_expert, self.k = rng, sizes, n_expert, k
        self.written = Written(budget)
        self.cache: OrderedDict[tuple[int, int], int] = OrderedDict()  # most recent last
        self.hot = [rng.sample(range(n_expert), k) for _ in sizes]
        self.written.lines += [
            "# route_trace v1",
            f"# model=made-up arch=none n_layer={len(sizes)} n_expert={n_expert} n_expert_used={k}",
            f"# cache_bytes={budget}",
            *(f"# layer={i} expert_bytes={size} dense_bytes=0" for i, size in enumerate(sizes)),
            HEADER,
        ]

    def select(self, layer: int) -> list[int]:
        """Return k experts; most are those of the token before."""
        chosen = [e for e in self.hot[layer] if self.rng.random() < 0.7]
        others = [e for e in range(self.n_expert) if e not in chosen]
        chosen += self.rng.sample(others, self.k - len(chosen))
        self.hot[layer] = chosen
        return chosen

    def evaluate(self, turn: int, phase: int, first: int, n_tokens: int) -> None:
        """Evaluate tokens `first` … in one pass; a prompt routes only its last token at the end."""
        written = self.written
        number = len(written.passes)
        written.passes.append((turn, phase, first, n_tokens))
        for step in [s for t, s in written.kept if t == turn and s >= first]:
            del written.kept[turn, step]  # what stood there was rejected, or cancelled
        for step in range(first, first + n_tokens):
            written.kept[turn, step] = number
        for layer, size in enumerate(self.sizes):
            steps = list(range(first, first + n_tokens))
            if phase == 0 and layer == len(self.sizes) - 1:
                steps = steps[-1:]
            self.load(turn, phase, layer, size, [(s, self.select(layer)) for s in steps])

    def load(
        self, turn: int, phase: int, layer: int, size: int, routings: list[tuple[int, list[int]]]
    ) -> None:
        written = self.written
        found: dict[int, int] = {}
        for step, experts in routings:
            for slot, expert in enumerate(experts):
                if expert not in found:
                    found[expert] = int((layer, expert) in self.cache)
                    written.lookups[phase] += 1
                    written.hits[phase] += found[expert]
                    written.read_bytes[phase] += 0 if found[expert] else size
                self.cache[layer, expert] = size
                self.cache.move_to_end((layer, expert))
                row = (turn, phase, step, layer, slot, expert, 0.25, found[expert], size, 0)
                written.lines.append(",".join(map(str, row)))
        while sum(self.cache.values()) > written.budget:
            oldest = next(iter(self.cache))
            if oldest[0] == layer and oldest[1] in found:
                break
            del self.cache[oldest]


def session(seed: int) -> Written:
    """Draw a session of one to three turns."""
    rng = random.Random(seed)
    n_layers, n_expert, k = rng.randint(2, 4), rng.randint(4, 12), rng.randint(1, 3)
    sizes = [rng.choice([1000, 1000, 1500, 2000]) for _ in range(n_layers)]
    budget = rng.randint(0, n_expert * sum(sizes))
    engine = Engine(rng, sizes, n_expert, k, budget)
    for turn in range(rng.randint(1, 3)):
        length, chunk = rng.randint(1, 9), rng.choice([2, 4, 512])
        if rng.random() < 0.3:
            engine.evaluate(turn, 0, 0, min(chunk, length))  # cancelled, then begun anew
        for first in range(0, length, chunk):
            engine.evaluate(turn, 0, first, min(chunk, length - first))
        step = length
        for _ in range(rng.randint(1, 8)):
            drafted = rng.choice([1, 1, 2, 4])
            engine.evaluate(turn, 1, step, drafted)
            step += rng.randint(1, drafted)  # the accepted ones; the others come again
    return engine.written

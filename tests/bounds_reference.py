"""The best that any demand policy could do, by trying every set of residents; plain Python.

It shares no code with the bound that it checks. An instance is small: a handful of keys and of
batches.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, pairwise

import numpy as np

from tracekit.policies import Batches


@dataclass(frozen=True)
class Instance:
    """A run of batches as sets of keys, and a budget.

    Attributes
    ----------
    batches : list of (layer, keys, decode)
    sizes : list of int
        Bytes of an expert of each layer.
    n_expert : int
    budget : int
    warm : int
        So many batches at the beginning count in no figure.
    skipped : tuple of int
        Decode batches that no figure of decoded tokens counts.
    """

    batches: list[tuple[int, tuple[int, ...], bool]]
    sizes: list[int]
    n_expert: int
    budget: int
    warm: int = 0
    skipped: tuple[int, ...] = ()

    def counts(self, number: int, decode_only: bool) -> bool:
        """Say whether a batch counts, among all or among those of decoded tokens."""
        if number < self.warm:
            return False
        return not decode_only or (self.batches[number][2] and number not in self.skipped)

    def size(self, key: int) -> int:
        return self.sizes[key // self.n_expert]

    @property
    def drops_reach_further(self) -> bool:
        """Whether an engine that may drop at once can do all that one can that keeps its loads.

        A load that is larger than the budget stays until the next one, which finds it if it is of
        the same layer. An engine that keeps to its budget after every load does not have that.
        """
        fits = all(len(keys) * self.sizes[layer] <= self.budget for layer, keys, _ in self.batches)
        return fits or all(a[0] != b[0] for a, b in pairwise(self.batches))

    def as_batches(self, bypass: bool) -> Batches:
        """Return the run as policies are given it."""
        keys = [key for _, of_batch, _ in self.batches for key in of_batch]
        counts = [len(of_batch) for _, of_batch, _ in self.batches]
        n = len(self.batches)
        return Batches(
            keys=np.array(keys, np.int32),
            admit_rank=np.concatenate([np.arange(c) for c in counts]).astype(np.uint16),
            batch_start=np.concatenate([[0], np.cumsum(counts)]),
            layer=np.array([layer for layer, _, _ in self.batches], np.int32),
            turn=np.zeros(n, np.int32),
            pass_id=np.arange(n, dtype=np.int32),
            step=np.arange(n, dtype=np.int32),
            phase=np.array([decode for _, _, decode in self.batches], np.uint8),
            expert_bytes=np.array(self.sizes, np.int64),
            layer_ids=np.arange(len(self.sizes), dtype=np.int16),
            n_expert=self.n_expert,
            top_k=max(counts),
            bypass=bypass,
            warming=np.arange(n) < self.warm if self.warm else None,
            skipped=np.isin(np.arange(n), self.skipped) if self.skipped else None,
        )


def draw(rng: random.Random, equal: bool) -> Instance:
    """Draw a small run.

    It has one to three layers and turns, or two or three layers, not all of one size; prompts of wide batches, whole or in two chunks, of which
    the first may leave out the last layer; decoded tokens, some of them verified several at once.
    The budget is under one routing in a third of the runs. In a third not all batches count.
    """
    n_layers, n_expert = rng.randint(1 if equal else 2, 3), rng.randint(2, 4)
    if n_layers * n_expert > 8:
        n_layers = 2
    sizes = [1] * n_layers
    while len(set(sizes)) == 1 and not equal:
        sizes = [rng.randint(1, 4) for _ in range(n_layers)]
    batches = []
    for _ in range(rng.randint(1, 3)):  # turns
        chunks = rng.choice([0, 1, 1, 2])
        for number, decode in enumerate([False] * chunks + [True] * rng.randint(1, 3)):  # passes
            most = min(2, n_expert) if decode and rng.random() < 0.8 else n_expert
            left_out = not decode and number + 1 < chunks and n_layers > 1 and rng.random() < 0.5
            for layer in range(n_layers - left_out):
                chosen = rng.sample(range(n_expert), rng.randint(1, most))
                keys = tuple(layer * n_expert + expert for expert in chosen)
                batches.append((layer, keys, decode))
    under = min(sizes[layer] * len(keys) for layer, keys, _ in batches) - 1
    total = n_expert * sum(sizes)
    budget = rng.randint(0, rng.choice([under, total, total]))
    warm, skipped = 0, ()
    if rng.random() < 1 / 3:
        warm = rng.choice([0, rng.randrange(len(batches))])
        decode = [number for number, (_, _, decode) in enumerate(batches) if decode]
        skipped = tuple(number for number in decode if rng.random() < 0.3)
    return Instance(batches, sizes, n_expert, budget, warm, skipped)


@dataclass(frozen=True)
class Best:
    """The best of every figure, each over all policies on its own."""

    hits: int
    hits_decode: int
    read_bytes: int
    read_bytes_decode: int


def best(instance: Instance, bypass: bool) -> Best:
    """Try every set that a policy could leave resident after each batch."""
    left = cache(partial(_left, instance, bypass))
    figures = {
        name: _most(instance, left, decode_only, in_bytes)
        for name, decode_only, in_bytes in (
            ("hits", False, False),
            ("hits_decode", True, False),
            ("bytes", False, True),
            ("bytes_decode", True, True),
        )
    }
    asked, asked_decode = (
        sum(
            instance.size(key)
            for number, (_, keys, _) in enumerate(instance.batches)
            if instance.counts(number, decode_only)
            for key in keys
        )
        for decode_only in (False, True)
    )
    return Best(
        figures["hits"],
        figures["hits_decode"],
        asked - figures["bytes"],
        asked_decode - figures["bytes_decode"],
    )


def best_ahead(instance: Instance, bypass: bool, most: int) -> tuple[int, int]:
    """Try every set as `best` does, and every choice of `most` experts that are read ahead.

    They are read after a decode batch, of those that the next one asks for, if that is a decode
    batch too. What is resident then fits the budget. Returns the most hits, and those of decode.
    """
    following = [*instance.batches[1:], (0, (), False)]
    wanted = [
        keys if decode and ahead[2] else ()
        for (_, _, decode), ahead in zip(instance.batches, following, strict=True)
        for keys in [ahead[1]]
    ]
    found = []
    for decode_only in (False, True):
        reached: dict[frozenset[int], int] = {frozenset(): 0}
        for number, (_, keys, _) in enumerate(instance.batches):
            now: dict[frozenset[int], int] = {}
            for residents, gained in reached.items():
                value = gained + instance.counts(number, decode_only) * len(residents & {*keys})
                for some in _left_ahead(instance, bypass, residents, keys, wanted[number], most):
                    now[some] = max(now.get(some, -1), value)
            reached = now
        found.append(max(reached.values()))
    return found[0], found[1]


def _left_ahead(
    instance: Instance,
    bypass: bool,
    residents: frozenset[int],
    keys: tuple[int, ...],
    wanted: tuple[int, ...],
    most: int,
) -> set[frozenset[int]]:
    """Return every set that may be resident after a batch and the reads ahead that follow it."""
    protected = frozenset() if bypass else frozenset(keys)
    free = sorted((residents | frozenset(keys)) - protected)
    found = set(_left(instance, bypass, residents, keys))
    for n in range(len(free) + 1):
        for some in map(frozenset, combinations(free, n)):
            kept = some | protected
            for m in range(1, most + 1):
                for read in map(frozenset, combinations(sorted({*wanted} - kept), m)):
                    if sum(map(instance.size, kept | read)) <= instance.budget:
                        found.add(kept | read)
    return found


# From what was resident and what a batch asks for to every set that may be resident after it.
Left = Callable[[frozenset[int], tuple[int, ...]], list[frozenset[int]]]


def _most(instance: Instance, left: Left, decode_only: bool, in_bytes: bool) -> int:
    """Return the most hits, or bytes of hits, over every sequence of resident sets."""
    reached: dict[frozenset[int], int] = {frozenset(): 0}
    for number, (_, keys, _) in enumerate(instance.batches):
        now: dict[frozenset[int], int] = {}
        for residents, gained in reached.items():
            hits = [key for key in keys if key in residents]
            gain = sum(instance.size(key) for key in hits) if in_bytes else len(hits)
            value = gained + (gain if instance.counts(number, decode_only) else 0)
            for some in left(residents, keys):
                if now.get(some, -1) < value:
                    now[some] = value
        reached = now
    return max(reached.values())


def _left(
    instance: Instance, bypass: bool, residents: frozenset[int], keys: tuple[int, ...]
) -> list[frozenset[int]]:
    """Return every set that may be resident after a batch; a smaller one is never better."""
    protected = frozenset() if bypass else frozenset(keys)
    free = sorted((residents | frozenset(keys)) - protected)
    own = sum(map(instance.size, protected))
    room = max(instance.budget - own, 0)
    found = []
    for n in range(len(free) + 1):
        for some in map(frozenset, combinations(free, n)):
            spare = room - sum(map(instance.size, some))
            others = (instance.size(key) for key in free if key not in some)
            if 0 <= spare < min(others, default=room + 1):
                found.append(some | protected)
    return found

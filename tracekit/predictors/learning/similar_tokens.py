"""What past tokens that routed alike selected at a layer: the history, its index, and the vote.

In: tokens in the order they ran, and questions about a block of them. Out: a score for every expert.
This module knows nothing of traces, nor of who asks.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tracekit.kernels import inlined, kernel
from tracekit.predictors.learning.averages import mixed, no_averages, one_more
from tracekit.routing.blocks import Block
from tracekit.routing.passed import Passed


@dataclass(frozen=True)
class _Known:
    """What is known of the history, or of a part of it, while a block is asked about.

    Attributes
    ----------
    reached : bool [L, n]
        The tokens of the part, at the layers that they reached.
    averages : float64 [2, L, n_expert]
        The fast and the slow average, before the block.
    in_common : int32 [T, W]
        As `_overlaps` gives it, where tokens are compared before they have begun.
    places : uint16 or uint32 [L, n * k]
        Places in the history, by expert and then ascending.
    starts : int32 [L, n_expert + 1]
        Where in `places` those of each expert begin.
    """

    reached: np.ndarray
    averages: np.ndarray
    in_common: np.ndarray
    places: np.ndarray
    starts: np.ndarray


class SimilarTokens:
    """The last tokens that passed, and the vote of those that routed as the one in hand does.

    Parameters
    ----------
    n_layers, n_expert, top_k : int
    history : int
        How many past tokens vote.
    recent : int
        How many layers that have run are compared.
    sharpness : float
        How much more an alike token counts: its weight is exp(sharpness × share of slots in common).
    habit : float
        What the layer's average selection adds to the vote.
    horizon : int or None
        MoE layers ahead; None: tokens are compared before they have begun, by all layers of the token
        before each.
    """

    def __init__(
        self,
        n_layers: int,
        n_expert: int,
        top_k: int,
        history: int,
        recent: int,
        sharpness: float,
        habit: float,
        horizon: int | None,
    ):
        self._shape = n_layers, n_expert, top_k
        self._history, self._recent, self._habit = history, recent, habit
        self._horizon = horizon
        layers = n_layers if horizon is None else min(recent, n_layers)
        # By how many slots a token has less in common than the most alike one, of how many there are.
        self._weight_of = [
            np.exp(-sharpness * np.arange(m * top_k + 1) / max(m * top_k, 1))
            for m in range(layers + 1)
        ]
        self.forget()

    def forget(self) -> None:
        """Know nothing."""
        n_layers, _, top_k = self._shape
        self._experts = np.zeros((n_layers, 0, top_k), np.uint16)
        self._reached = np.zeros((n_layers, 0), np.bool_)
        self._turn = np.zeros(0, np.int64)
        self._averages = no_averages(*self._shape)
        self._settled = 0  # so many tokens of the history are in the averages

    def take_in(self, tokens: Passed) -> None:
        """Add tokens that have passed."""
        self._settle()
        self._append(tokens.experts, tokens.reached, tokens.turn)
        self._settle()

    def meet(self, block: Block) -> None:
        """Add the tokens of `block` that stay, and be ready to be asked about all of them."""
        self._settle()
        stayed = block.experts[block.kept]
        self._append(stayed, np.ones(stayed.shape[:2], np.bool_), block.turn)
        self._start = block.start
        first_of_pass = np.searchsorted(block.decode_pass, block.decode_pass)
        kept_before = np.cumsum(block.kept) - block.kept
        # What is known before a pass: the history up to its first token.
        self._known = (self._settled + kept_before[first_of_pass]).astype(np.int64)
        self._asked = np.ascontiguousarray(block.experts.transpose(1, 0, 2))
        self._without = {frozenset[int](): self._indexed(self._reached, self._averages)}

    def _settle(self) -> None:
        """Take into the averages what waits for it, and drop what is too old to vote."""
        n = self._experts.shape[1]
        _average(self._experts, self._reached, self._settled, n, self._averages)
        # One more, for before a token has begun each is compared by the token before it.
        old = max(0, n - self._history - 1)
        if old:
            self._experts = self._experts[:, old:].copy()
            self._reached = self._reached[:, old:].copy()
            self._turn = self._turn[old:].copy()
        self._settled = n - old

    def _append(self, experts: np.ndarray, reached: np.ndarray, turn: int) -> None:
        # In C's order, so that numba compiles the kernels once.
        self._experts = np.ascontiguousarray(
            np.concatenate([self._experts, experts.transpose(1, 0, 2)], axis=1)
        )
        self._reached = np.ascontiguousarray(np.concatenate([self._reached, reached.T], axis=1))
        self._turn = np.append(self._turn, np.full(len(experts), turn))

    def _without_turns(self, turns: frozenset[int]) -> _Known:
        """Return what would be known if the tokens of `turns` had not been seen."""
        reached = self._reached & ~np.isin(self._turn, list(turns))
        averages = no_averages(*self._shape)
        _average(self._experts, reached, 0, self._settled, averages)
        return self._indexed(reached, averages)

    def _indexed(self, reached: np.ndarray, averages: np.ndarray) -> _Known:
        n_layers, n_expert, top_k = self._shape
        n = self._experts.shape[1]
        # Small enough, they are read from the nearest memory.
        places = np.empty((n_layers, n * top_k), np.uint16 if n < 1 << 16 else np.uint32)
        starts = np.empty((n_layers, n_expert + 1), np.int32)
        _index(self._experts, reached, places, starts)
        in_common = np.zeros((0, 0), np.int32)
        if self._horizon is None:
            longest = min(self._history, int(self._known[-1]) if len(self._known) else 0)
            in_common = np.zeros((len(self._known), longest), np.int32)
            _overlaps(self._experts, reached, places, starts, self._known, self._history, in_common)
        return _Known(reached, averages, in_common, places, starts)

    @property
    def turns(self) -> frozenset[int]:
        """The turns whose tokens are in the history."""
        return frozenset(np.unique(self._turn).tolist())

    def knows(self, block: Block) -> np.ndarray:
        """Say before which tokens of `block` any token has passed, bool [T]."""
        first = block.start - self._start
        known: np.ndarray = self._known[first : first + len(block)] > 0
        return known

    def vote(self, block: Block, layer: int, without: Collection[int] = frozenset()) -> np.ndarray:
        """Let the history vote on a layer.

        Parameters
        ----------
        block : Block
            The block that was met last, or a part of it: T tokens.
        layer : int
            Index among the MoE layers; one that the horizon reaches.
        without : collection of int
            Turns that do not vote.

        Returns
        -------
        float32 [T, n_expert]
            The share of the votes that selected each expert, and the habit.
        """
        n_expert = self._shape[1]
        absent = frozenset(without) & self.turns
        if absent not in self._without:
            self._without[absent] = self._without_turns(absent)
        known = self._without[absent]
        first = block.start - self._start
        rows = slice(first, first + len(block))
        if self._horizon is None:
            sources, weight_of = (0, 0), self._weight_of[-1]
        else:
            source = layer - self._horizon
            sources = max(0, source - self._recent + 1), source + 1
            weight_of = self._weight_of[sources[1] - sources[0]]
        scores = np.empty((len(block), n_expert), np.float32)
        _vote(
            # A copy: a part may be read-only, for which numba would compile a second time.
            np.array(self._asked[sources[0] : sources[1], rows], order="C"),
            self._known[rows],
            self._history,
            sources[0],
            layer,
            known.places,
            known.starts,
            known.in_common[rows],
            known.reached[layer],
            self._experts[layer],
            weight_of,
            self._settled,
            np.ascontiguousarray(known.averages[:, layer]),
            self._habit,
            scores,
        )
        return scores

    @property
    def size_bytes(self) -> int:
        """A device carries ids of 1 or 2 bytes, for a full history, and two averages of 4 bytes."""
        n_layers, n_expert, top_k = self._shape
        of_id = 1 if n_expert <= 256 else 2
        return n_layers * (self._history * top_k * of_id + 2 * 4 * n_expert)


@kernel
def _average(
    experts: np.ndarray, reached: np.ndarray, first: int, stop: int, averages: np.ndarray
) -> None:
    for layer in range(len(reached)):
        fast, slow = averages[0, layer], averages[1, layer]
        for u in range(first, stop):
            if reached[layer, u]:
                one_more(fast, slow, experts[layer, u])


# A counting sort of the tokens by the experts that they selected.
@kernel
def _index(
    experts: np.ndarray, reached: np.ndarray, places: np.ndarray, starts: np.ndarray
) -> None:
    n_layers, n, k = experts.shape
    at = np.empty(starts.shape[1], np.int64)
    for layer in range(n_layers):
        at[:] = 0
        for u in range(n):
            if reached[layer, u]:
                for slot in range(k):
                    at[np.int64(experts[layer, u, slot]) + 1] += 1
        starts[layer, 0] = 0
        for e in range(1, at.size):
            at[e] += at[e - 1]
            starts[layer, e] = at[e]
        for u in range(n):
            if reached[layer, u]:
                for slot in range(k):
                    expert = np.int64(experts[layer, u, slot])
                    places[layer, at[expert]] = u
                    at[expert] += 1


# Of every token asked: how many slots of all layers the token before it has in common with the token
# before each token of the window. The lists are walked once for all layers that are asked about.
@kernel
def _overlaps(
    experts: np.ndarray,
    reached: np.ndarray,
    places: np.ndarray,
    starts: np.ndarray,
    known: np.ndarray,
    history: int,
    in_common: np.ndarray,
) -> None:
    n_layers, k = experts.shape[0], experts.shape[2]
    head = starts[:, :-1].copy()
    for t in range(known.size):
        end = known[t]
        if end == 0:
            continue
        low = max(end - history, 0)
        last = end - 1
        for layer in range(n_layers):
            if not reached[layer, last]:
                continue
            for slot in range(k):
                e = np.int64(experts[layer, last, slot])
                stop = starts[layer, e + 1]
                at = head[layer, e]
                while at < stop and places[layer, at] < low - 1:
                    at += 1
                head[layer, e] = at
                while at < stop and places[layer, at] < last:
                    in_common[t, places[layer, at] + 1 - low] += 1
                    at += 1


# Slots in common are whole numbers, so a token's weight is looked up in a short table. Every token
# asked about is answered alone, by sums whose order depends on its own window only: the scores are
# the same however the tokens are cut into blocks.
@kernel
def _vote(
    asked: np.ndarray,
    known: np.ndarray,
    history: int,
    sources: int,
    layer: int,
    places: np.ndarray,
    starts: np.ndarray,
    in_common: np.ndarray,
    reached: np.ndarray,
    experts: np.ndarray,
    weight_of: np.ndarray,
    settled: int,
    averages: np.ndarray,
    habit: float,
    scores: np.ndarray,
) -> None:
    n_sources, n_tokens, k = asked.shape
    n_expert = scores.shape[1]
    fast, slow = averages[0].copy(), averages[1].copy()
    # The places of each list that are in the window; windows only move on.
    first, last = starts[:, :-1].copy(), starts[:, :-1].copy()
    common = np.zeros(reached.size, np.int32)
    weight = np.zeros(reached.size, np.float64)
    averaged = settled
    for t in range(n_tokens):
        end = known[t]
        low = max(end - history, 0)
        if n_sources:
            common[low:end] = 0
            for m in range(n_sources):
                at = sources + m
                for slot in range(k):
                    e = np.int64(asked[m, t, slot])
                    stop = starts[at, e + 1]
                    a, b = _moved(places[at], first[at, e], last[at, e], stop, low, end)
                    first[at, e], last[at, e] = a, b
                    for place in places[at, a:b]:
                        common[place] += 1
        else:
            for u in range(low, end):
                common[u] = in_common[t, u - low]
        most = 0
        for u in range(low, end):
            if reached[u]:
                most = max(most, common[u])
        total = 0.0
        for u in range(low, end):
            weight[u] = weight_of[most - common[u]] if reached[u] else 0.0
            total += weight[u]
        while averaged < end:
            if reached[averaged]:
                one_more(fast, slow, experts[averaged])
            averaged += 1
        share = 1 / total if total else 0.0
        for expert in range(n_expert):
            stop = starts[layer, expert + 1]
            a, b = _moved(places[layer], first[layer, expert], last[layer, expert], stop, low, end)
            first[layer, expert], last[layer, expert] = a, b
            votes = _sum_at(weight, places[layer, a:b])
            scores[t, expert] = votes * share + habit * mixed(fast[expert], slow[expert])


# Return which part of an expert's list is in the window, from what it was before.
@inlined
def _moved(
    places: np.ndarray, first: int, last: int, stop: int, low: int, end: int
) -> tuple[int, int]:
    while first < stop and places[first] < low:
        first += 1
    last = max(first, last)
    while last < stop and places[last] < end:
        last += 1
    return first, last


# Four sums at a time: an addition waits for the one before it in its own sum only.
@inlined
def _sum_at(values: np.ndarray, places: np.ndarray) -> float:
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    fours = places.size // 4
    for i in range(fours):
        a += values[places[4 * i]]
        b += values[places[4 * i + 1]]
        c += values[places[4 * i + 2]]
        d += values[places[4 * i + 3]]
    for i in range(4 * fours, places.size):
        a += values[places[i]]
    return a + b + (c + d)

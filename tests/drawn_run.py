"""One run, drawn at random: what an engine computed for several requests.

It is the truth that every layout holds in whole or in part. The views of a run leave out what a layout
does. Nothing here knows a layout or a reader.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

PREFILL, DECODE = 0, 1


@dataclass(frozen=True)
class Drawn:
    """A run of T tokens at L MoE layers.

    Attributes
    ----------
    experts : int [T, L, k]
        Best first.
    weights : float32 [T, L, k]
        Descending, and exact in float16.
    logits : float32 [T, L, E]
        Different in a routing, and exact in bfloat16.
    gate_input : float32 [T, L, H]
        Exact in bfloat16.
    turn, passes, phase, step, token : int [T]
        `token` is the id in the vocabulary.
    layers : tuple of int
        The model's numbers; the first ones of the model are dense.
    n_layer, n_expert, chunk : int
        `chunk`: most tokens of a prompt's pass.
    is_pruned : bool
        The last layer routes the last token of a prompt only, since no other one is sampled from.
    """

    experts: np.ndarray
    weights: np.ndarray
    logits: np.ndarray
    gate_input: np.ndarray
    turn: np.ndarray
    passes: np.ndarray
    phase: np.ndarray
    step: np.ndarray
    token: np.ndarray
    layers: tuple[int, ...]
    n_layer: int
    n_expert: int
    chunk: int
    is_pruned: bool = False

    @property
    def k(self) -> int:
        return self.experts.shape[2]

    def __len__(self) -> int:
        return len(self.turn)

    # ---- views -----------------------------------------------------------------------------

    def taken(self, rows: np.ndarray) -> "Drawn":
        """Return some tokens; turns and passes are counted anew."""
        columns = {n: each[rows] for n, each in vars(self).items() if isinstance(each, np.ndarray)}
        for name in ("turn", "passes"):
            columns[name] = np.unique(columns[name], return_inverse=True)[1]
        return replace(self, **columns)

    def prompts(self) -> "Drawn":
        """Return the tokens of the prompts."""
        return self.taken(self.phase == PREFILL)

    def decoded(self) -> "Drawn":
        """Return the generated tokens."""
        return self.taken(self.phase == DECODE)

    def whole_prompts(self) -> "Drawn":
        """Return the run with each prompt in one pass."""
        at = np.where(self.phase == DECODE, self.step, -1)
        key = np.stack((self.turn, at))
        return replace(self, passes=np.unique(key, axis=1, return_inverse=True)[1].reshape(-1))

    def pruned(self) -> "Drawn":
        """Return the run as llama.cpp computes it: see `is_pruned`."""
        return replace(self, is_pruned=True)

    def one_prompt(self) -> "Drawn":
        """Return all tokens as one prompt, in passes of `chunk`."""
        step = np.arange(len(self))
        nothing = np.zeros_like(step)
        return replace(self, turn=nothing, passes=step // self.chunk, phase=nothing, step=step)

    def all_decoded(self, one_turn: bool = False) -> "Drawn":
        """Return all tokens as generated ones, each in a pass of its own; of one turn if asked."""
        number = np.arange(len(self))
        places = {"turn": np.zeros_like(number), "step": number} if one_turn else {}
        return replace(self, passes=number, phase=np.ones_like(number), **places)

    def counted_layers(self) -> "Drawn":
        """Return the layers counted from 0 among those with experts."""
        return replace(self, layers=tuple(range(len(self.layers))), n_layer=len(self.layers))

    def by_id(self) -> "Drawn":
        """Return the slots of each routing in ascending order of the experts."""
        return self.in_slots(np.argsort(self.experts, axis=2))

    def shuffled(self) -> "Drawn":
        """Return the slots of each routing in an order that says nothing."""
        keys = np.random.default_rng(9).random(self.experts.shape)
        return self.in_slots(np.argsort(keys, axis=2))

    def in_slots(self, order: np.ndarray) -> "Drawn":
        """Return the slots of each routing in another order, int [T, L, k]."""
        lists = {
            name: np.take_along_axis(getattr(self, name), order, 2)
            for name in ("experts", "weights")
        }
        return replace(self, **lists)

    # ---- parts, for writers ----------------------------------------------------------------

    @property
    def present(self) -> np.ndarray:
        """Which tokens are routed at which layer, bool [T, L]."""
        present = np.ones(self.experts.shape[:2], np.bool_)
        if self.is_pruned:
            last_of_prompt = np.append((np.diff(self.phase) == 1) | (np.diff(self.turn) > 0), True)
            present[:, -1] = (self.phase == DECODE) | last_of_prompt
        return present

    def requests(self) -> list["Request"]:
        """Return the rows of each turn."""
        found = []
        for turn in np.unique(self.turn).tolist():
            rows = np.flatnonzero(self.turn == turn)
            n_prompt = int(np.count_nonzero(self.phase[rows] == PREFILL))
            found.append(Request(turn, slice(int(rows[0]), int(rows[-1]) + 1), n_prompt))
        return found

    def each_pass(self) -> Iterator[np.ndarray]:
        """Yield the rows of each pass."""
        for number in np.unique(self.passes):
            yield np.flatnonzero(self.passes == number)

    def calls(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield place and number of the layer, and the rows of each call, as an engine computes."""
        present = self.present
        for rows in self.each_pass():
            for place, layer in enumerate(self.layers):
                routed = rows[present[rows, place]]
                if len(routed):
                    yield place, layer, routed

    def all_layers(self, none: int = 0) -> np.ndarray:
        """Return experts [T, all layers, k], `none` at the dense ones."""
        grid = np.full((len(self), self.n_layer, self.k), none, np.int64)
        grid[:, list(self.layers)] = self.experts
        return grid

    def counts(self) -> np.ndarray:
        """Return how often each expert was used, int64 [all layers, E]."""
        found = np.zeros((self.n_layer, self.n_expert), np.int64)
        for place, layer in enumerate(self.layers):
            found[layer] = np.bincount(self.experts[:, place].ravel(), minlength=self.n_expert)
        return found


@dataclass(frozen=True)
class Request:
    """The rows of a turn, and how many of them are its prompt."""

    turn: int
    rows: slice
    n_prompt: int

    @property
    def n_rows(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def n_output(self) -> int:
        """Generated tokens: one more than have a row, since the last sampled one is never routed."""
        return self.n_rows - self.n_prompt + 1


def drawn(
    requests: list[tuple[int, int]],
    n_layer: int,
    n_dense: int,
    n_expert: int,
    k: int,
    chunk: int,
    n_embd: int = 4,
    seed: int = 0,
) -> Drawn:
    """Draw a run of requests, each with the tokens of its prompt and the routed generated ones."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[int]] = {name: [] for name in ("turn", "passes", "phase", "step")}
    number = -1
    for turn, (n_prompt, n_generated) in enumerate(requests):
        for step in range(n_prompt + n_generated):
            decodes = step >= n_prompt
            number += decodes or step % chunk == 0
            for name, value in zip(columns, (turn, number, int(decodes), step), strict=True):
                columns[name].append(value)
    places = {name: np.array(values) for name, values in columns.items()}
    n_tokens, layers = len(places["turn"]), tuple(range(n_dense, n_layer))
    # Eighths up to 16 have at most eight significant bits, as bfloat16 holds them.
    values = (np.arange(n_expert, dtype=np.float32) - n_expert // 2) / 8
    logits = rng.permuted(np.tile(values, (n_tokens, len(layers), 1)), axis=2)
    experts = np.argsort(-logits, axis=2)[:, :, :k]
    weights = np.cumsum(rng.integers(1, 9, experts.shape), axis=2)[:, :, ::-1] / np.float32(128)
    gate_input = rng.integers(-64, 64, (n_tokens, len(layers), n_embd)) / np.float32(16)
    return Drawn(
        experts=experts,
        weights=weights.astype(np.float32),
        logits=logits,
        gate_input=gate_input.astype(np.float32),
        token=rng.integers(0, 50_000, n_tokens),
        layers=layers,
        n_layer=n_layer,
        n_expert=n_expert,
        chunk=chunk,
        **places,
    )


def small_run() -> Drawn:
    """Return a run of four requests, of a model with six layers, two of them dense."""
    return drawn([(7, 3), (3, 1), (4, 4), (11, 2)], 6, 2, 16, 3, chunk=4)


def large_run() -> Drawn:
    """Return a run of fifty requests, of a model with 60 layers, three of them dense."""
    requests = [(10 + n + (n % 8 == 7), 4 + n % 5) for n in range(50)]
    return drawn(requests, 60, 3, 256, 8, chunk=8)

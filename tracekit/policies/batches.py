"""A run as a cache sees it: batches of lookups, in the order they ran.

Nothing here knows a trace or a policy.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.known import Guesses, Popularity
from tracekit.trace.schema import DECODE


@dataclass(frozen=True, eq=False)
class Batches:
    """A run as the cache sees it: B batches, one per layer load, in the order they ran.

    A *key* is a dense index of (MoE layer, expert): ``moe_layer * n_expert + expert``. All keys of
    a batch belong to one layer, so they have one size. A batch has each key once, however many of
    its tokens selected it.

    Attributes
    ----------
    keys : int32 [N]
        The distinct keys of each batch, in the order of their *last* touch: the last one is the
        most recent after the batch.
    admit_rank : uint16 [N]
        The place of each key in its batch in the order of *first* touch, from 0: the order in
        which an engine admits what it misses. Equal to the place in `keys` for a decoded token.
    batch_start : int64 [B + 1]
        Batch b holds ``keys[batch_start[b]:batch_start[b + 1]]``.
    layer : int32 [B]
        Index of the batch's layer among the MoE layers.
    turn, pass_id, step : int32 [B]
        The turn and pass of a batch, and the absolute position of its last token.
    phase : uint8 [B]
        0 prefill, 1 decode.
    expert_bytes : int64 [L]
        Size of one expert of each MoE layer; 1 where `sized` is False.
    layer_ids : int16 [L]
        The model's own number of each MoE layer.
    n_expert, top_k : int
    weights : float32 [N] or None
        Final routing weight of each key of a *decode* batch (NaN: unknown, and in prefill batches).
        Only given to a policy that is ``lossy``.
    guesses : Guesses or None
        Only given to a policy that ``needs_predictor``.
    popularity : Popularity or None
        Only given to a policy that ``needs_popularity``.
    sized : bool
        Whether the sizes of experts are known; if not, all are taken for equal.
    rows : uint16 [R, top_k] or None
        The experts that the router selected for each token of each batch, in slot order: those of a
        prompt's tokens and of rejected drafts too, and any that the engine left out.
    row_start : int64 [B + 1] or None
        Batch b holds ``rows[row_start[b]:row_start[b + 1]]``, its tokens in the order they ran.
    bypass : bool
        The engine may drop at once what a batch has just used, since it stages what it reads in a
        scratch buffer that is not charged to the cache. Only set for a policy that ``can_bypass``.
    in_slots : bool
        A budget is a number of experts of every MoE layer, in bytes; see `shares`.
    warming : bool [B] or None
        Batches of another run that only fill the cache: no figure counts them. None: there are none.
    skipped : bool [B] or None
        Decode batches that no figure of decoded tokens counts. None: there are none.
    """

    keys: np.ndarray
    admit_rank: np.ndarray
    batch_start: np.ndarray
    layer: np.ndarray
    turn: np.ndarray
    pass_id: np.ndarray
    step: np.ndarray
    phase: np.ndarray
    expert_bytes: np.ndarray
    layer_ids: np.ndarray
    n_expert: int
    top_k: int
    weights: np.ndarray | None = None
    guesses: Guesses | None = None
    popularity: Popularity | None = None
    rows: np.ndarray | None = None
    row_start: np.ndarray | None = None
    bypass: bool = False
    sized: bool = True
    in_slots: bool = False
    warming: np.ndarray | None = None
    skipped: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.layer)

    @property
    def n_keys(self) -> int:
        """How many (layer, expert) pairs the model has."""
        return len(self.expert_bytes) * self.n_expert

    @cached_property
    def lookups(self) -> np.ndarray:
        """Lookups of each batch, int64 [B]: one per distinct expert."""
        return np.asarray(np.diff(self.batch_start))

    @cached_property
    def counted(self) -> np.ndarray:
        """Batches that figures count, bool [B]: all but those that warm the cache."""
        return np.ones(len(self), np.bool_) if self.warming is None else ~self.warming

    @cached_property
    def counted_decode(self) -> np.ndarray:
        """Batches that figures of decoded tokens count, bool [B]."""
        decode = (self.phase == DECODE) & self.counted
        return np.asarray(decode if self.skipped is None else decode & ~self.skipped)

    def shares(self, budget: int) -> np.ndarray:
        """Divide a budget of the whole model among its MoE layers, int64 [L].

        Each gets the same number of bytes; with `in_slots`, the same number of experts.
        """
        if not self.in_slots:
            return np.full(len(self.expert_bytes), budget // len(self.expert_bytes), np.int64)
        return np.asarray(self.slots(budget) * self.expert_bytes)

    def slots(self, budget: int) -> int:
        """Return how many experts of every MoE layer `budget` holds."""
        return budget // int(self.expert_bytes.sum())

    @cached_property
    def key_bytes(self) -> np.ndarray:
        """Size of each key, int64 [n_keys]."""
        return np.repeat(self.expert_bytes, self.n_expert)

    @cached_property
    def layer_of_lookup(self) -> np.ndarray:
        """Index of each lookup's MoE layer, uint8 [N] (uint16 from 257 layers on)."""
        dtype = np.min_scalar_type(max(len(self.expert_bytes) - 1, 0))
        return np.repeat(self.layer.astype(dtype), self.lookups)

    @cached_property
    def next_use(self) -> np.ndarray:
        """Position in `keys` of each key's next lookup, int32 [N]; N where there is none."""
        next_use = np.empty(len(self.keys), np.int32)
        _next_use(self.keys, next_use, np.full(self.n_keys, len(self.keys), np.int32))
        return next_use

    @cached_property
    def after_first_decode(self) -> np.ndarray:
        """Decode batches after their turn's first decoded token, bool [B].

        A prefill may leave more resident than the budget. After the first decoded token every
        layer has evicted once, so any excess from then on is the policy's doing.
        """
        decode = self.phase == DECODE
        # Turns follow each other. An array as long as the largest number of a turn could be huge.
        turn = np.cumsum(np.diff(self.turn, prepend=self.turn[:1]) != 0)
        first_pass = np.full(int(turn.max(initial=-1)) + 1, np.iinfo(np.int32).max)
        np.minimum.at(first_pass, turn[decode], self.pass_id[decode])
        return np.asarray(decode & (self.pass_id > first_pass[turn]))

    def routing_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `rows` and `row_start`, for a policy that learns from every token.

        Raises
        ------
        ValueError
            These batches do not carry the rows of each batch; those of a trace do.
        """
        if self.rows is None or self.row_start is None or len(self.row_start) != len(self) + 1:
            raise ValueError("a policy that learns from every token takes batches with their rows")
        rows = np.ascontiguousarray(self.rows).view()
        rows.flags.writeable = False  # as of a trace on disk: kernels are compiled for one type
        return rows, self.row_start

    def lookups_in(self, which: np.ndarray) -> np.ndarray:
        """Return the positions of the lookups of the batches `which`, int64 [N']."""
        return _positions(self.batch_start, which)

    def only(self, which: np.ndarray) -> "Batches":
        """Return the batches `which` (int64 [B'], ascending) as a run of their own."""
        lookups = self.lookups_in(which)
        rows, row_start = self.rows, self.row_start
        if rows is not None and row_start is not None:
            rows = rows[_positions(row_start, which)]
            row_start = np.concatenate([[0], np.cumsum(np.diff(row_start)[which])])
        return replace(
            self,
            keys=self.keys[lookups],
            admit_rank=self.admit_rank[lookups],
            batch_start=np.concatenate([[0], np.cumsum(self.lookups[which])]),
            layer=self.layer[which],
            turn=self.turn[which],
            pass_id=self.pass_id[which],
            step=self.step[which],
            phase=self.phase[which],
            weights=None if self.weights is None else self.weights[lookups],
            guesses=None,
            rows=rows,
            row_start=row_start,
            warming=None if self.warming is None else self.warming[which],
            skipped=None if self.skipped is None else self.skipped[which],
        )

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes one token touches over all layers: sum over layers of k × expert bytes."""
        return int(self.expert_bytes.sum()) * self.top_k


def _positions(starts: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the positions from ``starts[b]`` to ``starts[b + 1]`` of each b of `which`."""
    n = np.diff(starts)[which]
    first = np.cumsum(n) - n
    return np.asarray(np.arange(n.sum()) + np.repeat(starts[which] - first, n))


# One pass from the end, which remembers where each key was seen last.
@kernel
def _next_use(keys: np.ndarray, next_use: np.ndarray, seen: np.ndarray) -> None:
    for p in range(keys.size - 1, -1, -1):
        next_use[p] = seen[keys[p]]
        seen[keys[p]] = p

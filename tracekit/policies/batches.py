"""A run as a cache sees it, or a piece of one: batches of lookups, in the order they ran.

Nothing here knows a trace or a policy.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.known import Guesses, Later, Popularity
from tracekit.policies.model import Model
from tracekit.trace.schema import DECODE


class Passes:
    """Results of passes over a run, each made once, whichever thread asks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[bytes, np.ndarray] = {}

    def once(self, of: np.ndarray, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return what `make` returns for `of`, or what it returned before."""
        with self._lock:
            if of.tobytes() not in self._found:
                self._found[of.tobytes()] = make()
            return self._found[of.tobytes()]


@dataclass(frozen=True, eq=False, kw_only=True)
class Batches(Model):
    """A run as the cache sees it: B batches, one per layer load, in the order they ran.

    All keys of a batch belong to one layer, so they have one size. A batch has each key once,
    however many of its tokens selected it. A run that is replayed from disk comes in pieces of whole
    batches.

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
    weights : float32 [N] or None
        Final routing weight of each key of a *decode* batch (NaN: unknown, and in prefill batches).
        Only given to a policy that is ``lossy``.
    guesses : Guesses or None
        Only given to a policy that ``needs_predictor``.
    popularity : Popularity or None
        Only given to a policy that ``needs_popularity``.
    rows : uint16 [R, top_k] or None
        The experts that the router selected for each token of each batch, in slot order: those of a
        prompt's tokens and of rejected drafts too, and any that the engine left out.
    row_start : int64 [B + 1] or None
        Batch b holds ``rows[row_start[b]:row_start[b + 1]]``, its tokens in the order they ran.
    warming : bool [B] or None
        Batches of another run that only fill the cache: no figure counts them. None: there are none.
    skipped : bool [B] or None
        Decode batches that no figure of decoded tokens counts. None: there are none.
    later : Later or None
        Of a piece of a longer run that is replayed by a policy that looks into the future: what is
        used after it. None: nothing is.
    first_decode : int or None
        Of a piece: the first decode pass of the turn with which it begins, if that pass was in a piece
        before.
    """

    keys: np.ndarray
    admit_rank: np.ndarray
    batch_start: np.ndarray
    layer: np.ndarray
    turn: np.ndarray
    pass_id: np.ndarray
    step: np.ndarray
    phase: np.ndarray
    weights: np.ndarray | None = None
    guesses: Guesses | None = None
    popularity: Popularity | None = None
    rows: np.ndarray | None = None
    row_start: np.ndarray | None = None
    warming: np.ndarray | None = None
    skipped: np.ndarray | None = None
    later: Later | None = None
    first_decode: int | None = None

    def __len__(self) -> int:
        return len(self.layer)

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

    @property
    def n_positions(self) -> int:
        """How many positions uses can have: N, and then one for each key's first use `later`."""
        return len(self.keys) + (0 if self.later is None else self.n_keys)

    @cached_property
    def layer_of_position(self) -> np.ndarray:
        """Index of the MoE layer of the use at each position, uint8 or uint16 [n_positions]."""
        dtype = np.min_scalar_type(max(len(self.expert_bytes) - 1, 0))
        layers = np.repeat(self.layer.astype(dtype), self.lookups)
        if self.later is None:
            return layers
        of_later = np.zeros(self.n_keys, dtype)
        used = np.flatnonzero(self.later.rank >= 0)
        of_later[self.later.rank[used]] = used // self.n_expert
        return np.concatenate([layers, of_later])

    @property
    def next_use(self) -> np.ndarray:
        """Position of each key's next lookup, int32 [N]; `n_positions` where there is none.

        Positions from N on are those of the keys' first uses `later`, in their order.
        """
        return self._uses[0]

    @property
    def first_use(self) -> np.ndarray:
        """Position of the first lookup of each key, int32 [n_keys]; `n_positions`: there is none."""
        return self._uses[1]

    @cached_property
    def _uses(self) -> tuple[np.ndarray, np.ndarray]:
        n, never = len(self.keys), self.n_positions
        next_use = np.empty(n, np.int32)
        first_use = np.full(self.n_keys, never, np.int32)
        if self.later is not None:
            used = self.later.rank >= 0
            first_use[used] = n + self.later.rank[used]
        _next_use(self.keys, next_use, first_use)
        return next_use, first_use

    @cached_property
    def kind(self) -> np.ndarray:
        """Which figures count each batch, uint8 [B]: 0 none, 1 not those of decoded tokens, 2 all."""
        return np.asarray(self.counted.astype(np.uint8) + self.counted_decode)

    @cached_property
    def lookups_by_kind(self) -> np.ndarray:
        """Lookups by the kind of their batch and its layer, int64 [3, L]."""
        return self.by_kind(self.lookups)

    def by_kind(self, of_batches: np.ndarray) -> np.ndarray:
        """Add up a number of each batch, by the kind of the batch and its layer, int64 [3, L]."""
        # Sums in float64 are exact below 2^53.
        sums = np.bincount(self._place_by_kind, of_batches, 3 * self.n_layers)
        return np.asarray(sums.reshape(3, self.n_layers).astype(np.int64))

    @cached_property
    def _place_by_kind(self) -> np.ndarray:
        return np.asarray(self.kind.astype(np.int64) * self.n_layers + self.layer)

    @cached_property
    def peak_kind(self) -> np.ndarray:
        """Which peaks count what is resident after each batch, uint8 [B].

        0 none, 1 not that of decoded tokens, 2 both; see `after_first_decode`.
        """
        of_decode = self.counted_decode & self.after_first_decode
        return np.asarray(self.counted.astype(np.uint8) + of_decode)

    @cached_property
    def first_lookups(self) -> np.ndarray:
        """How many keys of each batch were never looked up before, int64 [B]."""
        first = self.first_use[self.first_use < len(self.keys)]
        return np.bincount(
            np.searchsorted(self.batch_start, first, side="right") - 1, minlength=len(self)
        )

    @cached_property
    def passes(self) -> "Passes":
        """Results that several policies share."""
        return Passes()

    @cached_property
    def after_first_decode(self) -> np.ndarray:
        """Decode batches after their turn's first decoded token, bool [B].

        A prefill may leave more resident than the budget. After the first decoded token every
        layer has evicted once, so any excess from then on is the policy's doing.
        """
        # Turns and passes ascend, so that the first decode batch of a turn is of its first pass.
        decode = np.flatnonzero(self.phase == DECODE)
        turn, pass_id = self.turn[decode], self.pass_id[decode]
        begins = np.flatnonzero(np.diff(turn, prepend=turn[:1] - 1))
        first_pass = pass_id[begins]
        if self.first_decode is not None and len(begins) and turn[0] == self.turn[0]:
            first_pass[0] = self.first_decode
        later = np.zeros(len(self), np.bool_)
        later[decode] = pass_id > np.repeat(first_pass, np.diff(begins, append=len(turn)))
        return later

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
        """Return the batches `which` (int64 [B'], in the order wanted) as a run of their own."""
        lookups = self.lookups_in(which)
        rows, row_start = self.rows, self.row_start
        if rows is not None and row_start is not None:
            rows = rows[_positions(row_start, which)]
            row_start = np.append(0, np.cumsum(row_start[which + 1] - row_start[which]))
        return replace(
            self,
            keys=self.keys[lookups],
            admit_rank=self.admit_rank[lookups],
            batch_start=np.append(
                0, np.cumsum(self.batch_start[which + 1] - self.batch_start[which])
            ),
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


def joined(pieces: Sequence[Batches]) -> Batches:
    """Return the pieces of a run, from its first to its last, as one; without what is used `later`."""
    if len(pieces) == 1:
        return pieces[0] if pieces[0].later is None else replace(pieces[0], later=None)
    per_batch = ("layer", "turn", "pass_id", "step", "phase", "counted", "counted_decode")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("keys", "admit_rank", *per_batch)
    }
    counted, counted_decode = columns.pop("counted"), columns.pop("counted_decode")
    lookups = np.concatenate([piece.lookups for piece in pieces])
    return replace(
        pieces[0],
        **columns,
        batch_start=np.append(0, np.cumsum(lookups)),
        warming=~counted,
        skipped=counted & (columns["phase"] == DECODE) & ~counted_decode,
        weights=None,
        guesses=None,
        rows=None,
        row_start=None,
        later=None,
    )


def _positions(starts: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the positions from ``starts[b]`` to ``starts[b + 1]`` of each b of `which`."""
    n = starts[which + 1] - starts[which]
    first = np.cumsum(n) - n
    return np.asarray(np.arange(n.sum()) + np.repeat(starts[which] - first, n))


# One pass from the end, which remembers where each key was seen last: in the end, its first use.
@kernel
def _next_use(keys: np.ndarray, next_use: np.ndarray, seen: np.ndarray) -> None:
    for p in range(keys.size - 1, -1, -1):
        next_use[p] = seen[keys[p]]
        seen[keys[p]] = p

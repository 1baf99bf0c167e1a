"""A trace as batches that come piece by piece, so that its length takes no memory.

In: a trace on disk. Out: pieces of whole batches, in the order they ran; for a policy that looks into
the future, with what is used after each piece. Nothing here knows a policy.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.policies.base import Batches
from tracekit.policies.known import Later
from tracekit.policies.model import Model
from tracekit.replaying.batches import batches_of, columns_for, starts_of_batches
from tracekit.replaying.counting import Counted
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE

# A piece has about so many lookups, and as many for each key: what is done once a piece, such as
# putting the keys in order, takes little of the time.
LOOKUPS = 1 << 20
LOOKUPS_A_KEY = 32

Columns = dict[str, np.ndarray]


class Pieces:
    """The batches of a trace in pieces; each loop over them reads the trace once.

    Parameters
    ----------
    trace : Trace
    model : Model
        Of that trace.
    counted : Counted
        Which decoded tokens figures count.
    lookups : int, optional
        About how many lookups a piece has; more, where one batch has more.
    """

    def __init__(
        self,
        trace: Trace,
        model: Model,
        counted: Counted,
        lookups: int | None = None,
    ):
        self.trace = trace
        self.model = model
        self._counted = counted
        self._lookups = lookups or max(LOOKUPS, LOOKUPS_A_KEY * model.n_keys)

    def __iter__(self) -> Iterator[Batches]:
        turn, first_decode = -1, None
        for columns in self._whole_batches():
            piece = self._counted.marked(batches_of(self.model, columns))
            goes_on = int(piece.turn[0]) == turn
            yield replace(piece, first_decode=first_decode if goes_on else None)
            last_turn = piece.turn == piece.turn[-1]
            decoded = piece.pass_id[last_turn & (piece.phase == DECODE)]
            if not goes_on or not last_turn[0]:
                first_decode = None
            if first_decode is None and len(decoded):
                first_decode = int(decoded[0])
            turn = int(piece.turn[-1])

    def _whole_batches(self) -> Iterator[Columns]:
        """Iterate over the routings, cut between batches."""
        n_rows = max(1, self._lookups // self.model.top_k)
        held: list[Columns] = []
        n_held = 0
        for block in self.trace.iter_routing(columns_for(self.trace)):
            held.append(block)
            n_held += len(block["layer"])
            while n_held >= n_rows:
                rows = _joined(held)
                starts = starts_of_batches(rows)[1:]  # the last batch may go on in the next block
                stops = starts[starts <= n_rows]
                if not len(stops) and not len(starts):
                    held = [rows]
                    break
                stop = int(stops[-1] if len(stops) else starts[0])
                yield _cut(rows, 0, stop)
                held, n_held = [_cut(rows, stop, n_held)], n_held - stop
        if n_held:
            yield _joined(held)


def _joined(blocks: Sequence[Columns]) -> Columns:
    if len(blocks) == 1:
        return blocks[0]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _cut(rows: Columns, start: int, stop: int) -> Columns:
    return {name: values[start:stop] for name, values in rows.items()}


class Future:
    """What is used after each piece of a run, learned by looking at the pieces in order.

    It takes one number and two flags for each piece and key.

    Parameters
    ----------
    model : Model
    """

    def __init__(self, model: Model):
        self._n_keys = model.n_keys
        self._seen: list[_FirstUses] = []

    def note(self, piece: Batches) -> None:
        """Look at the next piece."""
        place = np.full(self._n_keys, -1, np.int32)
        place[piece.keys[::-1]] = np.arange(len(piece.keys) - 1, -1, -1, dtype=np.int32)
        keys = np.flatnonzero(place >= 0)
        keys = keys[np.argsort(place[keys])].astype(np.int32)
        batch = np.searchsorted(piece.batch_start, place[keys], side="right") - 1
        self._seen.append(_FirstUses(keys, piece.counted[batch], piece.counted_decode[batch]))

    def of(self, pieces: Iterable[Batches]) -> Iterator[Batches]:
        """Iterate over the same pieces again, each with what is used `later`."""
        for piece, later in zip(pieces, self._later(), strict=True):
            yield replace(piece, later=later)

    def _later(self) -> list[Later]:
        rank = np.full(self._n_keys, -1, np.int32)
        counts, counts_decode = (np.zeros(self._n_keys, np.bool_) for _ in range(2))
        found = []
        for seen in reversed(self._seen):
            found.append(Later(rank, counts, counts_decode))
            # The keys of this piece come first; the others keep their order behind them.
            is_here = np.zeros(self._n_keys, np.bool_)
            is_here[seen.keys] = True
            others = np.flatnonzero(~is_here & (rank >= 0))
            order = np.concatenate([seen.keys, others[np.argsort(rank[others])]])
            rank, counts, counts_decode = rank.copy(), counts.copy(), counts_decode.copy()
            rank[order] = np.arange(len(order))
            counts[seen.keys] = seen.counts
            counts_decode[seen.keys] = seen.counts_decode
        return found[::-1]


@dataclass(frozen=True)
class _FirstUses:
    """The keys of a piece in the order of their first uses, and whether those count."""

    keys: np.ndarray
    counts: np.ndarray
    counts_decode: np.ndarray

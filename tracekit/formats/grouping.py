"""Rows of a table, and how several of them, one a selected expert, make a routing.

In: rows with the label of their pass. Out: rows with k experts each. Mostly the k rows of a routing
follow each other, and then nothing is moved.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.formats.names import OF_SLOTS
from tracekit.trace import TraceError

LineOf = Callable[[int], str]
# These may be narrower than 64 bits before `Together`, which is faster: it looks at each row.
NARROW = ("token", "layer", "slot", "experts")


@dataclass(frozen=True)
class Rows:
    """Some rows of a file, in its order.

    Attributes
    ----------
    layer : int64 [n]
    experts : int16, int32 or int64 [n] or [n, k]
        One selected expert, or a routing; -1: none.
    token : int64 [n]
        Position of the token in its turn.
    number : int64 [n]
        Number of the row in the file.
    turn : int64 [n] or None
    slot : int64 [n] or None
    weights : float32, of the shape of `experts`, or None
    phase : uint8 [n] or None
    passes : int64 [n] or None
    token_id : int64 [n] or None
    residency, dropped : uint8, of the shape of `experts`, or None
    kept : uint8 [n] or None
    expert_bytes : int64 [n] or None
        Of the row's layer; -1: unknown.
    slots_follow : bool
        Whether a routing was made of k rows that follow each other; `number` is that of the first.
    """

    layer: np.ndarray
    experts: np.ndarray
    token: np.ndarray
    number: np.ndarray
    turn: np.ndarray | None = None
    slot: np.ndarray | None = None
    weights: np.ndarray | None = None
    phase: np.ndarray | None = None
    passes: np.ndarray | None = None
    token_id: np.ndarray | None = None
    residency: np.ndarray | None = None
    dropped: np.ndarray | None = None
    kept: np.ndarray | None = None
    expert_bytes: np.ndarray | None = None
    slots_follow: bool = False

    def __len__(self) -> int:
        return len(self.layer)

    def columns(self) -> dict[str, np.ndarray]:
        """Return the columns that are there."""
        columns = vars(self).items()
        return {name: values for name, values in columns if isinstance(values, np.ndarray)}

    def taken(self, rows: np.ndarray | slice) -> "Rows":
        """Return some rows in the order of `rows`: indices, a mask or a slice."""
        columns = {name: values[rows] for name, values in self.columns().items()}
        return Rows(**columns, slots_follow=self.slots_follow)

    def wide(self) -> "Rows":
        """Return the rows with places of 64 bits, which can be counted on."""
        columns = self.columns()
        for name in NARROW:
            if name in columns and name != "experts":
                columns[name] = columns[name].astype(np.int64, copy=False)
        return Rows(**columns, slots_follow=self.slots_follow)

    def apart(self) -> "Rows":
        """Return one row a slot."""
        if self.experts.ndim == 1:
            return self
        n_rows, k = self.experts.shape
        columns: dict[str, Any] = {
            name: values.reshape(-1) if values.ndim == 2 else np.repeat(values, k)
            for name, values in self.columns().items()
        }
        slot = np.tile(np.arange(k), n_rows)
        columns["slot"] = slot
        if self.slots_follow:
            columns["number"] = columns["number"] + slot
        return Rows(**columns)


def joined(pieces: list[Rows]) -> Rows:
    """Return several pieces as one; if one has a row a slot, all have."""
    if len(pieces) == 1:
        return pieces[0]
    if any(piece.experts.ndim == 1 for piece in pieces):
        pieces = [piece.apart() for piece in pieces]
    columns = [piece.columns() for piece in pieces]
    names = [name for name in columns[0] if all(name in each for each in columns)]
    return Rows(
        **{name: np.concatenate([each[name] for each in columns]) for name in names},
        slots_follow=pieces[0].slots_follow,
    )


class Together:
    """Makes one row of k rows that follow each other and are one routing, as soon as they come.

    Where a piece is not so, it and all after it stay as they are.

    Parameters
    ----------
    top_k : int or None
        Experts of a routing, where they are known.
    """

    def __init__(self, top_k: int | None):
        self._k = top_k
        self._left: Rows | None = None

    def pieces(self, pieces: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the same rows, k of them as one; their places are of 64 bits then."""
        for piece in self._pieces(pieces):
            yield piece.wide()

    def _pieces(self, pieces: Iterable[Rows]) -> Iterator[Rows]:
        is_on = True
        for piece in pieces:
            if not is_on or piece.experts.ndim == 2:
                yield piece
                continue
            for part in self._parts(piece):
                together = self._together(part)
                is_on &= together is not None
                yield part if together is None else together
            if not is_on and self._left is not None:
                yield self._left
                self._left = None
        if self._left is not None:
            yield self._left

    def _parts(self, rows: Rows) -> Iterator[Rows]:
        """Yield what completes the routing that was begun, then whole routings; keep the rest."""
        if self._k is None:
            places = [each for each in _places(rows) if each is not None]
            differs = [np.flatnonzero(each != each[0])[:1] for each in places]
            first = min((int(at[0]) for at in differs if len(at)), default=1)
            # Of rows that stand one a routing, nobody knows before sorting that they are all of it.
            self._k = first if first > 1 else len(rows) + 1
        start = 0
        if self._left is not None:
            start = min(self._k - len(self._left), len(rows))
            begun = joined([self._left, rows.taken(slice(0, start))])
            self._left = begun if len(begun) < self._k else None
            if self._left is None:
                yield begun
        end = start + (len(rows) - start) // self._k * self._k
        if end > start:
            yield rows.taken(slice(start, end))
        if end < len(rows):
            self._left = rows.taken(slice(end, None))

    def _together(self, rows: Rows) -> Rows | None:
        """Return one row for each k, or None if some of them are not one routing."""
        k = self._k
        assert k is not None
        for place in (*_places(rows), rows.expert_bytes):
            if place is not None:
                differs = place[1:] != place[:-1]
                between = differs[k - 1 :: k]  # one routing and the next
                if np.count_nonzero(differs) > np.count_nonzero(between):
                    return None
        if rows.slot is not None and (rows.slot.reshape(-1, k) != np.arange(k)).any():
            return None
        experts = rows.experts.reshape(-1, k)
        if experts.min() < 0 and ((experts < 0).any(axis=1) != (experts < 0).all(axis=1)).any():
            return None
        columns = {name: values[::k] for name, values in rows.columns().items() if name != "slot"}
        given = rows.columns()
        columns |= {name: given[name].reshape(-1, k) for name in OF_SLOTS if name in given}
        return Rows(**columns, slots_follow=True)


def _places(rows: Rows) -> tuple[np.ndarray | None, ...]:
    return rows.token, rows.layer, rows.turn, rows.passes, rows.phase


@dataclass(frozen=True)
class Grouped:
    """Routings that were made of rows.

    Attributes
    ----------
    turn, label, token, layer : int64 [n]
    number : int64 [n]
        Number of the row in the file in which slot 0 stands.
    experts : int64 [n, k]
    weights : float32 [n, k] or None
    phase : uint8 [n] or None
    token_id : int64 [n] or None
    residency, dropped : uint8 [n, k] or None
    kept : uint8 [n] or None
    slots_follow : bool
        Whether the further slots stand in the rows that follow.
    cut : str or None
        What the file lacks at its end, if it lacks something.
    """

    turn: np.ndarray
    label: np.ndarray
    token: np.ndarray
    layer: np.ndarray
    number: np.ndarray
    experts: np.ndarray
    weights: np.ndarray | None
    phase: np.ndarray | None
    token_id: np.ndarray | None
    residency: np.ndarray | None
    dropped: np.ndarray | None
    kept: np.ndarray | None
    slots_follow: bool = False
    cut: str | None = None

    def taken(self, rows: np.ndarray) -> "Grouped":
        """Return some of the routings."""
        columns = {
            name: values[rows] if isinstance(values, np.ndarray) else values
            for name, values in vars(self).items()
        }
        return Grouped(**columns)


def grouped(
    rows: Rows,
    labels: np.ndarray,
    top_k: int | None,
    line_of: LineOf,
    is_last: bool,
    mend: str = "correct the rows, or record them again",
) -> Grouped:
    """Return the routings of rows.

    Parameters
    ----------
    rows : Rows
    labels : int64 [n]
        Of their passes.
    top_k : int or None
        Experts of a routing, where they are known.
    line_of : callable
        Maps the number of a row to the words that tell a user where it is.
    is_last : bool
        Whether the last of the rows is the last of the file: its routing may be cut.
    mend : str
        What a sentence says to do about a routing that has too few or too many.

    Raises
    ------
    TraceError
        A routing has another number of experts than the others.
    """
    if rows.experts.ndim == 2:
        return _every(rows, labels, slice(None), 1)
    assert rows.turn is not None
    keys = (rows.turn, labels, rows.layer, rows.token)
    starts = _starts(keys)
    k = top_k or (int(starts[1]) if len(starts) > 1 else len(labels))
    order: np.ndarray | None = None
    # Of rows that stand one a routing, nobody knows before sorting that they are all of it.
    if (top_k is None and k == 1) or not _are_every(starts, len(labels), k):
        slot = rows.slot if rows.slot is not None else np.arange(len(labels))
        order = np.lexsort((slot, *reversed(keys)))
        starts = _starts(tuple(key[order] for key in keys))
        k = top_k or _most_common(np.diff(np.append(starts, len(labels))))
    counts = np.diff(np.append(starts, len(labels)))
    wrong = np.flatnonzero(counts != k)
    cut = None
    if len(wrong):
        order = np.arange(len(labels)) if order is None else order
        numbers = rows.number[order]
        at = int(wrong[0])
        members = slice(starts[at], starts[at] + counts[at])
        is_end = is_last and counts[at] < k and rows.number[-1] in numbers[members]
        if len(wrong) > 1 or not is_end:
            row = order[starts[at]]
            raise TraceError(
                f"{line_of(int(numbers[starts[at]]))}: the routing of token {rows.token[row]} at "
                f"layer {rows.layer[row]} has {counts[at]} experts where {k} are due; every "
                f"routing of a trace has the same number: {mend}."
            )
        cut = f"its last routing has {counts[at]} of {k} experts, and is left out"
        order = np.delete(order, members)
    if order is None and rows.slot is not None:
        slots = rows.slot.reshape(-1, k)
        if not (slots == np.arange(k)).all():
            order = np.lexsort((rows.slot, np.repeat(np.arange(len(slots)), k)))
    if order is None:
        found = _every(rows, labels, slice(None, None, k), k)
    else:
        found = _every(rows, labels, order, k)
    _check_slots(rows, order, k, line_of)
    return found if cut is None else Grouped(**{**vars(found), "cut": cut})


def _every(rows: Rows, labels: np.ndarray, taken: np.ndarray | slice, k: int) -> Grouped:
    """Return routings: the rows `taken` where each has a list, else k rows each in that order."""
    given = rows.columns()
    lists = {name: given[name] for name in OF_SLOTS if name in given}
    first = taken
    if rows.experts.ndim == 1:
        if isinstance(taken, slice):
            lists = {name: each.reshape(-1, k) for name, each in lists.items()}
        else:
            lists = {name: each[taken].reshape(-1, k) for name, each in lists.items()}
            first = taken[::k]
    assert rows.turn is not None
    return Grouped(
        turn=rows.turn[first],
        label=labels[first],
        token=rows.token[first],
        layer=rows.layer[first],
        number=rows.number[first],
        experts=lists["experts"],
        weights=lists.get("weights"),
        phase=None if rows.phase is None else rows.phase[first],
        token_id=None if rows.token_id is None else rows.token_id[first],
        residency=lists.get("residency"),
        dropped=lists.get("dropped"),
        kept=None if rows.kept is None else rows.kept[first],
        slots_follow=rows.slots_follow or (rows.experts.ndim == 1 and isinstance(taken, slice)),
    )


def _check_slots(rows: Rows, order: np.ndarray | None, k: int, line_of: LineOf) -> None:
    """Refuse slots that are not 0 to k - 1 in each routing."""
    if rows.slot is None:
        return
    slots = (rows.slot if order is None else rows.slot[order]).reshape(-1, k)
    wrong = (slots != np.arange(k)).any(axis=1)
    if wrong.any():
        at = int(wrong.argmax()) * k
        row = at if order is None else int(order[at])
        raise TraceError(
            f"{line_of(int(rows.number[row]))}: the slots of the routing of token "
            f"{rows.token[row]} at layer {rows.layer[row]} are "
            f"{', '.join(map(str, slots[at // k].tolist()))} and not 0 to {k - 1}; correct them."
        )


def _starts(keys: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return where a row differs from the one before it, int64, the first row included."""
    differs = np.zeros(len(keys[0]), np.bool_)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(differs)


def _are_every(starts: np.ndarray, n_rows: int, k: int) -> bool:
    return len(starts) * k == n_rows and bool((starts == np.arange(0, n_rows, k)).all())


def _most_common(counts: np.ndarray) -> int:
    return int(np.bincount(counts).argmax())

"""A run in chunks of whole passes: what importers give, and what a trace is made of.

In: places, experts and further columns of some passes, as arrays. Out: columns in the order and with
the numbers of a trace, and what was seen of the whole run so far. This module knows no file format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tracekit.trace.checks import Locate
from tracekit.trace.chunk_tables import UNKNOWN, steps_table
from tracekit.trace.columns import to_numpy
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import MAY_BE_ABSENT

PLACE = ("turn", "pass", "phase", "step", "layer")
OF_ROUTINGS = (*MAY_BE_ABSENT, "logits", "gate_input")
# Beyond these a trace's columns cannot hold a value.
_LIMITS = {"turn": (1 << 31) - 1, "phase": 255, "layer": (1 << 15) - 1, "step": (1 << 31) - 1}


@dataclass(frozen=True)
class Routings:
    """Some whole passes of a run: one row for each token at each MoE layer, in any order.

    Only a pass of a prompt may be cut, where it is too large to be in memory at once: see `continues`.

    Attributes
    ----------
    turn : int [n]
        Turns in the order they ran, from 0.
    passes : int [n]
        Labels of the passes, which ascend within a turn; the trace counts passes anew from 0.
    phase : int [n]
        0 prefill, 1 decode.
    step : int [n]
        Position of the token in its turn.
    layer : int [n]
        The model's own number of the layer.
    experts : int [n, k]
        The selected experts, in the slot order of the source.
    weights : float [n, k], optional
        NaN: unknown.
    residency, dropped : uint8 [n, k], optional
        As in a trace; 255: unknown.
    logits : float [n, n_expert], optional
    gate_input : float [n, n_embd], optional
    token : int [n], optional
        Id of the row's token; -1: unknown.
    kept : bool or uint8 [n], optional
        0: the row's token did not stay. What a later pass takes back need not be marked.
    locate : callable, optional
        Maps (row, slot) of this chunk to the words that tell a user where that is in the source.
    continues : bool
        The chunk goes on with the last pass of the one before, a prefill, and has no other. Its rows
        follow those before in the order by (layer, step).
    """

    turn: np.ndarray
    passes: np.ndarray
    phase: np.ndarray
    step: np.ndarray
    layer: np.ndarray
    experts: np.ndarray
    weights: np.ndarray | None = None
    residency: np.ndarray | None = None
    dropped: np.ndarray | None = None
    logits: np.ndarray | None = None
    gate_input: np.ndarray | None = None
    token: np.ndarray | None = None
    kept: np.ndarray | None = None
    locate: Locate | None = None
    continues: bool = False

    def __len__(self) -> int:
        return len(self.layer)

    def carries(self) -> set[str]:
        """Return which of the columns are given that ``routing.parquet`` may have."""
        return {name for name in OF_ROUTINGS if getattr(self, name) is not None}


def check_alike(carried: Mapping[str, set[str]], name: str) -> None:
    """Refuse a file whose columns are not those of the first file.

    Parameters
    ----------
    carried : mapping
        What the files carry, by name.
    name : str
        Of the file.

    Raises
    ------
    TraceError
    """
    first = next(iter(carried))
    for has, lacks in ((first, name), (name, first)):
        only = carried[has] - carried[lacks]
        if only:
            raise TraceError(
                f"{has} has {' and '.join(sorted(only))} and {lacks} has not; files of one run carry "
                "the same columns: import each file alone, or take the column out of all."
            )


@dataclass
class Seen:
    """What the chunks of a run showed so far.

    Attributes
    ----------
    top_k : int or None
        Experts of a routing; None before the first chunk.
    n_rows, n_decoded : int
        Routings, and those of decode passes.
    largest_expert : int
    layers : set of int
    ascending : bool
        Whether the slots of every routing were in ascending order of their ids.
    ranked : bool
        Whether every routing had all its weights, so that they rank its slots.
    columns : set of str
        The optional columns that had a value.
    widths : dict
        Of `logits` and `gate_input`.
    """

    top_k: int | None = None
    n_rows: int = 0
    n_decoded: int = 0
    largest_expert: int = -1
    layers: set[int] = field(default_factory=set)
    ascending: bool = True
    ranked: bool = True
    columns: set[str] = field(default_factory=set)
    widths: dict[str, int] = field(default_factory=dict)


class Numbered:
    """Brings chunks into the order of a trace and counts their passes.

    Parameters
    ----------
    name : str
        What sentences call the source.
    rerank : bool
        Put the slots of a routing in descending order of weight, where all its weights are known.

    Attributes
    ----------
    seen : Seen
    """

    def __init__(self, name: str, rerank: bool):
        self.seen = Seen()
        self._name = name
        self._rerank = rerank
        self._labels = (-1, -1)
        self._pass = -1
        self._last_step = (-1, -1)  # pass and step
        self._carried: set[str] | None = None

    def add(self, chunk: Routings) -> tuple[dict[str, np.ndarray], Locate]:
        """Return the columns of a chunk as ``routing.parquet`` has them, `token` too.

        Parameters
        ----------
        chunk : Routings

        Returns
        -------
        columns : dict of str to numpy.ndarray
        locate : callable
            Of the rows as they stand now.

        Raises
        ------
        TraceError
            A value is none that a trace can hold, or a pass was given before.
        """
        locate = chunk.locate or self._locate_by_place(chunk)
        experts = self._whole("expert", chunk.experts, (1 << 16) - 1, locate)
        if self.seen.top_k is None:
            self.seen.top_k = experts.shape[1]
        elif experts.shape[1] != self.seen.top_k:
            raise TraceError(
                f"{locate(0, 0)}: {experts.shape[1]} experts are selected here and "
                f"{self.seen.top_k} before; a trace has one number of experts a routing: split the "
                "file, or record it again."
            )
        place = {
            name: self._whole(name, np.asarray(getattr(chunk, name)), limit, locate)
            for name, limit in _LIMITS.items()
        }
        place["pass"] = np.asarray(chunk.passes)
        columns: dict[str, np.ndarray] = {**place, "experts": experts}
        for name in _FURTHER:
            values = getattr(chunk, name)
            if values is not None:
                columns[name] = np.asarray(values)
                if name in ("residency", "dropped"):
                    self._whole(name, columns[name], UNKNOWN[name], locate)
        self._check_alike(chunk, locate)
        order = _order(place)
        if order is not None:
            columns = {name: values[order] for name, values in columns.items()}
            given = locate
            locate = lambda row, slot: given(int(order[row]), slot)  # noqa: E731
        weights = columns.get("weights")
        self.seen.ranked &= weights is not None and not np.isnan(weights).any()
        if self._rerank and weights is not None:
            columns = _ranked(columns)
        self._number(columns, locate, chunk.continues)
        columns = _typed(columns)
        self._note(columns)
        return columns, locate

    def _check_alike(self, chunk: Routings, locate: Locate) -> None:
        """Refuse what the first chunk did not have: it would be lost."""
        if self._carried is None:
            self._carried = chunk.carries()
        further = chunk.carries() - self._carried
        if further and len(chunk):
            raise TraceError(
                f"{locate(0, 0)}: {' and '.join(sorted(further))} stand here, but not in the "
                "routings before; a run carries the same columns from its start: leave them out, "
                "or import this part alone."
            )

    def _whole(self, name: str, values: np.ndarray, most: int, locate: Locate) -> np.ndarray:
        """Check that values are whole numbers from 0 to `most`."""
        if values.dtype.kind not in "iu":
            raise TraceError(
                f"{self._name}: its {name} column holds {values.dtype} values and no whole numbers; "
                "write them as integers."
            )
        wrong = _outside(values, most)
        if wrong is not None:
            row, slot = np.unravel_index(wrong, (len(values), values.size // len(values)))
            raise TraceError(
                f"{locate(int(row), int(slot))}, column {name}: {values.reshape(-1)[wrong]} is no "
                f"whole number from 0 to {most}; correct or record it again."
            )
        return values

    def _locate_by_place(self, chunk: Routings) -> Locate:
        def locate(row: int, slot: int) -> str:
            places = ("turn", "step", "layer")
            words = ", ".join(f"{name} {np.asarray(getattr(chunk, name))[row]}" for name in places)
            return f"{self._name} ({words})"

        return locate

    def _number(self, columns: dict[str, np.ndarray], locate: Locate, continues: bool) -> None:
        """Count the passes on from the chunks before."""
        turn, passes = columns["turn"], columns["pass"]
        if not len(turn):
            return
        if continues:
            columns["pass"] = np.full(len(passes), self._pass, np.int32)
            return
        first = int(turn[0]), int(passes[0])
        if self._pass >= 0 and first <= self._labels:
            raise TraceError(
                f"{locate(0, 0)}: rows of this pass, or of a later one, stand far before it in the "
                "file; sort the rows by prompt, pass (or token) and layer."
            )
        self._labels = int(turn[-1]), int(passes[-1])
        begins = (np.diff(turn) != 0) | (np.diff(passes) != 0)
        columns["pass"] = _counted(begins, self._pass + 1)
        self._pass = int(columns["pass"][-1])

    def steps(self, columns: Mapping[str, np.ndarray]) -> pa.Table:
        """Return the table of the steps that the last chunk implies and those before did not."""
        table = steps_table(columns)
        passes, step = (to_numpy(table[name]) for name in ("pass", "step"))
        last_pass, last_step = self._last_step
        known = int(np.count_nonzero((passes == last_pass) & (step <= last_step)))
        if known < len(step):
            self._last_step = int(passes[-1]), int(step[-1])
        return table.slice(known) if known else table

    def _note(self, columns: dict[str, np.ndarray]) -> None:
        seen, experts = self.seen, columns["experts"]
        seen.n_rows += len(experts)
        seen.n_decoded += int(np.count_nonzero(columns["phase"]))
        seen.largest_expert = max(seen.largest_expert, int(experts.max(initial=0)))
        seen.layers |= set(np.flatnonzero(np.bincount(columns["layer"])).tolist())
        if seen.ascending:
            seen.ascending = all(
                bool((experts[:, slot] < experts[:, slot + 1]).all())
                for slot in range(experts.shape[1] - 1)
            )
        for name, values in columns.items():
            if name in PLACE or name == "experts" or name in seen.columns:
                continue
            if name in ("logits", "gate_input"):
                seen.widths[name] = values.shape[1]
            unknown = np.isnan(values) if values.dtype.kind == "f" else values == UNKNOWN[name]
            if not unknown.all():
                seen.columns.add(name)


_FURTHER = (*OF_ROUTINGS, "token", "kept")
_DTYPES = {
    "turn": np.int32,
    "pass": np.int32,
    "phase": np.uint8,
    "step": np.int32,
    "layer": np.int16,
    "experts": np.uint16,
    "weights": np.float32,
    "residency": np.uint8,
    "dropped": np.uint8,
    "logits": np.float32,
    "gate_input": np.float32,
    "token": np.int32,
    "kept": np.bool_,
}


def _typed(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n: np.ascontiguousarray(values, _DTYPES[n]) for n, values in columns.items()}


def _outside(values: np.ndarray, most: int) -> int | None:
    """Return the place of the first value below 0 or above `most` in the flat array, or None."""
    if not values.size or (values.min() >= 0 and values.max() <= most):
        return None
    return int(((values < 0) | (values > most)).reshape(-1).argmax())


def _counted(begins: np.ndarray, first: int) -> np.ndarray:
    """Return numbers that begin with `first` and go up by one where `begins` says so."""
    numbers = np.empty(len(begins) + 1, np.int32)
    numbers[0] = 0
    np.cumsum(begins, out=numbers[1:])
    numbers += np.int32(first)
    return numbers


def _order(place: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the order by (turn, pass, layer, step), or None if the rows stand in it."""
    keys = [place[name] for name in ("turn", "pass", "layer", "step")]
    decided = np.zeros(max(0, len(keys[0]) - 1), np.bool_)
    for key in keys:
        if (~decided & (key[1:] < key[:-1])).any():
            return np.lexsort(keys[::-1])
        decided |= key[1:] > key[:-1]
    return None


def _ranked(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns with the heaviest slot of each routing first; equal weights keep place."""
    weights = columns["weights"]
    if weights.shape[1] < 2 or (weights[:, :-1] >= weights[:, 1:]).all():
        return columns
    order = np.argsort(-weights, axis=1, kind="stable")
    order[np.isnan(weights).any(axis=1)] = np.arange(weights.shape[1])
    of_slots = [n for n in ("experts", "weights", "residency", "dropped") if n in columns]
    return columns | {name: np.take_along_axis(columns[name], order, 1) for name in of_slots}

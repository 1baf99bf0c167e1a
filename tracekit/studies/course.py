"""How far a unit has come: which of its cells are still to run, and what the others gave.

In: the plan of a unit, finished work, and what steps return. Out: the next steps, and the unit's part of
the result. Where steps run is somebody else's affair.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracekit.studies.finished import FinishedWork, code_of, key_of
from tracekit.studies.held import Plan
from tracekit.studies.records import part_of_plain, plain_part
from tracekit.studies.units import Part, Unit


class Cells(NamedTuple):
    """A policy of a plan at some of its budgets: one step."""

    run: int
    places: list[int]
    budgets: list[int]


class Course:
    """The course of one unit.

    Parameters
    ----------
    unit : Unit
    finished : FinishedWork or None
        Where finished work is taken from, and kept.

    Attributes
    ----------
    part : Part or None
        What the unit adds to the result, when all is done.
    """

    def __init__(self, unit: Unit, finished: FinishedWork | None):
        self.unit = unit
        self._finished = finished
        self._code = code_of(unit.own.values()) if finished else None
        self._key = self._key_of(unit.key())
        self._budgets: list[int] = []
        self._keys: list[list[str | None]] = []
        self._records: list[list[Mapping[str, Any] | None]] = []
        known = self._get(self._key)
        self.part: Part | None = None if known is None else part_of_plain(known)

    def begin(self, plan: Plan) -> None:
        """Take the plan of a unit that has cells, and what is known of them already."""
        self._budgets = plan.budgets
        self._keys = [[self._key_of(key) for key in keys] for keys in plan.keys]
        self._records = [[self._get(key) for key in keys] for keys in self._keys]

    def todo(self, size: int) -> Iterator[Cells]:
        """Yield what is to run, up to `size` budgets of a policy at a time."""
        for run, records in enumerate(self._records):
            missing = [place for place, record in enumerate(records) if record is None]
            for start in range(0, len(missing), size):
                places = missing[start : start + size]
                yield Cells(run, places, [self._budgets[place] for place in places])

    def take(self, cells: Cells, records: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of `cells`."""
        for place, record in zip(cells.places, records, strict=True):
            self._records[cells.run][place] = record
            self._put(self._keys[cells.run][place], record)

    @property
    def records(self) -> list[list[Mapping[str, Any]]] | None:
        """The rows of each policy of the plan; None as long as one is missing."""
        whole = [[row for row in of_run if row is not None] for of_run in self._records]
        return whole if sum(map(len, whole)) == sum(map(len, self._records)) else None

    def end(self, part: Part) -> None:
        """Take the part of the unit."""
        self.part = part
        if self._finished is not None:
            self._put(self._key, plain_part(part))

    def _key_of(self, what: Mapping[str, Any]) -> str | None:
        return None if self._code is None else key_of(what, self._code)

    def _get(self, key: str | None) -> Mapping[str, Any] | None:
        return None if self._finished is None or key is None else self._finished.get(key)

    def _put(self, key: str | None, value: Mapping[str, Any]) -> None:
        if self._finished is not None and key is not None:
            self._finished.put(key, value)

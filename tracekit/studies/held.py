"""What a process holds of the units that it works on: opened traces, and replays that are prepared.

In: a unit, and which step of it. Out: small results, never arrays. A process works on a unit many
times, so that what the first step opened and prepared serves the next ones.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.replaying.prepare import Prepared
from tracekit.studies.files import TraceFile
from tracekit.studies.records import plain_row, row_of_plain
from tracekit.studies.units import Part, Unit
from tracekit.trace import Trace

# A prepared replay takes as much memory as its trace, or more.
_MOST_IDLE = 2


@dataclass(frozen=True, eq=False)
class Plan:
    """What a unit that has cells consists of.

    Attributes
    ----------
    budgets : list of int
    keys : list of list of mapping
        What the figures of each cell depend on, by policy and budget.
    """

    budgets: list[int]
    keys: list[list[dict[str, Any]]]


class Held:
    """A unit, with what this process has opened and prepared for it.

    Threads may take its steps at the same time; what they share is made once.
    """

    def __init__(self, unit: Unit):
        self.unit = unit
        self.users = 0
        self._lock = threading.Lock()
        self._traces: tuple[Trace, Trace | None] | None = None
        self._work: Prepared | None = None

    def plan(self) -> Plan:
        """Return the cells of a unit that has cells."""
        work, key = self._prepared(), self.unit.cell_key
        budgets = work.budgets.tolist()
        return Plan(budgets, [[key(policy, b) for b in budgets] for policy in work.policies])

    def rows(self, run: int, budgets: Sequence[int]) -> list[dict[str, Any]]:
        """Replay one of the plan's policies at some of its budgets; return the rows as plain values."""
        rows = self._prepared().rows_of(run, np.asarray(budgets, np.int64))
        return [plain_row(row) for row in rows]

    def part(self, by_run: Sequence[Sequence[Mapping[str, Any]]]) -> Part:
        """Return the part of a unit that has cells, from the rows of each of the plan's policies."""
        work = self._prepared()
        rows = [
            [row_of_plain(record, policy) for record in of_run]
            for policy, of_run in zip(work.policies, by_run, strict=True)
        ]
        return self.unit.part(work, rows, *self._opened())

    def whole(self, jobs: int | None) -> Part:
        """Return the part of a unit that has no cells."""
        with self._lock:
            trace, _ = self._opened()
        return self.unit.whole(trace, jobs)

    def _prepared(self) -> Prepared:
        with self._lock:
            if self._work is None:
                self._work = self.unit.prepared(*self._opened())
            return self._work

    def _opened(self) -> tuple[Trace, Trace | None]:
        if self._traces is None:
            warm = self.unit.warm
            self._traces = _opened(self.unit.trace), None if warm is None else _opened(warm)
        return self._traces


_held: OrderedDict[str, Held] = OrderedDict()
_held_lock = threading.Lock()
_traces: weakref.WeakValueDictionary[TraceFile, Trace] = weakref.WeakValueDictionary()
_traces_lock = threading.Lock()


@contextmanager
def holding(name: str, unit_of: Callable[[], Unit]) -> Iterator[Held]:
    """Give what this process holds of the unit called `name`; ``unit_of()`` makes it if need be.

    The units that were in use last stay, for their next step.
    """
    with _held_lock:
        held = _held.get(name)
        if held is None:
            held = _held[name] = Held(unit_of())
        _held.move_to_end(name)
        held.users += 1
    try:
        yield held
    finally:
        with _held_lock:
            held.users -= 1
            idle = [each for each in _held if not _held[each].users]
            for each in idle[: max(0, len(_held) - _MOST_IDLE)]:
                del _held[each]


def let_go(names: Iterable[str]) -> None:
    """Forget units, where their steps ran in this very process."""
    with _held_lock:
        for name in names:
            _held.pop(name, None)


def _opened(trace: Trace | TraceFile) -> Trace:
    if isinstance(trace, Trace):
        return trace
    with _traces_lock:
        opened = _traces.get(trace)
        if opened is None:
            opened = _traces[trace] = trace.open()
        return opened

"""What is kept of a recording that did not end cleanly: the parts that continue each other.

In: the directory of a trace that is not complete. Out: the rows of its routings and steps, and why
others were left out. A part of the routings and the part of the steps with the same number hold the
same passes. Both are left out if one is missing or damaged, or does not follow the part before.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.trace.errors import TraceError
from tracekit.trace.parts import Part, part_name, part_numbers, rows_of
from tracekit.trace.rows import Rows
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE

_SHOWN = 2  # faults in a sentence


@dataclass
class Recovered:
    """What is kept of an incomplete trace.

    Attributes
    ----------
    routing, steps : Rows
    passes : int32 [P]
        The passes that are kept.
    found : int32 [F]
        The passes of which a row was found.
    faults : list of str
        Why parts were left out, one phrase each.
    """

    routing: Rows
    steps: Rows
    passes: np.ndarray
    found: np.ndarray
    faults: list[str] = field(default_factory=list)

    def sentence(self, directory: Path) -> str:
        """Say what is kept; if parts were left out, also why, and how many passes were found."""
        n_tokens = self.steps.n_rows
        kept = f"{n_tokens} tokens are kept" if n_tokens else "before its first token"
        first = "its first " if n_tokens and not self.faults else ""
        text = f"{directory} is incomplete: the recording was cut short, {first}{kept}"
        if not self.faults:
            return f"{text}."
        more = len(self.faults) - _SHOWN
        reasons = self.faults[:_SHOWN] + [f"{more} more parts are left out"] * (more > 0)
        return (
            f"{text}, {len(self.passes)} of the {len(self.found)} passes found: "
            f"{', '.join(reasons)}."
        )


def recover(directory: Path, schemas: Mapping[str, pa.Schema]) -> Recovered:
    """Return what is kept of the parts in `directory`; without parts, of the files themselves.

    Parameters
    ----------
    directory : Path
    schemas : mapping
        Of the routings and of the steps, by the names of their files.

    Raises
    ------
    TraceError
        A part may not be read. Or there are no parts, and a file is damaged.
    """
    numbers = {file: part_numbers(directory, file) for file in schemas}
    if any(numbers.values()):
        pairs = _Pairs(directory, numbers)
        kept, found, faults = list(pairs), pairs.found, pairs.faults
    else:  # a copy of an incomplete trace, which was written as a whole
        whole = {f: Part.read(directory / f) for f in schemas if (directory / f).exists()}
        kept, faults = [whole], []
        found = [part.passes for part in whole.values()]
    of_file = {file: [pair[file] for pair in kept if file in pair] for file in schemas}
    last = min(_last_pass(parts) for parts in of_file.values())
    rows = {file: _up_to(of_file[file], last, schema) for file, schema in schemas.items()}
    passes = _unique([part.passes for part in of_file[STEPS_FILE]])
    return Recovered(
        rows[ROUTING_FILE], rows[STEPS_FILE], passes[passes <= last], _unique(found), faults
    )


class _Pairs:
    """The pairs of parts that continue each other, in the order they were written.

    Attributes
    ----------
    found : list of int32 [n]
        The passes of every part that can be read.
    faults : list of str
    """

    def __init__(self, directory: Path, numbers: Mapping[str, list[int]]):
        self.found: list[np.ndarray] = []
        self.faults: list[str] = []
        self._directory = directory
        self._numbers = numbers
        self._schemas: dict[str, pa.Schema] = {}

    def __iter__(self) -> Iterator[dict[str, Part]]:
        before, last = -1, None
        for number in sorted(set().union(*self._numbers.values())):
            if number > before + 1:
                several = f"parts {before + 1} to {number - 1} are"
                self.faults.append(
                    f"{several if number > before + 2 else f'part {before + 1} is'} missing"
                )
            before = number
            pair = {file: self._read(file, number) for file in self._numbers}
            whole = {file: part for file, part in pair.items() if part is not None}
            if len(whole) < len(pair):
                continue
            foreign = self._foreign(whole, last)
            if foreign is not None:
                name = part_name(foreign, number)
                self.faults.append(f"{name} does not continue the part before it")
                continue
            last = whole[STEPS_FILE].span.last
            self._schemas = self._schemas or {f: part.rows.schema for f, part in whole.items()}
            yield whole

    def _read(self, file: str, number: int) -> Part | None:
        """Return a part, or None and say why."""
        path = self._directory / part_name(file, number)
        try:
            part = Part.read(path)
        except TraceError:
            is_there = os.path.lexists(path)
            if is_there and path.is_file() and not os.access(path, os.R_OK):
                raise
            self.faults.append(f"{path.name} is {'damaged' if is_there else 'missing'}")
            return None
        self.found.append(part.passes)
        return part

    def _foreign(self, pair: Mapping[str, Part], last: int | None) -> str | None:
        """Return the file whose part does not follow pass `last`, or None."""
        for file, part in pair.items():
            has_other_columns = not part.rows.schema.equals(
                self._schemas.get(file, part.rows.schema)
            )
            if has_other_columns or (np.diff(part.passes) < 0).any():
                return file
        steps, routing = pair[STEPS_FILE].span, pair[ROUTING_FILE].span
        if steps.n_rows == 0 or last not in (None, steps.first - 1):
            return STEPS_FILE
        # The last part may have been written of the routings, and not yet of the steps.
        is_inside = routing.n_rows == 0 or steps.first <= routing.first <= steps.last
        return None if is_inside else ROUTING_FILE


def _unique(passes: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(passes)) if passes else np.empty(0, np.int32)


def _last_pass(parts: list[Part]) -> int:
    return max((part.span.last for part in parts), default=-1)


def _up_to(parts: list[Part], last: int, schema: pa.Schema) -> Rows:
    """Return the rows of `parts` up to pass `last`; without parts, no rows of `schema`."""
    rows = rows_of(parts, schema)
    n_rows = sum(int(np.searchsorted(part.passes, last, side="right")) for part in parts)
    return rows if n_rows == rows.n_rows else rows.cut(n_rows)

"""Logs of llamacpp-moe-expert-cache: which experts each layer selected, the distinct ones of a batch.

In: lines ``<pass> <layer> <rows> <expert> …``. A pass of one token has its k experts, the best first. Of a
pass of several tokens the file has only the experts that any of them selected. Which token selected which
is not in it, and a trace has no place for a pass whose tokens are not known, so these are left out and
counted. Out: the passes of one token.
"""

from collections.abc import Iterator

import numpy as np

from tracekit.formats.engine_passes import Computed, PassReader
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.lines import Lines
from tracekit.formats.number_lines import NumberLines, first_numbers
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source, one_after_another
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.missing import LATE

_PLACES = 3  # pass, layer, rows


@register
class ExpertCacheLog(Format):
    """Reader of logs of llamacpp-moe-expert-cache."""

    name = "expert-cache-log"
    summary = "logs of llamacpp-moe-expert-cache (LLAMA_EXPERT_PREFETCH_TRACE)"
    told_by = "lines `<pass> <layer> <tokens> <expert> …` whose layer goes up"
    lacks = "which token of a pass of several selected which expert: only passes of one are read"

    def sniff(self, head: bytes) -> bool:
        """Say whether the first lines are of one pass, at layers that follow each other."""
        lines = first_numbers(head)
        if len(lines) < 2 or min(map(len, lines)) <= _PLACES:
            return False
        first, second = lines
        return first[0] == second[0] >= 0 <= first[1] < second[1] and all(map(_is_call, lines))

    def recognises(self, given: Given) -> bool:
        """Say whether every file begins so; a line may have all experts of a layer."""
        return bool(given.files) and all(
            self.sniff(file.head) or self.sniff(file.first_lines) for file in given.files
        )

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        return one_after_another(given.name, [_source(file) for file in given.files])


def _is_call(line: list[int]) -> bool:
    """Say whether a line is of one token, or has its different experts in order."""
    rows, experts = line[2], line[_PLACES:]
    return (
        rows >= 1
        and len(set(experts)) == len(experts)
        and (rows == 1 or experts == sorted(experts))
    )


def _source(file: File) -> Source:
    source = Source(str(file.path), (), slot_order="ranked")
    calls = _Calls(file, source)
    reader = PassReader(source, calls.place)

    def chunks() -> Iterator[Routings]:
        yield from reader.chunks(calls.rows())
        if reader.n_left_out:
            source.notes[LATE] = source.inferred["prompts"] = (
                f"{reader.n_left_out} passes of several tokens are left out, since the file does "
                "not say which of their tokens selected which expert"
            )

    source.chunks = chunks()
    return source


class _Calls:
    """The lines of one file."""

    def __init__(self, file: File, source: Source):
        self._path, self._source = file.path, source
        self._starts = NumberLines(file.path, _PLACES)
        self.place = self._starts.place

    def rows(self) -> Iterator[Computed]:
        """Yield a row for each line; a call of several tokens has experts of -1."""
        singles = NumberLines(self._path, self._width())
        n_rows = 0
        for piece in self._starts.pieces(self._source):
            lines = [line for line in piece.splitlines() if line.strip()]
            number = np.arange(n_rows, n_rows + len(lines))
            n_rows += len(lines)
            starts = np.ones((_PLACES, len(lines)), np.int32)
            experts = np.full((len(lines), singles.width - _PLACES), -1, np.int32)
            is_single = np.array([line.split(None, _PLACES)[2:3] == [b"1"] for line in lines])
            if is_single.any():
                text = b"\n".join(lines[at] for at in np.flatnonzero(is_single).tolist())
                columns = singles.columns(text, number[is_single])
                starts[:, is_single] = columns[:_PLACES]
                experts[is_single] = np.stack(columns[_PLACES:], axis=1)
            if not is_single.all():
                others = [lines[at] for at in np.flatnonzero(~is_single).tolist()]
                starts[:, ~is_single] = self._others(others, number[~is_single])
            passes, layer, n_tokens = starts
            yield Computed(layer, experts, passes, number, n_tokens=n_tokens)

    def _others(self, lines: list[bytes], number: np.ndarray) -> list[np.ndarray]:
        """Return pass, layer and tokens of calls of several tokens."""
        parts = [line.split(None, _PLACES) for line in lines]
        text = b"\n".join(b" ".join(each[:_PLACES]) for each in parts)
        columns = self._starts.columns(text, number)
        wrong = np.array([len(each) <= _PLACES for each in parts]) | (columns[2] < 1)
        if wrong.any():
            where = self.place(int(number[wrong.argmax()]))
            raise TraceError(f"{where}: it names no experts; repair the line or record again.")
        return columns

    def _width(self) -> int:
        """Return how many numbers a line of one token has."""
        for piece in Lines(self._path).pieces():
            for line in piece.splitlines():
                start = line.split(None, _PLACES)[:_PLACES]
                if len(start) == _PLACES and start[-1] == b"1":
                    return len(line.split())
        raise TraceError(
            f"{self._path} has no pass of one token; of others it does not say which token selected "
            "which expert: record a run that generates."
        )

"""Tables of a llama.cpp moe-trace tool: position, layer and experts, without a header.

In: lines ``position,layer,expert,expert,…``. A decoded token's position counts from 0. A prompt's is
negative: a batch of n tokens after s others has -(s + n) to -(s + 1). Out: the run.
"""

from collections.abc import Iterator
from itertools import count

import numpy as np

from tracekit.formats.engine_passes import Computed, PassReader
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.number_lines import NumberLines, first_numbers
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source, one_after_another

_PLACES = 2  # position, layer


@register
class LlamaPositions(Format):
    """Reader of tables `position,layer,expert,expert,…` of a llama.cpp moe-trace tool."""

    name = "llama-positions"
    summary = "position,layer,expert,expert,… of a llama.cpp moe-trace tool"
    told_by = "whole numbers in three or more columns and no header, the first number not above 0"
    lacks = "weights, the number of experts, sizes"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file begins with rows of whole numbers, the first of a prompt."""
        lines = first_numbers(head, b",")
        if len({len(line) for line in lines}) != 1 or lines[0][0] > 0:
            return False
        return len(lines[0]) > _PLACES and all(_is_row(line) for line in lines)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        return one_after_another(given.name, [_source(file) for file in given.files])


def _is_row(line: list[int]) -> bool:
    layer, *experts = line[1:]
    return 0 <= layer < 1 << 15 and len(experts) == len(set(experts)) and min(experts) >= 0


def _source(file: File) -> Source:
    width = len(first_numbers(file.head, b",")[0])
    lines = NumberLines(file.path, width, separator=",")
    source = Source(str(file.path), (), slot_order="ranked")

    def rows() -> Iterator[Computed]:
        n_rows = 0
        for piece in lines.pieces(source):
            position, layer, *experts = lines.columns(piece, count(n_rows))
            number = np.arange(n_rows, n_rows + len(layer))
            n_rows += len(number)
            # Rows of a batch have positions that go up by one. A decoded token is a call of its own.
            prompt = position < 0
            call = np.where(prompt, position - number, position.astype(np.int64) + (1 << 40))
            yield Computed(layer, np.stack(experts, axis=1), call, number, prompt=prompt)

    source.chunks = PassReader(source, lines.place).chunks(rows())
    return source

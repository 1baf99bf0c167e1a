"""Lines of a llama.cpp moe-trace tool that follows several prompts: prompt, step, layer and experts.

In: lines ``<prompt> <step> <layer> <expert> …`` of the decoded tokens, whose steps count from 0. The tool
logs passes of one token; where a prompt has only one, its step is -1. Out: the run.
"""

from collections.abc import Iterator
from itertools import count

import numpy as np

from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.grouping import Rows
from tracekit.formats.number_lines import NumberLines, first_numbers
from tracekit.formats.options import ImportOptions
from tracekit.formats.rows import RowReader
from tracekit.formats.source import Source, one_after_another
from tracekit.formats.turns import Labels
from tracekit.trace.schema import DECODE, PREFILL

_PLACES = 3  # prompt, step, layer
STEPS = "decoded tokens are counted from 0, since the file does not say how long prompts are"


@register
class LlamaSteps(Format):
    """Reader of lines `<prompt> <step> <layer> <expert> …` of a llama.cpp moe-trace tool."""

    name = "llama-steps"
    summary = "prompt, step, layer and experts of decoded tokens, of a llama.cpp moe-trace tool"
    told_by = "lines `<prompt> <step> <layer> <expert> …` whose layer goes up"
    lacks = "prompts of several tokens, weights, the number of experts, sizes"

    def sniff(self, head: bytes) -> bool:
        """Say whether the first lines are of one step, at layers that follow each other."""
        lines = first_numbers(head)
        if len(lines) < 2 or len({len(line) for line in lines}) > 1 or len(lines[0]) <= _PLACES:
            return False
        first, second = lines
        return first[:2] == second[:2] and first[2] < second[2] and first[0] >= 0 <= first[1] + 1

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; prompts of each follow those of the one before."""
        return one_after_another(given.name, [_source(file, options) for file in given.files])


def _source(file: File, options: ImportOptions) -> Source:
    lines = NumberLines(file.path, len(first_numbers(file.head)[0]))
    inferred = {"steps": STEPS}
    source = Source(str(file.path), (), slot_order="ranked", inferred=inferred)
    labels = Labels()

    def rows() -> Iterator[Rows]:
        n_rows = 0
        for piece in lines.pieces(source):
            prompt, step, layer, *experts = lines.columns(piece, count(n_rows))
            number = np.arange(n_rows, n_rows + len(layer))
            n_rows += len(number)
            is_prompt = step == -1
            yield Rows(
                layer=layer.astype(np.int64),
                experts=np.stack(experts, axis=1).astype(np.int64),
                token=np.where(is_prompt, 0, step).astype(np.int64),
                number=number,
                turn=labels.of(prompt),
                phase=np.where(is_prompt, PREFILL, DECODE).astype(np.uint8),
            )

    source.chunks = RowReader(source, options, lines.place).chunks(rows())
    return source

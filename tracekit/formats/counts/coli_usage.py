"""colibri's ``.coli_usage``: lines of layer, expert and count.

In: the path of a file. Out: its counts.
"""

import re

import numpy as np

from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.formats.counts.format import CountsFormat, register
from tracekit.formats.counts.triples import table_of, triples
from tracekit.formats.given import Given
from tracekit.trace.errors import TraceError

_LINE = re.compile(rb"-?\d{1,19} -?\d{1,19} \d{1,19}\s*")
_SIZES = -1  # the line that gives the numbers of layers and experts
_SNIFFED = 50


@register
class ColiUsage(CountsFormat):
    """Reader of colibri's usage files, whose first line gives layers and experts."""

    name = "coli-usage"
    summary = "how often colibri used each expert: `.coli_usage`"
    told_by = "its first line, `-1 LAYERS EXPERTS`, and lines of three whole numbers"

    def sniff(self, head: bytes) -> bool:
        """Say whether the first lines are three whole numbers, and the first gives sizes."""
        lines = head.split(b"\n")[:_SNIFFED]
        # The last piece of the head may be cut.
        whole = [line for line in lines[:-1] if line.strip()]
        return head.startswith(b"-1 ") and bool(whole) and all(map(_LINE.fullmatch, whole))

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts; files of several runs are added."""
        sizes = set()
        tables = []
        for file in given.files:
            rows = triples(file.path, None)
            said = rows[rows[:, 0] == _SIZES, 1:]
            if len(said) != 1 or not (said > 0).all() or (said > 1 << 16).any():
                raise TraceError(
                    f"{file.path} does not give its numbers of layers and experts once, as in "
                    "`-1 48 128`; correct it."
                )
            n_layer, n_expert = map(int, said[0])
            sizes.add((n_layer, n_expert))
            tables.append(table_of(rows[rows[:, 0] >= 0], str(file.path), n_layer, n_expert))
            if len(sizes) > 1:
                raise TraceError(f"{given.name} are of different models; name files of one.")
        return ExpertCounts.of_all_layers(np.sum(tables, axis=0), given.name, self.name)

"""SGLang's oldest recorder: a CSV of layer, expert and count.

In: the path of a file. Out: its counts.
"""

from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.formats.counts.format import CountsFormat, register
from tracekit.formats.counts.triples import table_of, triples
from tracekit.formats.given import Given

_HEADER = b"layer_id,expert_id,count"


@register
class SglangCsv(CountsFormat):
    """Reader of ``expert_distribution_rank*.csv``; files of several ranks are added."""

    name = "sglang-csv"
    summary = "counts of SGLang's oldest expert recorder"
    told_by = "its first line, `layer_id,expert_id,count`"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file has the header."""
        first, _, _ = head.partition(b"\n")
        return first.replace(b" ", b"").strip() == _HEADER

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts."""
        import numpy as np

        rows = np.concatenate([triples(file.path, b",", skipped=1) for file in given.files])
        return ExpertCounts.of_all_layers(
            table_of(rows, given.name, None, None),
            given.name,
            self.name,
            inferred={"n_expert": "the largest expert id + 1"},
        )

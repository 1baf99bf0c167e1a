"""Binary logs of a llama.cpp moe-trace tool: a record for each call of a layer, and no header.

In: 32-bit integers: layer, number of tokens, k, and the experts of each token; then the next. Out: the run.
"""

import numpy as np

from tracekit.formats.engine_passes import PassReader
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.records import INT, MOST_EXPERTS, MOST_LAYERS, PLACES, Records
from tracekit.formats.source import Source, one_after_another

ORDER = ("layer", "n_tokens", "k")
_MOST_IDS = 1 << 16


@register
class LlamaRecords(Format):
    """Reader of binary records layer, tokens, k and experts of a llama.cpp moe-trace tool."""

    name = "llama-records"
    summary = "binary records layer, tokens, k, experts of a llama.cpp moe-trace tool"
    told_by = "32-bit integers layer, tokens, k of 2 or more, and k different experts a token"
    lacks = "which passes are of a prompt, weights, the number of experts, sizes"

    def sniff(self, head: bytes) -> bool:
        """Say whether all that the first bytes hold are records with one k and different experts."""
        numbers = np.frombuffer(head[: len(head) // INT.itemsize * INT.itemsize], INT)
        if len(numbers) < 2 * PLACES:
            return False
        k, place = int(numbers[2]), 0
        while place + PLACES <= len(numbers):
            layer, n_tokens, width = numbers[place : place + PLACES].tolist()
            if width != k or not (
                0 <= layer < MOST_LAYERS and 2 <= k < MOST_EXPERTS and n_tokens >= 0
            ):
                return False
            place += PLACES + n_tokens * k
            if not _are_different(numbers[place - n_tokens * k : place], k):
                return False
        return True

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        return one_after_another(given.name, [_source(file) for file in given.files])


def _are_different(experts: np.ndarray, k: int) -> bool:
    """Say whether numbers are ids of experts, and those of each whole routing are different."""
    rows = np.sort(experts[: len(experts) // k * k].reshape(-1, k), axis=1)
    are_ids = not len(experts) or (experts.min() >= 0 and experts.max() < _MOST_IDS)
    return bool(are_ids and (np.diff(rows, axis=1) != 0).all())


def _source(file: File) -> Source:
    records = Records(file.path, ORDER)
    source = Source(str(file.path), (), slot_order="ranked")
    source.chunks = PassReader(source, records.place).chunks(records.rows(source))
    return source

"""Binary pairs of layer and expert, as kimi-k3-in-c dumps them (``--dump-cache-trace``).

In: 32-bit integers, a pair for each expert that a token selects, in the order of the graph. Out: the run.
"""

import os
from collections.abc import Iterator

import numpy as np

from tracekit.formats.archives import damaged, opened
from tracekit.formats.base import read_bytes
from tracekit.formats.format import Format, register
from tracekit.formats.given import HEAD_BYTES, File, Given, missing
from tracekit.formats.graph_order import with_tokens
from tracekit.formats.grouping import Rows
from tracekit.formats.options import ImportOptions
from tracekit.formats.rows import RowReader
from tracekit.formats.source import Source, one_after_another

_PAIR = np.dtype(("<i4", (2,)))
_PIECE = 1 << 20  # pairs
_LEAST, _MOST_K = 4, 32
_FIRST_BYTES = 1 << 20
_MOST = np.array([1 << 15, 1 << 16])


@register
class LayerPairs(Format):
    """Reader of binary pairs of layer and expert."""

    name = "layer-pairs"
    summary = "binary pairs of layer and expert of kimi-k3-in-c (expert_trace.bin)"
    told_by = "pairs of 32-bit integers, a layer as often as tokens select experts, then the next"
    lacks = "tokens, prompts, phases, weights, sizes, the number of experts a routing"
    needs = ("--top-k",)

    def recognises(self, given: Given) -> bool:
        """Say whether every file has layers in runs of one length or its multiples, that go up."""
        return bool(given.files) and all(map(_are_pairs, given.files))

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        top_k = options.given_top_k
        if top_k is None:
            raise missing(given, "--top-k K", "how many experts a token selects at a layer")
        sources = [_source(file, options, top_k) for file in given.files]
        return one_after_another(given.name, sources)


def _are_pairs(file: File) -> bool:
    found = _begins_with_pairs(file.head)
    if found is None and len(file.head) >= HEAD_BYTES:  # a prompt's first layer may be longer
        found = _begins_with_pairs(read_bytes(file.path, _FIRST_BYTES))
    return bool(found)


def _begins_with_pairs(data: bytes) -> bool | None:
    """Say whether bytes are pairs; None: all are of one layer, so nobody can tell."""
    pairs = np.frombuffer(data[: len(data) // _PAIR.itemsize * _PAIR.itemsize], _PAIR)
    if len(pairs) < _LEAST or pairs.min() < 0 or (pairs.max(axis=0) >= _MOST).any():
        return False
    starts = np.append(0, np.flatnonzero(np.diff(pairs[:, 0])) + 1)
    counts = np.diff(starts)  # without the last run, which may be cut
    if not len(counts):
        return None
    k = int(counts.min())
    if k < 2 or (counts % k).any() or pairs[starts[1], 0] <= pairs[0, 0]:
        return False
    routings = np.sort(pairs[: starts[-1], 1].reshape(-1, k), axis=1)
    # Where only prompts are seen, k is several routings, which may name an expert twice.
    return k > _MOST_K or bool((np.diff(routings, axis=1) != 0).all())


def _source(file: File, options: ImportOptions, top_k: int) -> Source:
    source = Source(str(file.path), ())

    def rows() -> Iterator[Rows]:
        n_rows = 0
        with opened(file.path) as data, damaged(str(file.path)):
            if data.seek(0, os.SEEK_END) % _PAIR.itemsize:
                source.cut(f"{file.path} is incomplete: its last pair is cut off, and left out.")
            data.seek(0)
            while piece := data.read(_PIECE * _PAIR.itemsize):
                whole = piece[: len(piece) // _PAIR.itemsize * _PAIR.itemsize]
                layer, experts = np.frombuffer(whole, _PAIR).astype(np.int64).T
                number = np.arange(n_rows, n_rows + len(layer))
                n_rows += len(layer)
                yield Rows(layer, experts, np.zeros_like(layer), number)

    def place(row: int) -> str:
        return f"{file.path}, pair {row}"

    placed = with_tokens(rows(), top_k, source, place)
    source.chunks = RowReader(source, options, place).chunks(placed)
    return source

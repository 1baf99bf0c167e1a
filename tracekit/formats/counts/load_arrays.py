"""Bare arrays of how often each expert was used: EPLB's load and MoE-Infinity's activation matrices.

In: the path of a ``.npy`` file. Out: its counts.
"""

import re

import numpy as np

from tracekit.formats.arrays import NPY_MAGIC, SMALL_BYTES, DiskArray, npy
from tracekit.formats.counts.expert_counts import MOST, ExpertCounts, whole_counts
from tracekit.formats.counts.format import CountsFormat, register
from tracekit.formats.given import File, Given
from tracekit.trace.errors import TraceError

_SHAPE = re.compile(rb"'shape'\s*:\s*\(([\d,\s]{0,100})\)")
_DTYPE = re.compile(rb"'descr'\s*:\s*'[<>|=]?(\w)\d+'")
# How the experts of a trace follow from router logits, in a line of numpy.
FROM_LOGITS = "experts = numpy.argsort(-logits, axis=2)[:, :, :k]"
# Values with a fraction, such as means, are counted in millionths.
_PARTS = 1_000_000


def _form(head: bytes) -> tuple[int, str]:
    """Return the number of axes and the kind of type that a ``.npy`` header claims; 0 of others."""
    shape, dtype = _SHAPE.search(head), _DTYPE.search(head)
    if not head.startswith(NPY_MAGIC) or shape is None or dtype is None:
        return 0, ""
    return len([each for each in shape[1].split(b",") if each.strip()]), dtype[1].decode()


def _array(file: File, axes: int) -> DiskArray:
    """Return the array of a file, which must have so many axes."""
    array = npy(file.path)
    if len(array.shape) != axes or array.dtype.kind not in "iuf":
        raise TraceError(
            f"{file.path} is an array of {array.dtype} with the shape {array.shape}, where numbers with "
            f"{axes} axes are due; write it again."
        )
    return array


def _counts(values: np.ndarray, name: str) -> tuple[np.ndarray, dict[str, str]]:
    """Return values as whole numbers, and how, if that was not what they are."""
    # NaN has no whole part either, and `whole_counts` refuses it.
    with np.errstate(invalid="ignore"):
        has_fractions = bool((values != np.rint(values)).any()) and np.isfinite(values).all()
    if not has_fractions:
        return whole_counts(values, name), {}
    if values.max() > MOST / _PARTS:
        raise TraceError(
            f"{name} holds {values.max()}, too much for a mean of counts; record it again."
        )
    return whole_counts(np.rint(values * _PARTS), name), {"counts": "values in millionths, rounded"}


class _LoadArray(CountsFormat):
    """A bare array, which may also be meant as one of a trace.

    Attributes
    ----------
    _else : str
        What else such an array may be, and the mend, as the end of a sentence.
    """

    _else = ""

    def no_trace(self, given: Given) -> TraceError:
        """Return the error that also tells how an array of a trace differs."""
        array = npy(given.files[0].path)
        return TraceError(
            f"{given.name} is an array of {array.dtype} with {len(array.shape)} axes, which at best "
            "holds counts, and a trace needs whole numbers [tokens, layers, k]; `tracekit info` and "
            f"`tracekit plot popularity` open counts{self._else}."
        )


@register
class EplbLoad(_LoadArray):
    """Reader of one array of numbers, [layers, experts]."""

    name = "eplb"
    summary = "EPLB's load of each expert: one array [layers, experts] of numpy.save"
    told_by = "a bare `.npy` with two axes"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file is an array of numbers with two axes."""
        axes, kind = _form(head)
        return axes == 2 and kind in "iuf"

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts; those of several files are added."""
        arrays = [_array(file, 2).whole() for file in given.files]
        if len({array.shape for array in arrays}) > 1:
            raise TraceError(
                f"{given.name} are arrays of different shapes; name those of one model."
            )
        total = np.zeros(arrays[0].shape, np.float64)
        for array in arrays:
            total += array
        counts, inferred = _counts(total, given.name)
        inferred["layers"] = "the index in the array"
        return ExpertCounts.of_all_layers(counts, given.name, self.name, inferred=inferred)


@register
class ActivationMatrices(_LoadArray):
    """Reader of one array of floats, [sequences, layers, experts]."""

    name = "moe-infinity"
    summary = "MoE-Infinity's activation matrices: one array [sequences, layers, experts] of floats"
    told_by = "a bare `.npy` of floats with three axes"
    _else = f"; of router logits save {FROM_LOGITS}"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file is an array of floats with three axes."""
        return _form(head) == (3, "f")

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts, summed over the sequences."""
        totals = []
        for file in given.files:
            array = _array(file, 3)
            n = array.shape[0]
            if n == 0 or array.shape[1] * array.shape[2] * 8 > SMALL_BYTES:
                raise TraceError(
                    f"{file.path} has the shape {array.shape}, which is no [sequences, layers, "
                    "experts] of a model; record it again."
                )
            step = max(1, (16 << 20) // max(1, array.shape[1] * array.shape[2] * 8))
            ends = [*range(step, n, step), n]
            total = np.zeros(array.shape[1:], np.float64)
            for block in array.blocks(0, ends):
                if (block < 0).any():
                    raise TraceError(
                        f"{file.path} holds numbers below 0, so these are no counts; of router logits "
                        f"save {FROM_LOGITS}, as a trace has them."
                    )
                total += block.sum(axis=0, dtype=np.float64)
            totals.append(total)
        if len({total.shape for total in totals}) > 1:
            raise TraceError(
                f"{given.name} are arrays of different shapes; name those of one model."
            )
        counts, inferred = _counts(np.sum(totals, axis=0), given.name)
        inferred["layers"] = "the index in the array"
        return ExpertCounts.of_all_layers(counts, given.name, self.name, inferred=inferred)

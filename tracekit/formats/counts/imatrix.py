"""llama.cpp's importance matrix: beside sums of squares, how often each expert was used.

In: the path of a file. Out: its counts. Only the header and the counts are read. The older form of the
file, ``.dat``, is recognised to say why it cannot be used.
"""

import re
import struct

import numpy as np

from tracekit.formats.archives import opened
from tracekit.formats.counts.expert_counts import ExpertCounts, whole_counts
from tracekit.formats.counts.format import CountsFormat, register
from tracekit.formats.given import File, Given
from tracekit.model_files.gguf import MAGIC, Gguf, Tensor
from tracekit.trace.errors import TraceError

_COUNTS = re.compile(r"blk\.(\d{1,5})\.ffn_(gate|up|down|gate_up)_exps\.weight\.counts")
_SUFFIX = ".counts"
_MOST_ENTRIES = 100_000
_LONGEST_NAME = 256
_NAME = re.compile(rb"(?:blk\.\d+\.|output|token_embd)[\w.]*")


@register
class Imatrix(CountsFormat):
    """Reader of ``imatrix.gguf``: the counts of the stacked expert weights."""

    name = "imatrix"
    summary = "how often llama-imatrix saw each expert: `imatrix.gguf`"
    told_by = "a GGUF file whose `general.type` is `imatrix`"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file is an importance matrix of either form."""
        is_gguf = head.startswith(MAGIC) and b"general.type" in head and b"imatrix" in head
        return is_gguf or _is_dat(head)

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts; those of several files are added."""
        found = [_read(file) for file in given.files]
        if (
            len({each.counts.shape for each in found}) > 1
            or len({each.layers for each in found}) > 1
        ):
            raise TraceError(f"{given.name} are of different models; name files of one.")
        tokens = [each.n_tokens for each in found if each.n_tokens is not None]
        total = np.sum([each.counts for each in found], axis=0)
        n_tokens = sum(tokens) if len(tokens) == len(found) else None
        return ExpertCounts(
            total,
            found[0].layers,
            given.name,
            self.name,
            n_tokens=n_tokens,
            top_k=_top_k(total, n_tokens),
            warnings=[sentence for each in found for sentence in each.warnings],
        )

    def no_trace(self, given: Given) -> TraceError:
        """Return the error; of the older form, that it holds no counts either."""
        for file in given.files:
            if _is_dat(file.head):
                return _no_counts(file)
        return super().no_trace(given)


def _is_dat(head: bytes) -> bool:
    """Say whether a file begins as ``imatrix.dat``: entries, and the first one's name and length."""
    if len(head) < 8:
        return False
    n_entries, length = struct.unpack_from("<ii", head)
    if not (1 <= n_entries <= _MOST_ENTRIES and 4 <= length <= _LONGEST_NAME):
        return False
    return _NAME.fullmatch(head[8 : 8 + length]) is not None


def _no_counts(file: File) -> TraceError:
    return TraceError(
        f"{file.path} is an imatrix in the old .dat form, which keeps means of squares and no counts of "
        "experts; collect it again with a llama-imatrix that writes GGUF."
    )


def _read(file: File) -> ExpertCounts:
    if _is_dat(file.head):
        raise _no_counts(file)
    name = str(file.path)
    with opened(file.path) as data:
        size = data.seek(0, 2)
        header = Gguf(data, size, name)
        if header.text("general.type") != "imatrix":
            raise TraceError(f"{name} is no imatrix; name the file that llama-imatrix wrote.")
        by_layer: dict[int, dict[str, np.ndarray]] = {}
        others = 0
        for tensor in header.tensors.values():
            if match := _COUNTS.fullmatch(tensor.name):
                by_layer.setdefault(int(match[1]), {})[match[2]] = _values(header, tensor)
            elif tensor.name.endswith(_SUFFIX) and tensor.shape in ((1,), (1, 1)):
                others = max(others, int(_values(header, tensor)[0]))
    if not by_layer:
        raise TraceError(f"{name} counts no experts, so it is of a dense model; name another file.")
    layers = sorted(by_layer)
    counts, warnings = [], []
    for layer in layers:
        each = by_layer[layer]
        if len({array.shape for array in each.values()}) > 1:
            raise TraceError(f"{name} counts different numbers of experts in layer {layer}.")
        most = max(each.values(), key=lambda array: int(array.sum()))
        if any((array != most).any() for array in each.values()):
            warnings.append(
                f"{name} counts the weights of layer {layer} differently; the largest are taken."
            )
        counts.append(most)
    if len({array.shape for array in counts}) > 1:
        raise TraceError(f"{name} counts different numbers of experts in its layers.")
    return ExpertCounts.of_all_layers(
        np.stack(counts),
        name,
        Imatrix.name,
        layers,
        n_tokens=others or None,
        warnings=warnings[:1],
    )


def _values(header: Gguf, tensor: Tensor) -> np.ndarray:
    if tensor.kind.name != "F32" or tensor.n_bytes > 1 << 20:
        raise TraceError(f"{header.name}: {tensor.name} is no list of counts; collect it again.")
    values = header.values(tensor)
    assert values is not None, "F32 is decoded"
    return whole_counts(values.reshape(-1), f"{header.name}, {tensor.name},")


def _top_k(counts: np.ndarray, n_tokens: int | None) -> int | None:
    """Return how many experts each token used; None if it is not the same number at each layer."""
    if not n_tokens:
        return None
    totals = set(counts.sum(axis=1).tolist())
    total = totals.pop()
    is_whole = not totals and total % n_tokens == 0
    return total // n_tokens if is_whole and total // n_tokens <= counts.shape[1] else None

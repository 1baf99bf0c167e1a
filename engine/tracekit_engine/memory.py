"""Anonymous memory in place of llama.cpp's file mapping, filled and released slice by slice.

llama.cpp maps a model's files and points its tensors into the mapping. Here anonymous memory
replaces the mapping at the same addresses. So no pointer changes, and a slice's place in memory is
its place in the file. The kernel commits the memory only as it is written. Nothing that the process
touches depends on the file any more: a mapped file that shrinks would kill the process that reads it.
"""

import ctypes
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from tracekit.trace.errors import TracekitError
from tracekit_engine import pages
from tracekit_engine.gguf_header import StoredTensor
from tracekit_engine.model_file import ModelFile
from tracekit_engine.pages import PAGE


class FileMemory:
    """The memory that replaces one file's mapping.

    Parameters
    ----------
    path : Path
    base : int
        Address at which the file's first byte is mapped, or would be.

    Notes
    -----
    Neighbouring slices share a page unless their size is a multiple of a page. A page is released
    together with the last slice that lies on it. `_users` counts the slices on each page.
    """

    def __init__(self, path: Path, base: int):
        self.path = path
        self.base = base
        self._extents = [each for each in pages.mapped(path) if each.base == base]
        size = max((extent.stop for extent in self._extents), default=0)
        self._users = np.zeros(-(-size // PAGE), np.uint16)
        for extent in self._extents:
            pages.put_empty(extent.address, extent.stop - extent.start)
        self.bytes = memoryview((ctypes.c_ubyte * size).from_address(base)).cast("B")

    def holds(self, start: int, stop: int) -> bool:
        """Return whether the file's bytes [start, stop) have a place here."""
        return any(extent.start <= start and stop <= extent.stop for extent in self._extents)

    def keep_small_pages(self, start: int, stop: int) -> None:
        """Forbid huge pages: releasing a slice would leave a part of such a page behind."""
        first, last = start // PAGE, -(-stop // PAGE)
        pages.forbid_huge(self.base + first * PAGE, (last - first) * PAGE)

    def occupy(self, start: int, stop: int) -> None:
        """Note that the bytes [start, stop) are about to be read in."""
        self._users[start // PAGE : -(-stop // PAGE)] += 1

    def take_over(self, start: int, stop: int, donor: "FileMemory", given: tuple[int, int]) -> None:
        """Occupy [start, stop) with the pages that hold `donor`'s bytes `given`; release those.

        The kernel neither takes back, zeroes nor faults in a page that moves; all that would cost
        about as much time as reading it. A kernel that cannot move pages releases them.
        """
        self.occupy(start, stop)
        target, source = -(-start // PAGE), -(-given[0] // PAGE)
        count = min(stop // PAGE - target, given[1] // PAGE - source)
        if count > 0:
            address, size = self.base + target * PAGE, count * PAGE
            if not pages.move(donor.base + source * PAGE, address, size):
                pages.put_empty(address, size)
        donor.release(*given)

    def release(self, start: int, stop: int) -> None:
        """Give back the pages of [start, stop) that no other slice occupies."""
        first = start // PAGE
        users = self._users[first : -(-stop // PAGE)]
        users -= 1
        free = np.flatnonzero(users == 0)
        if len(free):
            begin, end = first + int(free[0]), first + int(free[-1]) + 1
            pages.release(self.base + begin * PAGE, (end - begin) * PAGE)


def replace_mappings(
    model: ModelFile, addresses: dict[str, int], experts: Iterable[StoredTensor]
) -> dict[int, FileMemory]:
    """Replace the mappings of a loaded model's files by anonymous memory, all of it empty.

    Parameters
    ----------
    addresses : dict of str to int
        Where the data of the model's weights lies now.
    experts : iterable of StoredTensor

    Returns
    -------
    dict of int to FileMemory
        By a file's index in `model.paths`; a file whose weights are not used has none.

    Raises
    ------
    TracekitError
        A weight does not lie in the mapping, or the system has no ``/proc/self/maps``.
    """
    if not sys.platform.startswith(("linux", "android")):
        raise TracekitError("Streaming works on Linux and Android only; record without --stream.")
    bases: dict[int, set[int]] = {}
    for name, address in addresses.items():
        tensor = model.tensors.get(name)
        if tensor is not None:
            bases.setdefault(tensor.file, set()).add(address - tensor.start)
    if any(len(found) != 1 for found in bases.values()):
        raise TracekitError(
            f"llama.cpp did not map {model.paths[0]} as it is on disk, so its experts cannot be "
            "streamed; record without --stream."
        )
    memory = {
        index: FileMemory(path, bases[index].pop())
        for index, path in enumerate(model.paths)
        if index in bases
    }
    for tensor in experts:
        if tensor.file not in memory or not memory[tensor.file].holds(tensor.start, tensor.stop):
            raise TracekitError(
                f"llama.cpp did not map {tensor.name}, so it cannot be streamed; "
                "record without --stream."
            )
        memory[tensor.file].keep_small_pages(tensor.start, tensor.stop)
    return memory


def occupy_dense(file: ModelFile, memory: Mapping[int, FileMemory]) -> list[tuple[int, int, int]]:
    """Make room for every weight but the experts; return what to read: file, start, stop of each."""
    streamed = {tensor.name for group in file.expert_tensors.values() for tensor in group}
    dense = [
        (tensor.file, tensor.start, tensor.stop)
        for tensor in file.tensors.values()
        if tensor.name not in streamed
        and tensor.file in memory
        and memory[tensor.file].holds(tensor.start, tensor.stop)
    ]
    for index, start, stop in dense:
        memory[index].occupy(start, stop)
    return dense

"""Anonymous memory in place of llama.cpp's file mapping, filled and released slice by slice.

llama.cpp maps a model's files and points its tensors into the mapping. Here the mapping is
replaced, at the same addresses, by anonymous memory that the kernel commits only as it is written:
no pointer changes, a slice's place in memory is its place in the file, and nothing the process
touches depends on the file any more (a mapped file that shrinks kills the process that reads it).
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.trace.errors import TracekitError
from tracekit_engine.model_file import ModelFile, StoredTensor

PAGE = mmap.PAGESIZE
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_NOHUGEPAGE = 15
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4


@dataclass(frozen=True)
class _Extent:
    """A stretch of a file's mapping: file offsets [start, stop), whole pages, at `address`."""

    start: int
    stop: int
    address: int


class FileMemory:
    """The memory that stands in for one file's mapping.

    Parameters
    ----------
    path : Path
    base : int
        Address of the file's first byte, were it mapped.

    Notes
    -----
    Neighbouring slices share a page unless their size is a multiple of it. A page is released
    when the last slice that lies on it goes: `_users` counts them.
    """

    def __init__(self, path: Path, base: int):
        self.path = path
        self.base = base
        self._extents = _mapped(path, base)
        size = max((extent.stop for extent in self._extents), default=0)
        self._users = np.zeros(-(-size // PAGE), np.uint16)
        for extent in self._extents:
            _reserve(extent.address, extent.stop - extent.start)
        self.bytes = memoryview((ctypes.c_ubyte * size).from_address(base)).cast("B")

    def holds(self, start: int, stop: int) -> bool:
        """Whether the file's bytes [start, stop) have a place here."""
        return any(extent.start <= start and stop <= extent.stop for extent in self._extents)

    def keep_small_pages(self, start: int, stop: int) -> None:
        """Forbid huge pages, of which releasing a slice would leave a rest behind."""
        first, last = start // PAGE, -(-stop // PAGE)
        _madvise(self.base + first * PAGE, (last - first) * PAGE, _MADV_NOHUGEPAGE)

    def occupy(self, start: int, stop: int) -> None:
        """Note that the bytes [start, stop) are about to be read in."""
        self._users[start // PAGE : -(-stop // PAGE)] += 1

    def take_over(self, start: int, stop: int, donor: "FileMemory", given: tuple[int, int]) -> None:
        """Occupy [start, stop) with the pages of `donor` that hold its `given` bytes, released.

        A page that moves is neither given back, zeroed nor faulted in again, which costs about
        as much time as reading it. Where the kernel cannot move pages, they are released.
        """
        self.occupy(start, stop)
        target, source = -(-start // PAGE), -(-given[0] // PAGE)
        count = min(stop // PAGE - target, given[1] // PAGE - source)
        if count > 0:
            _move(donor.base + source * PAGE, self.base + target * PAGE, count * PAGE)
        donor.release(*given)

    def release(self, start: int, stop: int) -> None:
        """Give back the pages of [start, stop) that nobody else occupies."""
        first = start // PAGE
        users = self._users[first : -(-stop // PAGE)]
        users -= 1
        free = np.flatnonzero(users == 0)
        if len(free):
            begin, end = first + int(free[0]), first + int(free[-1]) + 1
            _madvise(self.base + begin * PAGE, (end - begin) * PAGE, mmap.MADV_DONTNEED)


def replace_mappings(
    model: ModelFile, addresses: dict[str, int], experts: Iterable[StoredTensor]
) -> list[FileMemory | None]:
    """Replace the mappings of a loaded model's files by anonymous memory, all of it empty.

    Parameters
    ----------
    addresses : dict of str to int
        Where the data of the model's weights lies now.
    experts : iterable of StoredTensor

    Returns
    -------
    list of FileMemory or None
        One for each of `model.paths`; None for a file of which no weight is used.

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
            f"llama.cpp did not map {model.paths[0]} as it stands, so its experts cannot be "
            "streamed; record without --stream."
        )
    memory = [
        FileMemory(path, bases[index].pop()) if index in bases else None
        for index, path in enumerate(model.paths)
    ]
    for tensor in experts:
        place = memory[tensor.file]
        if place is None or not place.holds(tensor.start, tensor.stop):
            raise TracekitError(
                f"llama.cpp did not map {tensor.name}, so it cannot be streamed; "
                "record without --stream."
            )
        place.keep_small_pages(tensor.start, tensor.stop)
    return memory


def _mapped(path: Path, base: int) -> list[_Extent]:
    """Return what of the file at `path` is mapped around address `base`."""
    name = os.path.realpath(path).replace("\n", "\\012")
    extents = []
    maps_file = Path("/proc/self/maps")  # where only a line feed is escaped, and ends a line
    with maps_file.open(encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            span, _mode, offset, _device, _inode, *rest = line.rstrip("\n").split(None, 5)
            if not rest or rest[0] != name:
                continue
            first, last = (int(part, 16) for part in span.split("-"))
            start = int(offset, 16)
            if first - start == base:
                extents.append(_Extent(start, start + last - first, first))
    return extents


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)


def _reserve(address: int, size: int) -> None:
    """Put empty memory at an address, in place of what is mapped there."""
    flags = _MAP_FIXED | _MAP_NORESERVE | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        reason = os.strerror(ctypes.get_errno())
        raise TracekitError(f"The kernel refuses {size:,} bytes of address space: {reason}.")


def _move(source: int, target: int, size: int) -> None:
    """Move pages to another address; what they leave behind is empty memory."""
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    if _libc.mremap(source, size, size, flags, target) != target:
        _reserve(target, size)  # a move that fails may have unmapped its target


def may_move_pages(n_slices: int) -> bool:
    """Whether the kernel can keep as many separate stretches of memory as moving pages makes.

    Every slice that pages were moved to becomes one, and what lies between two another.
    """
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    except OSError:  # hidden from apps; releasing pages instead only takes longer
        return False
    return 2 * n_slices < limit * 3 // 4


def _madvise(address: int, size: int, advice: int) -> None:
    if _libc.madvise(address, size, advice) != 0 and advice != _MADV_NOHUGEPAGE:
        raise OSError(ctypes.get_errno(), "pages cannot be released")

"""The kernel's calls for pages of memory: empty pages at an address, moved pages, released pages.

Addresses and sizes are whole pages. Nothing here knows what the memory holds.
"""

import ctypes
import mmap
import os
from pathlib import Path

from tracekit.trace.errors import TracekitError

PAGE = mmap.PAGESIZE
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_NOHUGEPAGE = 15
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)
_INT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_libc.mmap.restype = _libc.mremap.restype = _POINTER
_libc.mmap.argtypes = (_POINTER, _SIZE, _INT, _INT, _INT, ctypes.c_long)
_libc.mremap.argtypes = (_POINTER, _SIZE, _SIZE, _INT, _POINTER)
_libc.madvise.argtypes = (_POINTER, _SIZE, _INT)


def put_empty(address: int, size: int) -> None:
    """Put empty pages at an address, in place of what is mapped there.

    The kernel commits a page when it is first written to.

    Raises
    ------
    TracekitError
        The kernel refuses that much address space.
    """
    flags = _MAP_FIXED | _MAP_NORESERVE | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
        reason = os.strerror(ctypes.get_errno())
        raise TracekitError(f"The kernel refuses {size:,} bytes of address space: {reason}.")


def move(source: int, target: int, size: int) -> bool:
    """Move pages to another address and leave empty pages behind; return whether it succeeded.

    A move that fails may have unmapped its target.
    """
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP
    return bool(_libc.mremap(source, size, size, flags, target) == target)


def can_move(n_slices: int) -> bool:
    """Return whether the kernel can keep as many mappings as moves into `n_slices` slices make.

    Every slice that pages were moved to becomes a mapping, and what lies between two another.
    """
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    except OSError:  # Android hides it from apps; releasing pages instead only takes longer
        return False
    return 2 * n_slices < limit * 3 // 4


def release(address: int, size: int) -> None:
    """Give pages back to the kernel; they are empty afterwards.

    Raises
    ------
    OSError
        The kernel refuses.
    """
    if _libc.madvise(address, size, mmap.MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "pages cannot be released")


def forbid_huge(address: int, size: int) -> None:
    """Ask the kernel for small pages; a kernel that has no huge pages refuses, which is fine."""
    _libc.madvise(address, size, _MADV_NOHUGEPAGE)

"""A model's files while they are in use: whether one was cut or written to since it was opened.

llama.cpp maps the files of a resident model. Where a mapped file is cut, its pages are gone, and the
kernel ends a process that touches one (SIGBUS). A private copy of the weights would prevent that, but
the kernel could not drop its memory as it drops a mapping's, and it takes many times as long to load.
So the signal is caught: empty pages replace those that are gone, the pass ends with wrong figures, and
`OpenFiles.check` refuses it.
"""

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tracekit.trace.errors import TracekitError
from tracekit_engine import pages
from tracekit_engine.pages import PAGE

# So many threads may have touched lost pages before the first of them has replaced those.
_MOST_WITHOUT_EFFECT = 4096

_libc = ctypes.CDLL(None)
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_libc.signal.argtypes = (ctypes.c_int, _HANDLER)
_libc.signal.restype = ctypes.c_void_p
_Action = ctypes.c_char * 1024  # struct sigaction, whose layout differs between systems


class OpenFiles:
    """The files of a model, held open; closed with `close`.

    Parameters
    ----------
    paths : sequence of Path
    needed : sequence of int
        The bytes of each file that the model needs.

    Raises
    ------
    TracekitError
        A file cannot be opened, or is shorter than needed.
    """

    def __init__(self, paths: Sequence[Path], needed: Sequence[int]):
        self._files: list[_OpenFile] = []
        try:
            for path, n_bytes in zip(paths, needed, strict=True):
                self._files.append(_OpenFile(path, n_bytes))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def mapping(self) -> Iterator[None]:
        """Find out what a block maps of the files; from then on a cut does not end the process.

        The mappings must stay until `release`.
        """
        before = {each.address for file in self._files for each in pages.mapped(file.path)}
        yield
        for file in self._files:
            file.extents = [each for each in pages.mapped(file.path) if each.address not in before]
        if any(file.extents for file in self._files):
            _guard.add(self)

    def release(self) -> None:
        """Forget the mappings: nothing reads them any more."""
        _guard.remove(self)
        for file in self._files:
            file.extents = []

    def check_names(self) -> None:
        """Refuse files in whose place others stand now: they may have been read instead.

        Raises
        ------
        TracekitError
        """
        for file in self._files:
            file.check_name()

    def check(self) -> None:
        """Refuse to go on with files that changed: what was computed with them may be wrong.

        Raises
        ------
        TracekitError
            A file was cut or written to since it was opened.
        """
        for file in self._files:
            file.check()

    def fill_lost(self) -> bool:
        """Put empty pages where files were cut; return whether there were new ones to put."""
        return any(file.fill_lost() for file in self._files)

    def close(self) -> None:
        """Close the files."""
        self.release()
        files, self._files = self._files, []
        for file in files:
            os.close(file.descriptor)


class _OpenFile:
    """One file: how it was when it was opened, and where it is mapped."""

    def __init__(self, path: Path, needed: int):
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TracekitError(f"{path} cannot be read: {error.strerror}.") from error
        self.extents: list[pages.Extent] = []
        self._at_open = os.fstat(self.descriptor)
        self._filled_from = self._at_open.st_size + PAGE
        if self._at_open.st_size < needed:
            os.close(self.descriptor)
            raise cut_while_used(path, self._at_open.st_size)

    def check_name(self) -> None:
        try:
            is_same = os.path.samestat(os.stat(self.path), self._at_open)
        except OSError:
            is_same = False
        if not is_same:
            raise TracekitError(
                f"{self.path} was replaced or removed while it was loaded; try again."
            )

    def check(self) -> None:
        now = os.fstat(self.descriptor)
        if now.st_size < self._at_open.st_size or self._filled_from <= self._at_open.st_size:
            raise cut_while_used(self.path, now.st_size)
        if now.st_mtime_ns != self._at_open.st_mtime_ns:
            raise TracekitError(
                f"{self.path} was written to while it was in use; restore it and record again."
            )

    def fill_lost(self) -> bool:
        lost_from = -(-os.fstat(self.descriptor).st_size // PAGE) * PAGE
        if lost_from >= self._filled_from:
            return False
        for extent in self.extents:
            start = max(extent.start, lost_from)
            if start < extent.stop:
                pages.put_empty(extent.address + start - extent.start, extent.stop - start)
        self._filled_from = lost_from
        return True


class _Guard:
    """The handler of SIGBUS, in place while mapped files are open."""

    def __init__(self) -> None:
        self._guarded: tuple[OpenFiles, ...] = ()
        self._before: ctypes.Array[ctypes.c_char] | None = None
        self._without_effect = 0
        self._handler = _HANDLER(self._handle)

    def add(self, files: OpenFiles) -> None:
        self._guarded = (*self._guarded, files)
        if self._before is None:
            self._before = _Action()
            _libc.sigaction(signal.SIGBUS, None, self._before)
            _libc.signal(signal.SIGBUS, self._handler)

    def remove(self, files: OpenFiles) -> None:
        self._guarded = tuple(each for each in self._guarded if each is not files)
        if not self._guarded:
            self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            _libc.sigaction(signal.SIGBUS, before, None)

    def _handle(self, _signal: int) -> None:
        # The thread that touched the page runs this, and then touches the page again.
        try:
            if any(files.fill_lost() for files in self._guarded):
                self._without_effect = 0
                return
            self._without_effect += 1
            if self._without_effect > _MOST_WITHOUT_EFFECT:
                self._restore()  # the signal has another cause: let it end the process
        except BaseException:
            self._restore()


_guard = _Guard()


def cut_while_used(path: Path, n_bytes: int) -> TracekitError:
    """Return what to raise for a file that became shorter: it has `n_bytes` now."""
    return TracekitError(
        f"{path} was cut to {n_bytes:,} bytes while it was in use; restore it and record again."
    )

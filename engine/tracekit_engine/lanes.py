"""Reads of a model's files, several at a time, each into the place its bytes have in memory.

Slices of files go in; the time and the bytes that reading them took come out. Nothing here knows
what a slice holds, or whether it should be read.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tracekit.trace.errors import TracekitError
from tracekit_engine.memory import FileMemory
from tracekit_engine.model_file import cut_while_used
from tracekit_engine.pages import PAGE

PIECE = 4 << 20  # bytes; several lanes share a slice that is bigger
LANE = "lane"  # the threads are called lane-1, lane-2 …
Read = tuple[int, int, int]  # file, start, stop


@dataclass(frozen=True)
class ReadTimes:
    """What a set of reads took.

    Attributes
    ----------
    io_ms : float
        Time spent reading, summed over lanes.
    stall_ms : float
        Time that the caller waited.
    moved_bytes : int
    """

    io_ms: float = 0.0
    stall_ms: float = 0.0
    moved_bytes: int = 0


class Lanes:
    """Threads that read, the caller's own among them; closed with `close`.

    Parameters
    ----------
    paths : iterable of Path
    memory : mapping of int to FileMemory
        Where a file's bytes belong, by the file's index in `paths`.
    count : int
        Reads in flight at a time.
    direct : bool
        Read past the page cache (``O_DIRECT``). Offsets, lengths and addresses must then be
        aligned, so whole pages are read. They go into the same memory, because a byte's place in
        its page is the same in file and memory. What they bring besides a slice is the file's own
        content at that place.

    Raises
    ------
    TracekitError
        A file cannot be opened, or the system starts no more threads.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        memory: Mapping[int, FileMemory],
        count: int,
        direct: bool,
    ):
        self._memory = memory
        self._direct = direct
        self._paths = list(paths)
        self._files: list[int] = []
        self._work: SimpleQueue[_Job | None] = SimpleQueue()
        self._helpers: list[threading.Thread] = []
        try:
            for path in self._paths:
                self._files.append(_open(path, direct))
            for i in range(1, count):
                helper = threading.Thread(target=self._help, name=f"{LANE}-{i}", daemon=True)
                helper.start()
                self._helpers.append(helper)
        except TracekitError:
            self.close()
            raise
        except RuntimeError as error:
            self.close()
            raise TracekitError(
                f"The system starts no more than {i} of {count} I/O threads; give fewer."
            ) from error

    def read(self, slices: Iterable[Read]) -> ReadTimes:
        """Read slices (file, start, stop) and return when the last one is read.

        Raises
        ------
        TracekitError
            A read failed, or a file ends before the slice does.
        """
        started = time.perf_counter()
        job = _Job(deque(self._pieces(slices)), SimpleQueue())
        helping = min(len(self._helpers), len(job.pieces) - 1)
        for _ in range(helping):
            self._work.put(job)
        try:
            lanes = [self._run(job.pieces)] + [job.done.get() for _ in range(helping)]
        finally:
            # After an interrupt no lane begins another piece. What a lane still writes is the
            # file's content at its place, which does no harm.
            job.pieces.clear()
        for lane in lanes:
            if lane.error is not None:
                raise lane.error
        return ReadTimes(
            1e3 * sum(lane.seconds for lane in lanes),
            1e3 * (time.perf_counter() - started),
            sum(lane.moved for lane in lanes),
        )

    def forget_cached(self) -> None:
        """Drop the files' pages from the page cache: what is needed of them has been copied."""
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """End the threads and close the files."""
        for _ in self._helpers:
            self._work.put(None)
        for helper in self._helpers:
            helper.join()
        for file in self._files:
            os.close(file)
        self._helpers, self._files = [], []

    def _pieces(self, slices: Iterable[Read]) -> Iterator["_Piece"]:
        for file, start, stop in slices:
            end = stop
            if self._direct:
                start, end = start // PAGE * PAGE, -(-stop // PAGE) * PAGE
            while end - start > PIECE:
                cut = (start + PIECE) // PAGE * PAGE
                yield _Piece(file, start, cut, cut)
                start = cut
            yield _Piece(file, start, end, stop)

    def _help(self) -> None:
        while (job := self._work.get()) is not None:
            job.done.put(self._run(job.pieces))

    def _run(self, pieces: deque["_Piece"]) -> "_Lane":
        lane = _Lane()
        started = time.perf_counter()
        while lane.error is None:
            try:
                piece = pieces.popleft()
            except IndexError:  # another lane took the last piece
                break
            try:
                lane.moved += self._fill(piece)
            except OSError as error:
                path = self._paths[piece.file]
                lane.error = TracekitError(f"A read of {path} failed: {error.strerror}.")
            except Exception as error:  # any other error too, because the caller waits for the lane
                lane.error = error
        lane.seconds = time.perf_counter() - started
        return lane

    def _fill(self, piece: "_Piece") -> int:
        file, memory = self._files[piece.file], self._memory[piece.file].bytes
        at = piece.start
        while at < piece.stop:
            got = os.preadv(file, [memory[at : piece.stop]], at)
            at += got
            if got == 0 or (self._direct and got % PAGE):  # the file ends here
                break
        if at < piece.needed:
            raise cut_while_used(self._paths[piece.file], os.fstat(file).st_size)
        return at - piece.start


class _Piece(NamedTuple):
    """A read of [start, stop) of a file; the file must have all bytes before `needed`."""

    file: int
    start: int
    stop: int
    needed: int


class _Job(NamedTuple):
    """A set of reads: the pieces that no lane has begun, and the lanes that are done."""

    pieces: deque[_Piece]
    done: "SimpleQueue[_Lane]"


class _Lane:
    """One lane's share of a set of reads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.moved = 0
        self.error: Exception | None = None


def _open(path: Path, direct: bool) -> int:
    try:
        return os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    except OSError as error:
        if direct:
            raise TracekitError(
                f"{path} cannot be read with direct I/O on this file system "
                f"({error.strerror}); leave --direct-io away."
            ) from error
        raise TracekitError(f"{path} cannot be read: {error.strerror}.") from error

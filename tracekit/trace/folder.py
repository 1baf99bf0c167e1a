"""The directory of a trace that is being written: beside its place at first, then in its place.

In: the path of the trace to be. Out: a locked directory to write into. This module knows of a trace
only the names of its files.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from tracekit.trace.agreement import Agreement
from tracekit.trace.atomic import sync_names, work_name, write_json, writing
from tracekit.trace.errors import TracekitError, UsageError
from tracekit.trace.facts import KeptDigest, is_trace_json
from tracekit.trace.schema import FACTS_FILE
from tracekit.trace.storage import read_json

LONGEST_WAIT_S = 5.0
_FILES = r"trace\.json|layers\.parquet|(routing|steps)(-\d{5,})?\.parquet"
_TOKEN = r"\d+(-[0-9a-f]+)?"  # of `work_name`
TRACE_FILES = re.compile(rf"{_FILES}|\.({_FILES})(\.{_TOKEN})?\.tmp")


def check_target(path: Path, force: bool) -> None:
    """Refuse a place where a trace must not be written.

    Parameters
    ----------
    path : Path
    force : bool
        Whether a trace at `path` may be replaced.

    Raises
    ------
    UsageError
        `path` exists and `force` is False. Or `path` is no trace, or is read-only, or another
        process is writing a trace to it; then `force` does not help. Or `path` ends in no name.
    """
    if path.name in ("", ".."):
        raise UsageError(f"{path} is no name for a trace; give one, such as run.trace.")
    if not os.path.lexists(path):
        return
    if not force:
        raise UsageError(f"{path} exists; use --force to overwrite it, or another name.")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file and no trace; it is not overwritten: use another name.")
    if path.is_symlink():
        return  # only the link is replaced; its target stays
    if any(path.iterdir()) and not _is_trace(path):
        raise UsageError(
            f"{path} is a directory but no trace; it is not overwritten: use another name."
        )
    _check_only_trace(path, path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} is read-only; it is not overwritten: use another name.")
    if _is_locked(path):
        raise UsageError(f"{path} is being written by another command; use another name.")


def _is_trace(path: Path) -> bool:
    facts = path / FACTS_FILE
    try:
        return facts.is_file() and is_trace_json(json.loads(facts.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return False


def keep_agreement(path: Path, agreement: Agreement) -> None:
    """Write `agreement` into the ``trace.json`` of the trace at `path`; errors are of `keep_digest`."""
    _keep(path, "agreement", asdict(agreement))


def keep_digest(path: Path, digest: KeptDigest) -> None:
    """Write `digest` into the ``trace.json`` of the trace at `path`.

    Raises
    ------
    UsageError
        Another process is writing the trace.
    TracekitError
        ``trace.json`` cannot be read or written.
    """
    _keep(path, "digest", asdict(digest))


def _keep(path: Path, name: str, value: dict[str, Any]) -> None:
    with writing(path / FACTS_FILE):
        folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            _lock_or_refuse(folder, path)
        facts = read_json(path)  # and not `TraceFacts`: it keeps what a later version has written
        write_json(path, {**facts, name: value})
    finally:
        os.close(folder)


def _lock_or_refuse(folder: int, path: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{path} is being written by another command; try again later.") from error


def _check_only_trace(folder: Path, called: Path) -> None:
    """Refuse a directory of a trace, `called` so in the sentence, that holds anything else."""
    foreign = next((each for each in sorted(folder.iterdir()) if not _is_of_trace(each)), None)
    if foreign is not None:
        raise UsageError(
            f"{called} holds {foreign.name}, which belongs to no trace; move it away, or use another "
            "name."
        )


def _is_of_trace(path: Path) -> bool:
    """Say whether what is inside a trace's directory is one of the files that a writer makes."""
    is_folder = path.is_dir() and not path.is_symlink()
    return TRACE_FILES.fullmatch(path.name) is not None and not is_folder


def _remove(path: Path) -> None:
    """Remove the directory of a trace and what a trace consists of; keep it if more is inside."""
    if path.is_symlink():
        path.unlink()
        return
    for each in list(path.iterdir()):
        if _is_of_trace(each):
            each.unlink(missing_ok=True)
    path.rmdir()


class TraceFolder:
    """An empty directory beside `path`, which `publish` renames to `path`.

    It is locked until it is closed, so that no other process takes it for an old trace. The lock
    ends with the process, however that ends. As a context manager it removes the directory if an
    exception is raised.

    Parameters
    ----------
    path : Path
        The ``.trace`` directory to make.
    force : bool
        Replace the trace that is at `path`.
    longest_wait_s : float
        How long to wait while another process has locked the folder in which `path` is.

    Attributes
    ----------
    now : Path
        Where the directory is at present.

    Raises
    ------
    TracekitError
    """

    def __init__(self, path: Path, force: bool, longest_wait_s: float = LONGEST_WAIT_S):
        self.path = path
        self._force = force
        self._longest_wait_s = longest_wait_s
        absolute = path.absolute()
        self.now = absolute.with_name(work_name(path))
        with writing(path), _one_at_a_time(absolute.parent, longest_wait_s):
            _clear_left_behind(absolute)
            check_target(path, force)
            self.now.mkdir()
            self._lock = os.open(self.now, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def published(self) -> bool:
        """Whether the directory is at `path`."""
        return self.now == self.path

    def publish(self) -> None:
        """Rename it to `path`; a trace there is removed if it may be replaced.

        Raises
        ------
        UsageError
            Something is at `path` by now that must not be replaced.
        TracekitError
        """
        absolute = self.path.absolute()
        old = absolute.with_name(work_name(self.path, "old"))
        with writing(self.path), _one_at_a_time(absolute.parent, self._longest_wait_s):
            check_target(self.path, self._force)
            if os.path.lexists(absolute):
                os.replace(absolute, old)
            try:
                if old.is_dir() and not old.is_symlink():  # something may have come meanwhile
                    _check_only_trace(old, self.path)
                os.rename(self.now, absolute)
            except BaseException:
                if os.path.lexists(old):
                    os.rename(old, absolute)
                raise
            self.now = self.path
            sync_names(absolute)
            sync_names(absolute.parent)
            with suppress(OSError):  # the next writer tries again
                _remove(old)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.remove()

    def remove(self) -> None:
        """Remove the directory, wherever it is at present."""
        with suppress(TracekitError), writing(self.path):
            _remove(self.now)
        self.close()

    def close(self) -> None:
        """Release the lock."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


@contextmanager
def _one_at_a_time(folder: Path, longest_wait_s: float) -> Iterator[None]:
    """Keep other processes from making or publishing a trace in `folder` meanwhile."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            _wait_for(lock, longest_wait_s)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int, longest_s: float) -> None:
    """Take a lock, or go on without it: a writer of traces holds it for a moment only."""
    until = time.monotonic() + longest_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(0.01)


def _is_locked(path: Path) -> bool:
    try:
        folder = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(folder)
    return False


def _clear_left_behind(path: Path) -> None:
    """Remove the directories of killed writers of `path`; put back the trace one was replacing."""
    made_here = re.compile(re.escape(f".{path.name}.") + rf"{_TOKEN}\.(tmp|old)")
    for work in list(path.parent.iterdir()):
        if not made_here.fullmatch(work.name) or not work.is_dir() or _is_locked(work):
            continue
        if work.suffix == ".old" and not os.path.lexists(path):
            os.rename(work, path)  # its writer was killed before the new trace was in place
        else:
            with suppress(OSError):
                _remove(work)

"""Files that are written as a whole or not at all.

In: a path. Out: a new file to write to, which replaces the path at the end. Errors of the
system become one sentence. This module knows of a trace only how its ``trace.json`` is called.
"""

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tracekit.trace.errors import TraceError, TracekitError
from tracekit.trace.facts import NotFiniteError, TraceFacts, parse_json
from tracekit.trace.schema import FACTS_FILE

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than is allowed here; use another folder",
    errno.EACCES: "permission denied; choose a folder you may write to",
    errno.EPERM: "permission denied; choose a folder you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "its folder is missing; make it first",
    errno.ENOTDIR: "what should be its folder is a file; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into one sentence.

    Raises
    ------
    TracekitError
    """
    try:
        yield
    except OSError as error:
        remedy = f"{error.strerror or error}; choose another place"
        if error.errno is not None:
            remedy = _REMEDIES.get(error.errno, remedy)
        raise TracekitError(f"Cannot write {path}: {remedy}.") from error


def work_name(path: Path, ending: str = "tmp") -> str:
    """Return a name for work on `path`, beside it, that nobody can foresee."""
    return f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.{ending}"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Give a new file to write to; rename it to `path` at the end, or remove it on failure.

    Its content is on the disk, and not only in the page cache, before it is renamed. It is made, and
    never opened: what somebody else has put at its name, such as a link, is not written to.

    Raises
    ------
    TracekitError
    """
    work = path.with_name(work_name(path))
    with writing(path):
        file = work.open("xb")
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(work, path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise


@contextmanager
def result_file(path: Path) -> Iterator[BinaryIO]:
    """Do as `whole_file` does for the file that a link names; write a device or a pipe directly.

    Raises
    ------
    TracekitError
    """
    if is_device(path):
        with writing(path), path.open("wb") as file:
            yield file
    else:
        with whole_file(path.resolve()) as file:
            yield file


def is_device(path: Path) -> bool:
    """Say whether `path` is there and neither a file nor a folder: it cannot be replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def sync_names(folder: Path) -> None:
    """Wait until the names of the files in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_facts(directory: Path, facts: TraceFacts) -> None:
    """Write ``trace.json``; an old one is replaced in one instant.

    Raises
    ------
    TraceError
        A reader would refuse the facts.
    TracekitError
        The file cannot be written.
    """
    write_json(directory, facts.to_json())


def write_json(directory: Path, facts: dict[str, Any]) -> None:
    """Write ``trace.json`` from a JSON object; errors are those of `write_facts`."""
    path = directory / FACTS_FILE
    # ASCII with escapes can write what UTF-8 cannot: the bytes of a file name that is no text.
    text = json.dumps(facts, indent=1)
    try:
        TraceFacts.from_json(parse_json(text), str(path))
    except NotFiniteError as error:
        raise TraceError(f"{path}: {error}; give a number, or leave it out.") from error
    with whole_file(path) as file:
        file.write(f"{text}\n".encode("ascii"))

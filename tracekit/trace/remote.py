"""Traces that lie elsewhere: found and read through fsspec, with few and large requests.

In: a URL. Out: the files of a trace, of which only what is asked for is fetched; or a copy of a whole
file. What was fetched stays in a local cache. Credentials are the business of fsspec and of the file
systems that it finds: their environment variables and configuration files.
"""

import hashlib
import importlib.util
import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from tracekit.trace import storage
from tracekit.trace.atomic import whole_file, writing
from tracekit.trace.errors import TraceError, TracekitError, UsageError
from tracekit.trace.file_rows import FileRows
from tracekit.trace.folder import TRACE_FILES
from tracekit.trace.schema import FACTS_FILE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE
from tracekit.trace.urls import Copies, UrlPath

# What is fetched and kept at a time; a file of up to `WHOLE_BYTES` is fetched at once.
BLOCK_BYTES = 4 << 20
WHOLE_BYTES = 16 << 20
_PIECE_BYTES = 8 << 20
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "az": "adlfs",
    "abfs": "adlfs",
}
# How stores name the version of a file: it changes with the content.
_VERSIONS = (
    "ETag", "etag", "Content-MD5", "md5Hash", "generation", "VersionId", "blob_id", "xet_hash",
    "Last-Modified", "LastModified", "last_modified", "mtime", "updated", "created",
)  # fmt: skip


def cache_folder() -> Path:
    """Return where fetched files are kept: ``tracekit`` in the user's cache folder.

    It may be removed at any time when no command runs.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracekit" / "remote"


@contextmanager
def asking(url: UrlPath) -> Iterator[None]:
    """Turn what a file system raises about `url` into one sentence that shows no secret.

    Raises
    ------
    TracekitError
    """
    try:
        yield
    except (TracekitError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise TraceError(f"{url} does not exist; name an existing trace.") from error
    except ImportError as error:
        raise UsageError(_lacks(url)) from error
    except Exception as error:  # each file system has errors of its own
        if isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403):
            raise TraceError(
                f"{url} may not be read with the credentials that are set here; set those of its "
                "store, or ask its owner."
            ) from error
        # Its text may hold the URL with its secrets.
        raise TraceError(
            f"{url} cannot be read ({type(error).__name__}); check the address, the network and the "
            "credentials, and try again."
        ) from error


def _lacks(url: UrlPath) -> str:
    scheme = url.url.partition("://")[0].lower()
    package = _PACKAGES.get(scheme)
    if importlib.util.find_spec("fsspec") is None:
        more = f" {package}" if package else ""
        return (
            f"{url} is read through fsspec, which is not installed; `pip install 'tracekit[remote]'"
            f"{more}` installs it."
        )
    what = f"the package {package}" if package else f"what fsspec needs for {scheme}://"
    how = f"`pip install {package}` installs it" if package else "its documentation names it"
    return f"{url} needs {what}, which is not installed; {how}."


class _Place:
    """A URL and the file system that has it."""

    def __init__(self, url: UrlPath):
        self.url = url
        with asking(url):
            from fsspec.core import url_to_fs

            try:
                self._fs, self._path = url_to_fs(url.url)
            except ValueError as error:
                raise UsageError(
                    f"{url} names no file system that fsspec knows; traces are read from s3://, gs://, "
                    "hf://, https:// and others."
                ) from error
        self._path = self._path.rstrip("/")

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the bytes of a file below the URL, or of the URL itself if `name` is empty."""
        with asking(self.url):
            found: bytes = self._fs.cat_file(self._below(name), start=start, end=stop)
        return found

    def copy(self, name: str, target: Path) -> None:
        """Fetch a whole file."""
        where = self._below(name)
        with (
            asking(self.url),
            whole_file(target) as out,
            self._fs.open(where, "rb", block_size=_PIECE_BYTES) as file,
        ):
            while piece := file.read(_PIECE_BYTES):
                out.write(piece)

    def info(self, name: str) -> dict[str, Any]:
        """Return what the store says of a file."""
        with asking(self.url):
            found: dict[str, Any] = self._fs.info(self._below(name))
        return found

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return what the store says of the files below the URL, by name."""
        with asking(self.url):
            listing = self._fs.ls(self._path, detail=True)
        return {str(each["name"]).rstrip("/").rpartition("/")[2]: each for each in listing}

    def _below(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path


class RemoteFile:
    """A file of a remote trace, with what a reader of Parquet files needs of a path.

    Parameters
    ----------
    place : _Place
    name : str
    n_bytes : int
    folder : Path
        Where blocks that were fetched are kept.
    """

    def __init__(self, place: _Place, name: str, n_bytes: int, folder: Path):
        self._place, self.name, self._n_bytes, self._folder = place, name, n_bytes, folder
        self._step = n_bytes if n_bytes <= WHOLE_BYTES else BLOCK_BYTES

    def __str__(self) -> str:
        return f"{self._place.url}/{self.name}"

    def exists(self) -> bool:
        """Say that it is there: the store has said so."""
        return True

    def is_file(self) -> bool:
        """Say that it is a file."""
        return True

    def stat(self) -> os.stat_result:
        """Return its size, and nothing else."""
        return os.stat_result((0o100444, 0, 0, 1, 0, 0, self._n_bytes, 0, 0, 0))

    def open(self, mode: Literal["rb"] = "rb") -> IO[bytes]:
        """Open it for reading at any place."""
        return io.BufferedReader(_Reader(self))

    def between(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop`; what is not kept yet is fetched, neighbours at once."""
        stop = min(stop, self._n_bytes)
        if start >= stop:
            return b""
        first, last = start // self._step, (stop - 1) // self._step
        blocks: dict[int, bytes] = {}
        missing: list[int] = []
        for number in range(first, last + 1):
            kept = self._kept(number)
            if kept is None:
                missing.append(number)
            else:
                blocks[number] = kept
        while missing:
            n = next(
                (i for i in range(1, len(missing)) if missing[i] != missing[0] + i), len(missing)
            )
            blocks |= self._fetched(missing[0], n)
            missing = missing[n:]
        data = b"".join(blocks[number] for number in range(first, last + 1))
        return data[start - first * self._step : stop - first * self._step]

    def _length(self, number: int) -> int:
        return min(self._step, self._n_bytes - number * self._step)

    def _kept(self, number: int) -> bytes | None:
        try:
            data = (self._folder / str(number)).read_bytes()
        except OSError:  # whether it can be written is seen when it is
            return None
        return data if len(data) == self._length(number) else None

    def _fetched(self, first: int, n: int) -> dict[int, bytes]:
        start, stop = first * self._step, min((first + n) * self._step, self._n_bytes)
        data = self._place.read(self.name, start, stop)
        if len(data) != stop - start:
            raise TraceError(
                f"{self} is cut short: {stop - start} bytes were asked for and {len(data)} came; copy "
                "the trace there again."
            )
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        blocks = {}
        for number in range(first, first + n):
            at = (number - first) * self._step
            blocks[number] = data[at : at + self._length(number)]
            with whole_file(self._folder / str(number)) as file:
                file.write(blocks[number])
        return blocks


class _Reader(io.RawIOBase):
    def __init__(self, file: RemoteFile):
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.stat().st_size}
        self._at = base[whence] + place
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._file.between(self._at, self._at + len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


# Folders of what no later command can know again; removed when the process ends.
_FOR_NOW: list[tempfile.TemporaryDirectory[str]] = []


def _folder_of(*identity: Any, is_known: bool) -> Path:
    """Return where a file is kept whose content `identity` names, for now only if it does not."""
    if not is_known:
        _FOR_NOW.append(tempfile.TemporaryDirectory(prefix="tracekit-"))
        return Path(_FOR_NOW[-1].name)
    text = json.dumps(identity, sort_keys=True, default=str)
    return cache_folder() / hashlib.sha256(text.encode()).hexdigest()


def _version(info: dict[str, Any]) -> dict[str, str]:
    return {name: str(info[name]) for name in _VERSIONS if info.get(name) is not None}


def read_trace(url: UrlPath) -> storage.TraceFiles:
    """Return the files of the trace at `url`; their rows are fetched when they are asked for.

    Raises
    ------
    TracekitError
        There is no trace, it cannot be read, or a package is missing.
    """
    place = _Place(url)
    text = place.read(FACTS_FILE)
    facts = storage.facts_of(text, f"{url}/{FACTS_FILE}")
    if not facts.complete:
        return _copied_parts(place, text)
    try:
        said = place.listed()
    except TracekitError:  # a store that lists nothing, as most servers of https do
        said = {}
    rows = []
    for name in (LAYERS_FILE, ROUTING_FILE, STEPS_FILE):
        info = said.get(name) or place.info(name)
        n_bytes = info.get("size")
        if n_bytes is None:
            raise TraceError(
                f"{url}/{name} cannot be read in parts: its server does not say how large it is; "
                "download the trace and name the folder."
            )
        version = _version(info)
        is_known = bool(version) or facts.digest is not None
        identity = hashlib.sha256(text).hexdigest(), name, n_bytes, version, BLOCK_BYTES
        folder = _folder_of(*identity, is_known=is_known)
        rows.append(FileRows(RemoteFile(place, name, int(n_bytes), folder)))
    layers, routing, steps = rows
    return storage.TraceFiles(facts, layers, routing, steps, storage.said_of(facts, str(url)))


def _copied_parts(place: _Place, text: bytes) -> storage.TraceFiles:
    """Copy a recording that was cut short, whose rows are in many small parts, and read the copy."""
    files = {n: info for n, info in place.listed().items() if TRACE_FILES.fullmatch(n)}
    about = {name: (info.get("size"), _version(info)) for name, info in files.items()}
    is_known = all(version for _, version in about.values())
    folder = _folder_of(hashlib.sha256(text).hexdigest(), about, is_known=is_known) / "parts.trace"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, info in files.items():
        target = folder / name
        if not target.exists() or target.stat().st_size != info.get("size"):
            place.copy(name, target)
    copies = Copies([folder], {folder: place.url})
    with copies.named():
        found = storage.read_directory(folder)
    found.warnings[:] = map(copies.called, found.warnings)
    return found


def is_remote_trace(url: UrlPath) -> bool:
    """Say whether `url` names a trace, and no file; one that ends in ``.trace`` is not asked about."""
    text = url.url.partition("?")[0]
    if text.endswith(("/", ".trace")):
        return True
    return bool(_Place(url).info("").get("type") == "directory")


def fetched(url: UrlPath) -> Path:
    """Return the local copy of the file at `url`; it is fetched if it is not there.

    Raises
    ------
    TracekitError
        There is no such file, it cannot be read or kept, or a package is missing.
    """
    place = _Place(url)
    info = place.info("")
    version = _version(info)
    folder = _folder_of(url.url, info.get("size"), version, is_known=bool(version))
    copy = folder / (url.name or "file")
    n_bytes = info.get("size")
    if not copy.exists() or (n_bytes is not None and copy.stat().st_size != n_bytes):
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        place.copy("", copy)
    return copy

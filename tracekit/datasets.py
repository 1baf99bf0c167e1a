"""The files that come with tracekit: a small model, and a trace recorded from it.

In: a name, or ``bundled:NAME``. Out: a path. The files are in ``data/`` of a checkout, and inside the
package of an installed copy. This module opens none of them.
"""

from pathlib import Path

from tracekit.trace.errors import UsageError
from tracekit.trace.urls import UrlPath, is_url

PREFIX = "bundled:"

_PACKAGE = Path(__file__).resolve().parent


def folder() -> Path:
    """Return the folder that holds the bundled files."""
    installed = _PACKAGE / "data"
    return installed if installed.is_dir() else _PACKAGE.parent / "data"


def names() -> list[str]:
    """Return the names of the bundled models and traces, sorted."""
    return sorted(p.name for pattern in ("*.gguf", "*.trace") for p in folder().glob(pattern))


def path(name: str) -> Path:
    """Return where the bundled file `name` is.

    Raises
    ------
    UsageError
        No bundled file has that name; the sentence lists those there are.
    """
    if name not in names():
        raise UsageError(f"No bundled file is called {name!r}; there are: {', '.join(names())}.")
    return folder() / name


def model_path() -> Path:
    """Return the bundled model, the default of ``tracekit record``."""
    return next(folder().glob("*.gguf"))


def resolve(where: str | Path) -> Path:
    """Return `where` as a path; ``bundled:NAME`` names a bundled file, and a URL is a `UrlPath`."""
    if isinstance(where, str) and is_url(where):
        return UrlPath(where)
    if isinstance(where, UrlPath):
        return where
    text = str(where)
    return path(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else Path(where)

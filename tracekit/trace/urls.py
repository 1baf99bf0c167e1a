"""URLs of traces that lie elsewhere, and how a sentence shows them: without any secret.

In: the text that a user typed. Out: a path that is not on this machine. fsspec is not imported here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracekit.trace.errors import TracekitError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HIDDEN = "***"


def is_url(text: str) -> bool:
    """Say whether `text` is a URL, and no path or ``bundled:NAME``."""
    return _SCHEME.match(text) is not None


def masked(url: str) -> str:
    """Return `url` as it may be shown: without user and password, nor what follows a ``?``.

    A signed URL carries its signature there. Of a chain of URLs (``zip://a::s3://b``) each is masked.
    """
    return "::".join(map(_masked, url.split("::")))


def _masked(url: str) -> str:
    found = _SCHEME.match(url)
    if found is None:
        return _without_query(url)
    scheme, rest = found[0], url[found.end() :]
    host, _, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].partition("\0")
    if "@" in host:
        rest = f"{_HIDDEN}@{rest[host.rindex('@') + 1 :]}"
    elif ":" in host and not host.rpartition(":")[2].isdigit() and not host.endswith("]"):
        # A password that has a slash or a question mark: all up to the host is secret.
        rest = f"{_HIDDEN}@{rest.rpartition('@')[2]}" if "@" in rest else _HIDDEN
    return scheme + _without_query(rest)


def _without_query(text: str) -> str:
    shown = re.split(r"[?#]", text, maxsplit=1)[0]
    return shown if shown == text else f"{shown}?{_HIDDEN}"


class UrlPath(type(Path())):  # type: ignore[misc]
    """The URL of a trace or a file, where a path is due.

    Its text is the masked URL, so that no sentence, table or result shows a secret. As a path it names
    nothing on this machine.

    Attributes
    ----------
    url : str
        As the user typed it.
    """

    url: str

    def __new__(cls, url: str) -> "UrlPath":
        """Make the path; its parts are those of the masked URL."""
        made: UrlPath = Path.__new__(cls, masked(url))
        made.url = url
        return made

    def __init__(self, url: str):
        if Path.__init__ is not object.__init__:  # since Python 3.12
            super().__init__(masked(url))

    def __str__(self) -> str:
        return masked(self.url) if "url" in vars(self) else super().__str__()

    def __reduce__(self) -> tuple[type["UrlPath"], tuple[str]]:
        return type(self), (self.url,)


@dataclass(frozen=True)
class Copies:
    """Files on this machine, and the URLs of those that are copies.

    Attributes
    ----------
    paths : list of Path
    urls : dict of Path to UrlPath
    """

    paths: list[Path]
    urls: dict[Path, UrlPath]

    def called(self, text: str) -> str:
        """Return a sentence in which each copy is called by its URL."""
        for copy, url in self.urls.items():
            text = text.replace(str(copy), str(url))
        return text

    @contextmanager
    def named(self) -> Iterator[None]:
        """Call copies by their URLs in the errors that are raised meanwhile."""
        try:
            yield
        except TracekitError as error:
            if self.called(str(error)) == str(error):
                raise
            raise type(error)(self.called(str(error))) from error

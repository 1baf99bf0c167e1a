"""Files that a URL names, on this machine while they are read.

In: paths, of which some are URLs. Out: local paths. fsspec is imported where there is a URL.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tracekit.trace.urls import Copies, UrlPath


@contextmanager
def local_copies(paths: Sequence[Path]) -> Iterator[Copies]:
    """Give files on this machine for `paths`; what a URL names is fetched, unless it was before.

    Errors that are raised meanwhile call a copy by its URL.

    Raises
    ------
    TracekitError
        A file cannot be fetched; or as it was raised, with the other name.
    """
    urls: dict[Path, UrlPath] = {}
    local = []
    for path in paths:
        if isinstance(path, UrlPath):
            from tracekit.trace.remote import fetched

            copy = fetched(path)
            urls[copy] = path
            path = copy
        local.append(path)
    copies = Copies(local, urls)
    with copies.named():
        yield copies

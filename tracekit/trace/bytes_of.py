"""Where the bytes of a file of a trace are: on this machine, or elsewhere."""

import os
from pathlib import Path
from typing import IO, Literal, Protocol


class RemoteBytes(Protocol):
    """A file that is not on this machine: what of `Path` is asked of it."""

    @property
    def name(self) -> str:
        """Its name in its folder."""

    def exists(self) -> bool:
        """Say whether it is there."""

    def is_file(self) -> bool:
        """Say whether it is a file."""

    def stat(self) -> os.stat_result:
        """Return its size."""

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        """Open it for reading at any place."""


# Where the bytes of a file are.
Bytes = Path | RemoteBytes

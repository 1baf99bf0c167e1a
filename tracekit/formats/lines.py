"""Files of lines, read in pieces of whole lines, and where a line stands.

In: a file, which may be compressed. Out: pieces that end with a line; the number of a line.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracekit.formats.archives import damaged, opened
from tracekit.formats.base import BOM
from tracekit.trace import TraceError

PIECE_BYTES = 4 << 20
# A line of a trace has some hundred bytes; a file without any line end is none.
MOST_LINE_BYTES = 64 << 20


class Lines:
    """The lines of a file.

    Parameters
    ----------
    path : Path
    skipped : int
        Bytes at its start that are not read: a header, metadata.
    """

    def __init__(self, path: Path, skipped: int = 0):
        self.path = path
        self._skipped = skipped

    def pieces(self) -> Iterator[bytes]:
        """Yield pieces of about 4 MiB that end with a line; the last may lack its line end.

        Raises
        ------
        TraceError
            A line is too long, or the file cannot be read.
        """
        with opened(self.path) as file, damaged(str(self.path)):
            left = [file.read(len(BOM) + self._skipped).removeprefix(BOM)[self._skipped :]]
            while more := file.read(PIECE_BYTES):
                left.append(more)
                if b"\n" in more:
                    # The rest of the last line is small, so that nothing large is copied twice.
                    if not more.endswith(b"\n"):
                        left.append(file.readline(MOST_LINE_BYTES + 1))
                        self._refuse_long(len(left[-1]))
                    yield b"".join(left)
                    left = []
                elif end := more.rfind(b"\r") + 1:
                    yield b"".join((*left[:-1], more[:end]))
                    left = [more[end:]]
                else:
                    self._refuse_long(sum(map(len, left)))
            if any(left):
                yield b"".join(left)

    def whole(self, is_row: Callable[[bytes], bool], cut: Callable[[str], None]) -> Iterator[bytes]:
        """Yield pieces of whole lines, none of them blank.

        Parameters
        ----------
        is_row : callable
            Says whether a last line that has no line end is a whole row; if not, it is left out.
        cut : callable
            Is told in one sentence that a line was left out.

        Raises
        ------
        TraceError
            As for `pieces`.
        """
        for piece in self.pieces():
            if not piece.endswith((b"\n", b"\r")):
                start = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
                if not is_row(piece[start:]):
                    cut(f"{self.path} is incomplete: its last line is cut off, and is left out.")
                    piece = piece[:start]
            if piece and not piece.isspace():
                yield piece

    def _refuse_long(self, n_bytes: int) -> None:
        """Refuse a line of so many bytes, or one that begins with them."""
        if n_bytes > MOST_LINE_BYTES:
            raise TraceError(
                f"{self.path} has a line of more than {MOST_LINE_BYTES >> 20} MiB, as no trace has; it "
                "is of another kind."
            )

    def place(self, row: int) -> str:
        """Return the words for row `row`: its line, counted from 1; empty lines are no rows.

        Raises
        ------
        TraceError
            As for `pieces`.
        """
        n_rows, n_lines = 0, self._lines_skipped()
        for piece in self.pieces():
            for line in piece.splitlines():
                n_lines += 1
                if line.strip():
                    if n_rows == row:
                        return f"{self.path}, line {n_lines}"
                    n_rows += 1
        return f"{self.path}, after its last line"

    def _lines_skipped(self) -> int:
        with opened(self.path) as file, damaged(str(self.path)):
            start = file.read(len(BOM) + self._skipped).removeprefix(BOM)
        return len(start[: self._skipped].splitlines())


def json_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, None if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

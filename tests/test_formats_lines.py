"""Pieces of files of lines: they hold all of the file, and end where a line ends."""

import random

import pytest

from tracekit.formats import lines
from tracekit.trace import TraceError

ENDS = (b"\n", b"\r\n", b"\r")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(lines, "PIECE_BYTES", 16)
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 100)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("seed", range(40))
def test_pieces_are_the_file_cut_after_lines(end, seed, tmp_path):
    draw = random.Random(seed)
    texts = [b"x" * draw.choice((0, 1, 3, 15, 16, 40)) for _ in range(draw.randint(1, 12))]
    content = end.join(texts) + (end if draw.random() < 0.5 else b"")
    path = tmp_path / "file"
    path.write_bytes(draw.choice((b"", b"\xef\xbb\xbf")) + b"header" + end + content)
    *whole, last = list(lines.Lines(path, len(b"header" + end)).pieces()) or [b""]
    assert b"".join((*whole, last)) == content
    assert all(piece.endswith(end) or piece.endswith(b"\r") for piece in whole)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("before", [b"", b"short\n", b"short\r"])
def test_a_line_without_end_is_refused(before, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(before + b"x" * 200)
    with pytest.raises(TraceError, match="has a line of more than"):
        list(lines.Lines(path).pieces())

"""What Markdown pages show: commands with their output, links, blocks of code."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "notebooks/README.md")]
WRITTEN += [
    ROOT / "docs" / name
    for name in ("accounting.md", "cluster.md", "speed.md", "device.md", "time.md", "your-own.md")
]


def words_of(command: str) -> list[str]:
    """Return the words of a command after ``tracekit``."""
    return shlex.split(command, comments=True)[1:]


def shown_outputs(path: Path) -> list[tuple[str, str]]:
    """Return the commands of a page that stand above their output."""
    text = path.read_text(encoding="utf-8")
    return re.findall(r"```\n(tracekit [^\n]+)\n```\n\n```text\n(.*?)\n```", text, re.DOTALL)


def commands(path: Path) -> list[str]:
    """Return the command lines of a page that call tracekit."""
    return re.findall(r"^tracekit [^\n]+", path.read_text(encoding="utf-8"), re.MULTILINE)


def links(path: Path) -> list[str]:
    """Return the files that a page links to or shows."""
    found = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link]


def check_shown(printed: str, shown: str, exact: bool) -> None:
    """Check that what is shown was printed; a line ``…`` stands for lines that are left out.

    Where a predictor had a say, the last digits may differ between processors: the rounding of a
    matrix product decides near ties.
    """
    lines = printed.splitlines()
    for part in _parts(shown.splitlines()):
        form = _same if exact else _without_figures
        wanted = form(part)
        starts = range(len(lines) - len(part) + 1)
        start = next((i for i in starts if form(lines[i : i + len(part)]) == wanted), None)
        assert start is not None, "\n".join(["not printed:", *part, "", "printed:", *lines])
        found, lines = lines[start : start + len(part)], lines[start + len(part) :]
        assert _figures(found) == pytest.approx(_figures(part), rel=0.01, abs=0.2)


def _parts(lines: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for line in [*lines, "…"]:
        if line != "…":
            part.append(line)
        elif part:
            yield part
            part = []


def _same(lines: Sequence[str]) -> list[str]:
    return list(lines)


def _without_figures(lines: Sequence[str]) -> list[list[str]]:
    return [re.sub(r"[-+]?\d+\.?\d*", "0", line).split() for line in lines]


def _figures(lines: Sequence[str]) -> list[float]:
    return [float(figure) for figure in re.findall(r"\d+\.?\d*", "\n".join(lines))]

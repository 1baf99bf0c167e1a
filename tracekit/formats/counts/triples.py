"""Lines of three whole numbers, layer, expert and count, as numbers.

In: the path of a file. Out: an array [lines, 3]; the place of a wrong line in a sentence.
"""

from pathlib import Path

import numpy as np

from tracekit.formats.archives import opened
from tracekit.formats.counts.expert_counts import MOST, MOST_EXPERTS, MOST_LAYERS
from tracekit.trace.errors import TraceError

# Far more than the experts of any model take.
_MOST_BYTES = 32 << 20
_LONGEST_NUMBER = 20


def triples(path: Path, separator: bytes | None, skipped: int = 0) -> np.ndarray:
    """Return the lines of a file after the first `skipped` ones, int64 [lines, 3].

    Parameters
    ----------
    path : Path
    separator : bytes or None
        Between two numbers; None: blanks.
    skipped : int
        Lines of a header.

    Raises
    ------
    TraceError
        A line is no three whole numbers, or the last one is cut.
    """
    with opened(path) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise TraceError(f"{path} has more than 32 MiB, so it holds no counts; name another file.")
    if text and not text.endswith(b"\n"):
        raise TraceError(f"{path} ends within a line, so it is cut; copy it again.")
    text = text.removeprefix(b"\xef\xbb\xbf")
    rows = []
    for number, line in enumerate(text.splitlines()[skipped:], skipped + 1):
        if not line.strip():
            continue
        fields = [each.strip() for each in line.split(separator)]
        if len(fields) != 3 or not all(map(_is_whole, fields)):
            raise TraceError(
                f"{path}, line {number}: {line[:60].decode(errors='backslashreplace')!r} is no layer, "
                "expert and count; correct the line."
            )
        rows.append([int(each) for each in fields])
    return np.array(rows, np.int64).reshape(-1, 3)


def _is_whole(field: bytes) -> bool:
    return field.removeprefix(b"-").isdigit() and len(field) < _LONGEST_NUMBER


def table_of(rows: np.ndarray, name: str, n_layer: int | None, n_expert: int | None) -> np.ndarray:
    """Return counts [layers, n_expert] of lines; those of the same layer and expert are added.

    Parameters
    ----------
    rows : int64 [lines, 3]
    name : str
        What sentences call the file.
    n_layer, n_expert : int or None
        None: up to the largest number.

    Raises
    ------
    TraceError
        A number is out of its range.
    """
    if not len(rows):
        raise TraceError(f"{name} holds no count; record it again.")
    n_layer = int(rows[:, 0].max()) + 1 if n_layer is None else n_layer
    n_expert = int(rows[:, 1].max()) + 1 if n_expert is None else n_expert
    for column, (what, most) in enumerate(
        (
            ("layer", min(n_layer, MOST_LAYERS)),
            ("expert", min(n_expert, MOST_EXPERTS)),
            ("count", MOST),
        )
    ):
        values = rows[:, column]
        wrong = values[(values < 0) | (values >= most)]
        if len(wrong):
            raise TraceError(
                f"{name} names the {what} {wrong[0]}, and {what}s go from 0 to {most - 1}; correct it."
            )
    counts = np.zeros((n_layer, n_expert), np.int64)
    np.add.at(counts, (rows[:, 0], rows[:, 1]), rows[:, 2])
    return counts

"""Which files a model consists of, where it is split over several.

In: the path that a user named. Out: the paths of all files.
"""

import os
import re
from pathlib import Path

from tracekit.trace.errors import TraceError

_MOST_PARTS = 10_000


def parts_of(path: Path, ending: str) -> list[Path]:
    """Return the files of a model whose parts are named ``…-00001-of-00003`` and the ending.

    Raises
    ------
    TraceError
        It is no file; or it is not the first part, or others are missing.
    """
    check_file(path)
    split = re.fullmatch(rf"(.*)-(\d{{5}})-of-(\d{{5}}){re.escape(ending)}", path.name)
    if not split:
        return [path]
    stem, number, count = split[1], int(split[2]), int(split[3])
    if not 1 <= number <= count <= _MOST_PARTS:
        raise TraceError(
            f"{path} is named as part {number} of {count}, which is not a part's number."
        )

    def part(n: int) -> Path:
        return path.with_name(f"{stem}-{n:05}-of-{count:05}{ending}")

    if number != 1:
        raise TraceError(f"{path} is part {number} of a split model; name its first: {part(1)}.")
    paths = [part(n) for n in range(1, count + 1)]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise TraceError(f"{path} is a split model, and {missing[0]} is not beside it.")
    return paths


def check_file(path: Path) -> None:
    """Refuse what is no file that can be read.

    Raises
    ------
    TraceError
    """
    if not os.path.exists(path):
        raise TraceError(f"{path} does not exist; name a file of the model.")
    if not path.is_file():
        raise TraceError(f"{path} is no file; name a file of the model.")

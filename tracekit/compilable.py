"""A Python function that numba is to compile, and what its file held when it was imported.

Nothing here imports numba.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, cast


class Compilable:
    """A function that is to be compiled.

    Attributes
    ----------
    py_func : function
    targetoptions : dict
        Options of ``numba.njit``.
    is_kept : bool
        Whether the machine code is kept on disk.
    file_digest : str or None
        Of what the function's file held as Python read it; None: it cannot be read.
    """

    def __init__(self, function: Callable[..., Any], is_kept: bool, options: dict[str, Any]):
        functools.update_wrapper(cast(Any, self), function)
        self.py_func = cast(FunctionType, function)
        self.targetoptions = options
        self.is_kept = is_kept
        # The file may change before the first call.
        self.file_digest = digest_of_file(self.py_func)


def digest_of_file(function: FunctionType) -> str | None:
    """Return a digest of the file that `function` stands in; None if it cannot be read."""
    try:
        return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
    except OSError:
        return None

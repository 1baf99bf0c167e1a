"""numba, imported so that no file of the current folder has a say in it.

numba reads ``.numba_config.yaml`` of the folder that the process stands in. Such a file can name the
folder of the machine code to run, and a trace's folder may come from anybody. The environment's
``NUMBA_`` variables count as ever.
"""

# numba is not annotated.
# mypy: allow-untyped-calls

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _unreadable_yaml() -> Iterator[None]:
    """Let ``import yaml`` fail while the block runs: numba reads no file without it."""
    missing = object()
    yaml = sys.modules.get("yaml", missing)
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A Numba config file is found")
            yield
    finally:
        sys.modules.pop("yaml", None)
        if yaml is not missing:
            sys.modules["yaml"] = yaml  # type: ignore[assignment]


with _unreadable_yaml():
    from numba import njit
    from numba.core import config
    from numba.core.caching import FunctionCache, IndexDataCacheFile
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher
    from numba.core.runtime.nrt import rtsys

config._config_fname = ""  # numba looks again whenever it compiles

__all__ = [
    "Dispatcher",
    "FunctionCache",
    "IndexDataCacheFile",
    "global_compiler_lock",
    "njit",
    "rtsys",
]

"""How hot loops are compiled: on first use, and kept between runs as far as that is possible."""

import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError)


class _Cache(FunctionCache):
    """numba's cache of machine code on disk, whose troubles are no trouble of a replay.

    A file that was cut short is as good as none, and what a full disk does not take is compiled
    again next time.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(*_UNREADABLE):
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except _UNREADABLE:  # saving reads the index; an unreadable one is begun anew
            with suppress(OSError):
                self.flush()
                super().save_overload(sig, data)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile `function` without the GIL, and keep the machine code where there is a place for it.

    That is beside the source, in the user's cache folder or in ``NUMBA_CACHE_DIR``. Where none can
    be written, as in a read-only container, numba itself would refuse; here every process compiles
    anew, which takes seconds.
    """
    compiled = njit(nogil=True)(function)
    if isinstance(compiled, Dispatcher):  # not under NUMBA_DISABLE_JIT
        with suppress(RuntimeError):  # numba found no place to write to
            compiled._cache = _Cache(function)
    return compiled

"""Which machine code of a kernel runs: that on disk, or what numba compiles now.

In: a kernel. Out: numba's function. Machine code on disk is used only while every file that went
into it is unchanged, and every constant. This module imports numba, and is itself imported at the
first call of a kernel.
"""

# numba does not annotate its cache.
# mypy: allow-untyped-calls

import hashlib
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tracekit.compilable import Compilable, digest_of_file
from tracekit.numba_import import (
    Dispatcher,
    FunctionCache,
    IndexDataCacheFile,
    global_compiler_lock,
    njit,
    rtsys,
)

# numba's own, since numba asks for helpers of a kernel while it holds this lock.
COMPILER_LOCK = global_compiler_lock
_SEAL_BYTES = hashlib.sha256().digest_size


def compiled(kernel: Compilable) -> Any:
    """Return numba's function for `kernel`; it compiles at its first call with each types."""
    function = njit(**kernel.targetoptions)(kernel.py_func)
    if kernel.is_kept and isinstance(function, Dispatcher):  # not under NUMBA_DISABLE_JIT
        with suppress(RuntimeError):  # numba found no place to write to
            vars(function)["_cache"] = _Cache(kernel)
    return function


class _Cache(FunctionCache):
    """numba's cache of machine code on disk, stamped with all that the machine code depends on.

    numba stamps it with the kernel's own file, so that a helper of another module could change
    unnoticed. A cache that cannot be read or written is no error: a file that is damaged counts as
    absent, whatever goes wrong with it, and what a full disk does not take is compiled again next
    time.
    """

    def __init__(self, kernel: Compilable) -> None:
        super().__init__(kernel.py_func)
        self._function = kernel.py_func
        # Both: numba's is of now, ours of when the function was imported.
        self._own_stamp = self._impl.locator.get_source_stamp(), kernel.file_digest

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code of one signature, if it is on disk.

        numba would first make its context ready to compile, which takes longer than a small replay.
        Machine code needs no more of it than its memory management.
        """
        with suppress(Exception):
            self._stamp()
            rtsys.initialize(target_context)
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except Exception:  # saving reads the index; one that is damaged is replaced
            with suppress(Exception):
                self.flush()
                super().save_overload(sig, data)

    def _stamp(self) -> None:
        """Stamp the cache with what the kernel uses; keep nothing if that cannot be said.

        This waits for the first call, since a kernel may use what is defined below it.
        """
        dependencies = _dependencies(self._function)
        if dependencies is None:
            self.disable()
            return
        self._cache_file = _SealedFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=(*self._own_stamp, *dependencies),
        )


class _SealedFile(IndexDataCacheFile):
    """The files of a cache, each with a digest before its content.

    What numba reads is machine code, which would run with a flipped bit as well.
    """

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(filepath) as file:
            file.write(hashlib.sha256(content.getvalue()).digest() + content.getvalue())

    def _load_index(self) -> dict[Any, Any]:
        try:
            content = io.BytesIO(_unsealed(self._index_path))
        except FileNotFoundError:
            return {}
        if pickle.load(content) != self._version:
            return {}
        stamp, overloads = pickle.load(content)
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        return pickle.loads(_unsealed(self._data_path(name)))


def _unsealed(path: str) -> bytes:
    data = Path(path).read_bytes()
    seal, content = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
    if hashlib.sha256(content).digest() != seal:
        raise ValueError(f"{path} is damaged")
    return content


def _dependencies(function: FunctionType) -> list[str] | None:
    """Describe the kernels that `function` calls, however indirectly, and the constants of all.

    numba compiles both into the machine code. None if the file of such a kernel cannot be read.
    """
    stamps: list[str] = []
    seen = {function}
    waiting = list(_values_used(function))
    while waiting:
        value = waiting.pop()
        if isinstance(value, (Compilable, Dispatcher)):
            helper = value.py_func
            if helper in seen:
                continue
            seen.add(helper)
            digest = value.file_digest if isinstance(value, Compilable) else digest_of_file(helper)
            if digest is None:
                return None
            line = helper.__code__.co_firstlineno
            stamps.append(f"{helper.__module__}.{helper.__qualname__}:{line} {digest}")
            waiting += _values_used(helper)
        elif isinstance(value, tuple):
            waiting += value
        elif isinstance(value, np.ndarray):
            digest = hashlib.sha256(value.tobytes()).hexdigest()
            stamps.append(f"{value.dtype} {value.shape} {digest}")
        elif isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
            stamps.append(repr(value))
    return stamps


def _values_used(function: FunctionType) -> Iterator[object]:
    """Yield the values of the global names and of the closure that occur in `function`.

    Attributes are looked up by their name alone, in every module that occurs, so this may yield
    more than is used. That may cost a compilation, and never gives a wrong result.
    """
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a variable that is not set yet
            yield cell.cell_contents
    names = list(dict.fromkeys(_names_in(function.__code__)))
    spaces = [function.__globals__]
    for space in spaces:  # grows while it is read
        for name in names:
            value = space.get(name)
            if not isinstance(value, ModuleType):
                yield value
            elif not any(vars(value) is known for known in spaces):
                spaces.append(vars(value))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in `code` and in the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)

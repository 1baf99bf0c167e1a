"""How a hot loop is compiled: on its first call, with the machine code kept on disk for later runs.

In goes a Python function that numba can compile; out comes the same function, compiled. Nothing
here knows what a loop computes. A kernel may call kernels of other modules. numba is imported at
the first call of any kernel, since importing it takes as long as many a whole command.
"""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from tracekit.compilable import Compilable

P = ParamSpec("P")
R = TypeVar("R")
# Numbers of Python or numpy in the signature of a kernel: numba compiles for those that it is given.
Whole = Any
Real = Any


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` without the GIL, and keep the machine code where there is a place for it.

    That place is beside the source, in the user's cache folder or in ``NUMBA_CACHE_DIR``. Where
    none can be written, as in a read-only container, numba itself would refuse; here every process
    compiles again, which takes seconds.
    """
    return Kernel(function, is_kept=True)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` a helper of kernels: its code becomes part of each kernel that calls it."""
    return Kernel(function, is_kept=False, inline="always")


class Kernel(Compilable, Generic[P, R]):
    """A function that numba compiles when it is first called, by Python or by another kernel.

    numba takes it for one of its own compiled functions: it asks each global name of the code that
    it compiles for its ``_numba_type_``, its `targetoptions` and its `py_func`. Other public
    attributes are those of numba's function.

    Parameters
    ----------
    function : callable
        What is compiled.
    is_kept : bool
        Whether the machine code is kept on disk.
    **options
        Options of ``numba.njit``.
    """

    def __init__(self, function: Callable[P, R], is_kept: bool, **options: Any):
        # C functions that call a kernel by its address are not made: a tenth of compiling.
        super().__init__(function, is_kept, {"nogil": True, "no_cfunc_wrapper": True, **options})
        self._compiled: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the compiled function; compile it first where that is due."""
        compiled = self._compiled or self._compile()
        return cast(R, compiled(*args, **kwargs))

    def _compile(self) -> Any:
        """Return numba's function; with ``NUMBA_DISABLE_JIT`` set, the Python function.

        Threads that ask at the same time get the same one.
        """
        from tracekit.machine_code import COMPILER_LOCK, compiled

        with COMPILER_LOCK:
            if self._compiled is None:
                self._compiled = compiled(self)
            return self._compiled

    @property
    def _numba_type_(self) -> Any:
        return (self._compiled or self._compile())._numba_type_

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python and its libraries look for many such names
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._compile(), name)

    def __repr__(self) -> str:
        return f"<kernel {self.py_func.__module__}.{self.py_func.__qualname__}>"

    def __reduce__(self) -> str:
        return self.py_func.__qualname__  # pickled by name, as a Python function is

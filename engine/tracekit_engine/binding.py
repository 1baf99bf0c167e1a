"""llama.cpp through llama-cpp-python's low-level module: import, checked parameters, log."""

import ctypes
import re
import threading
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TypeVar

from tracekit.trace.errors import TracekitError

LOG_ERROR, LOG_CONTINUED = 4, 5
_ABORT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_one_at_a_time = threading.Lock()
T = TypeVar("T")


class AbortError(Exception):
    """llama.cpp found something that it ends the process for; the text says what, and where."""


def load() -> ModuleType:
    """Return the module of llama.cpp's C functions.

    Raises
    ------
    TracekitError
        llama-cpp-python is not installed, or its library does not load here.
    """
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise TracekitError(
            "Recording needs llama-cpp-python, which is not installed here "
            f"({error}); install it with: pip install 'tracekit[engine]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise TracekitError(
            f"llama-cpp-python's library does not load here: {error}; "
            "build it for this machine: pip install --force-reinstall --no-binary "
            "llama-cpp-python llama-cpp-python"
        ) from error
    return llama_cpp


def version() -> str:
    """Return the release of llama-cpp-python."""
    import llama_cpp

    return llama_cpp.__version__


def function(name: str, result: type | None, *arguments: type) -> "ctypes._NamedFuncPointer":
    """Return a C function of llama.cpp's libraries that the binding does not declare."""
    found = getattr(load()._lib, name, None)
    if found is None:
        raise TracekitError(
            f"This llama-cpp-python lacks the function {name}; install the release that "
            "tracekit is made for: pip install 'tracekit[engine]'"
        )
    found.argtypes = arguments
    found.restype = result
    return found


def set_fields(struct: ctypes.Structure, **values: object) -> None:
    """Set parameters, each of which must exist.

    ctypes accepts an unknown attribute in silence, and these structures change between releases.
    """
    known = {name for name, *_ in struct._fields_}
    for name, value in values.items():
        if name not in known:
            raise TracekitError(
                f"This llama-cpp-python has no parameter {name!r} in {type(struct).__name__}; "
                "install the release that tracekit is made for: pip install 'tracekit[engine]'"
            )
        setattr(struct, name, value)


def guarded(work: Callable[[], T]) -> T:
    """Return what `work` returns; an assertion of llama.cpp that fails in it becomes an exception.

    llama.cpp reports a failed assertion and then aborts the process. Here `work` has a thread of
    its own, and the report never returns: the thread stands still for good, with what it holds.
    So `work` must compute on one thread, its own. It cannot be interrupted: Ctrl-C waits for it.

    Raises
    ------
    AbortError
    """
    go, done = threading.Event(), threading.Event()
    outcome: list[tuple[T | None, BaseException | None]] = []

    def end(value: T | None, error: BaseException | None) -> None:
        outcome.append((value, error))
        done.set()

    def run() -> None:
        go.wait()
        try:
            end(work(), None)
        except BaseException as error:
            end(None, error)

    thread = threading.Thread(target=run, name="llama.cpp", daemon=True)

    def stand_still(message: bytes) -> None:
        if threading.get_ident() == thread.ident:  # others abort as ever
            # "/where/it/was/built/file.cpp:12: GGML_ASSERT(x > 0) failed"
            text = re.sub(r"^.*/(?=[^/]+:\d+: )", "", message.decode("utf-8", "replace"))
            end(None, AbortError(text))
            threading.Event().wait()

    callback = _ABORT_CALLBACK(stand_still)
    set_callback = function("ggml_set_abort_callback", ctypes.c_void_p, ctypes.c_void_p)
    with _one_at_a_time:
        set_callback(ctypes.cast(callback, ctypes.c_void_p))
        try:
            thread.start()
            _see_through(go, done)
        finally:
            set_callback(None)
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _see_through(go: threading.Event, done: threading.Event) -> None:
    """Let what waits for `go` go; a Ctrl-C before it is done has its way afterwards."""
    interrupt = None
    while not done.is_set():
        try:
            go.set()
            done.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class Log:
    """Keeps llama.cpp's complaints for an error message instead of printing them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._level = 0
        self._callback = load().llama_log_callback(self._write)
        load().llama_log_set(self._callback, ctypes.c_void_p(0))

    def _write(self, level: int, text: bytes, _data: object) -> None:
        if level != LOG_CONTINUED:
            self._level = level
        if self._level == LOG_ERROR:
            self._lines.append(text.decode("utf-8", "replace").strip())
            del self._lines[:-8]

    def forget(self) -> None:
        """Start anew: what was logged so far concerns something else."""
        self._lines.clear()

    def complaint(self) -> str:
        """Return the first error logged since, without the C function's name."""
        for line in self._lines:
            # It begins with the names of C functions: "llama_model_load: error loading model: …"
            text = re.sub(r"^(?:error loading model: |\w+: )*", "", line)
            if text:
                return text.rstrip(".")
        return "it gave no reason"


@cache
def log() -> Log:
    """Return the log, which llama.cpp writes to from the first call to the end of the process."""
    return Log()

"""llama.cpp through llama-cpp-python's low-level module: import, checked parameters, log.

Nothing here knows a model. What llama.cpp complains of becomes the text of an exception.
"""

import ctypes
import re
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TypeVar

from tracekit.trace.build import on_one_line
from tracekit.trace.errors import TracekitError

LOG_ERROR, LOG_CONTINUED = 4, 5
_LONGEST_MESSAGE = 300  # characters
_INSTALL = "pip install 'tracekit[engine]'"
_ABORT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_one_at_a_time = threading.Lock()
T = TypeVar("T")


class AbortError(Exception):
    """llama.cpp met a condition for which it ends the process; the text says which, and where."""


@cache
def load() -> ModuleType:
    """Return the module of llama.cpp's C functions.

    Raises
    ------
    TracekitError
        llama-cpp-python or gguf is not installed, or llama.cpp's library does not load here.
    """
    try:
        from llama_cpp import llama_cpp
    except ImportError as error:
        raise TracekitError(
            f"Recording needs llama-cpp-python, which is not installed here ({error}); "
            f"install it with: {_INSTALL}"
        ) from error
    except (OSError, RuntimeError) as error:
        raise TracekitError(
            f"llama-cpp-python's library does not load here: {error}; "
            "build it for this machine: pip install --force-reinstall --no-binary "
            "llama-cpp-python llama-cpp-python"
        ) from error
    # Only quantised routers need gguf. It is asked for now, before a large model is loaded.
    if find_spec("gguf") is None:
        raise TracekitError(
            f"Recording needs gguf, which is not installed here; install it with: {_INSTALL}"
        )
    return llama_cpp


def version() -> str:
    """Return the release of llama-cpp-python."""
    import llama_cpp

    return str(llama_cpp.__version__)


def function(name: str, result: type | None, *arguments: type) -> "ctypes._NamedFuncPointer":
    """Return a C function of llama.cpp's libraries that the binding does not declare.

    Raises
    ------
    TracekitError
        The installed release has no such function.
    """
    found: ctypes._NamedFuncPointer | None = getattr(load()._lib, name, None)
    if found is None:
        raise TracekitError(
            f"This llama-cpp-python lacks the function {name}; install the release that "
            f"tracekit is made for: {_INSTALL}"
        )
    found.argtypes = arguments
    found.restype = result
    return found


def set_fields(struct: ctypes.Structure, **values: object) -> None:
    """Set parameters, each of which must exist.

    ctypes accepts an unknown attribute in silence, and these structures change between releases.

    Raises
    ------
    TracekitError
        The structure has no such field.
    """
    known = {name for name, *_ in struct._fields_}
    for name, value in values.items():
        if name not in known:
            raise TracekitError(
                f"This llama-cpp-python has no parameter {name!r} in {type(struct).__name__}; "
                f"install the release that tracekit is made for: {_INSTALL}"
            )
        setattr(struct, name, value)


def guarded(work: Callable[[], T]) -> T:
    """Return what `work` returns; turn an assertion of llama.cpp that fails in it into an exception.

    llama.cpp reports a failed assertion and then aborts the process. To prevent that, `work` runs
    on a thread of its own, and the report on that thread never returns. The thread then blocks for
    good, and what it holds is not freed. So `work` must compute on its own thread only. It cannot
    be interrupted: Ctrl-C waits for it.

    Raises
    ------
    AbortError
        An assertion failed.
    """
    start, done = threading.Event(), threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        start.wait()
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        done.set()

    thread = threading.Thread(target=run, name="llama.cpp", daemon=True)

    def report(message: bytes) -> None:
        if threading.get_ident() != thread.ident:
            return  # llama.cpp aborts the process, as it does without this callback
        # "/where/it/was/built/file.cpp:12: GGML_ASSERT(x > 0) failed"
        text = re.sub(r"^.*/(?=[^/]+:\d+: )", "", message.decode("utf-8", "replace"))
        errors.append(AbortError(text))
        done.set()
        threading.Event().wait()

    callback = _ABORT_CALLBACK(report)
    set_callback = function("ggml_set_abort_callback", ctypes.c_void_p, ctypes.c_void_p)
    with _one_at_a_time:
        set_callback(ctypes.cast(callback, ctypes.c_void_p))
        try:
            thread.start()
            _start_and_wait(start, done)
        finally:
            set_callback(None)
    if errors:
        raise errors[0]
    return results[0]


def _start_and_wait(start: threading.Event, done: threading.Event) -> None:
    """Start the worker and wait for it; re-raise a Ctrl-C that came meanwhile once it is done."""
    interrupt = None
    while not done.is_set():
        try:
            start.set()
            done.wait()
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class Log:
    """Keeps llama.cpp's error messages for an exception's text instead of printing them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._level = 0
        self._callback = load().llama_log_callback(self._write)
        load().llama_log_set(self._callback, ctypes.c_void_p(0))

    def _write(self, level: int, text: bytes, _data: object) -> None:
        if level != LOG_CONTINUED:
            self._level = level
        if self._level == LOG_ERROR:
            self._lines.append(
                on_one_line(text.decode("utf-8", "replace").strip(), _LONGEST_MESSAGE)
            )
            del self._lines[:-8]

    def clear(self) -> None:
        """Drop the messages logged so far: they concern something else."""
        self._lines.clear()

    def first_error(self) -> str:
        """Return the first message since `clear`, without the names of C functions."""
        for line in self._lines:
            # It begins with these names: "llama_model_load: error loading model: …"
            text = re.sub(r"^(?:error loading model: |\w+: )*", "", line)
            if text:
                return text.rstrip(".")
        return "it gave no reason"


@cache
def log() -> Log:
    """Return the log, which llama.cpp writes to from the first call to the end of the process."""
    return Log()

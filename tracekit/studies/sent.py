"""One step of a unit, sent to another process: what is sent, and what comes back.

In: a unit and a step. Out: bytes that any executor can carry, and from what comes back the result of the
step or the error that it raised. The bytes say first which tracekit they are of.
"""

import pickle
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.kernels import Kernel
from tracekit.own_modules import own_modules
from tracekit.studies.held import holding
from tracekit.studies.units import Unit
from tracekit.trace.errors import TracekitError, UsageError
from tracekit.version import version


@dataclass(frozen=True)
class Answer:
    """What came of a step: a result, or an error that the user can act on."""

    result: Any = None
    error: Exception | None = None


class Call:
    """A step that runs where its pickle is loaded.

    An executor is asked to call ``pickle.loads``, so that a scheduler needs no tracekit, and a worker
    without it fails in a way that can be told.

    Parameters
    ----------
    name : str
        What the worker calls the unit.
    unit : bytes
        From `packed`.
    step : str
        A method of `Held`.
    *args
        Its arguments.
    """

    def __init__(self, name: str, unit: bytes, step: str, *args: Any):
        self._call = version(), name, unit, step, args

    def __reduce__(self) -> tuple[Any, ...]:
        return _answer, self._call

    def __bytes__(self) -> bytes:
        return pickle.dumps(self)


def _answer(theirs: str, name: str, unit: bytes, step: str, args: Sequence[Any]) -> Answer:
    """Take a step, on a worker."""
    if theirs != version():
        return Answer(
            error=TracekitError(
                f"A worker on {socket.gethostname()} has tracekit {version()}, and this machine has "
                f"{theirs}; install the same version on every worker."
            )
        )
    try:
        with holding(name, lambda: _unpacked(unit)) as held:
            try:
                return Answer(getattr(held, step)(*args))
            except (TracekitError, OSError, MemoryError) as error:
                return Answer(error=error.with_traceback(None))
            except Exception as error:
                own = _error_of_own_code(error, held.unit)
                if own is None:
                    raise
                return Answer(error=own)
    except UsageError as error:
        return Answer(error=error)


def packed(unit: Unit) -> bytes:
    """Return `unit` as bytes; classes that a worker cannot import go with it.

    Raises
    ------
    UsageError
        A class of the user's own cannot be sent.
    """
    if not unit.own:
        return pickle.dumps(unit)
    try:
        return _by_value(unit)
    except Exception as error:
        names = ", ".join(unit.own)
        raise UsageError(f"{names} cannot be sent to a worker: {error}.") from error


def _by_value(unit: Unit) -> bytes:
    try:
        import cloudpickle
    except ImportError:  # a worker then imports the classes itself, or says that it cannot
        return pickle.dumps(unit)
    from io import BytesIO

    modules = own_modules()
    names = {module.__name__ for module in modules}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def reducer_override(self, value: Any) -> Any:
            """Send a kernel of such a module as the function that is compiled."""
            if isinstance(value, Kernel) and value.py_func.__module__ in names:
                return Kernel, (value.py_func, False)
            return super().reducer_override(value)

    file = BytesIO()
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        Pickler(file).dump(unit)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


def _unpacked(unit: bytes) -> Unit:
    try:
        opened: Unit = pickle.loads(unit)
    except ImportError as error:
        raise UsageError(
            f"A worker on {socket.gethostname()} cannot load what a run names as module:Class: {error}; "
            "install the module there, or cloudpickle here and there."
        ) from error
    return opened


def _error_of_own_code(error: Exception, unit: Unit) -> TracekitError | None:
    """Return the sentence about `error` if code of the user's own raised it."""
    own = {cls.__module__ for cls in unit.own.values()}
    frames = [
        (frame.f_code.co_name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") in own
    ]
    if not frames:
        return None
    name, line = frames[-1]
    return TracekitError(
        f"{name}() of {', '.join(unit.own)}, line {line}, raised {type(error).__name__}: {error} on a "
        "worker."
    )

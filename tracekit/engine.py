"""How Python users reach the recording engine: ``tracekit.record``, ``tracekit.Session``, options.

The engine is the package ``tracekit_engine``. It is imported when one of these names is first used,
so that ``import tracekit.engine`` costs nothing. Nothing here knows what the engine does.

>>> import tracekit
>>> from tracekit.engine import Generation, Options, Streaming
>>> options = Options(streaming=Streaming(cache_bytes=3000 << 20))
>>> tracekit.record("model.gguf", "Once upon a time", "run.trace", options=options)
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tracekit.trace.errors import TracekitError

if TYPE_CHECKING:
    from tracekit_engine import (
        Capture,
        Generation,
        Options,
        Pass,
        Progress,
        Prompt,
        Recording,
        Sampling,
        Session,
        Streaming,
        record,
    )

__all__ = [
    "Capture",
    "Generation",
    "Options",
    "Pass",
    "Progress",
    "Prompt",
    "Recording",
    "Sampling",
    "Session",
    "Streaming",
    "load",
    "record",
]

_PACKAGE = "tracekit_engine"


def load() -> ModuleType:
    """Return the package ``tracekit_engine``.

    An installed tracekit has it in site-packages. A checkout that is only on ``sys.path`` has it in
    the folder ``engine/`` beside this package; that folder is then added to ``sys.path``.

    Raises
    ------
    TracekitError
        The engine, or a package that it needs, is not installed.
    """
    try:
        try:
            return import_module(_PACKAGE)
        except ModuleNotFoundError as error:
            folder = Path(__file__).resolve().parents[1] / "engine"
            if error.name != _PACKAGE or not (folder / _PACKAGE).is_dir():
                raise
            sys.path.append(str(folder))
            return import_module(_PACKAGE)
    except ModuleNotFoundError as error:
        if error.name == _PACKAGE:
            mend = "it is a part of tracekit: pip install --force-reinstall --no-deps tracekit"
        else:
            mend = "install it with: pip install 'tracekit[engine]'"
        raise TracekitError(
            f"Recording needs {error.name or error}, which is not installed here; {mend}"
        ) from error


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The recording engine, found where it is installed or beside this package in a checkout."""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit_engine import Session, record

__all__ = ["Session", "record"]


def load() -> Any:
    """Return the package ``tracekit_engine``.

    In a checkout that is not installed it stands in the folder ``engine/`` beside this package.

    Raises
    ------
    ModuleNotFoundError
        The engine, or a package that it needs, is not installed.
    """
    try:
        return import_module("tracekit_engine")
    except ModuleNotFoundError as error:
        folder = Path(__file__).resolve().parents[1] / "engine"
        if error.name != "tracekit_engine" or not (folder / "tracekit_engine").is_dir():
            raise
        sys.path.append(str(folder))
        return import_module("tracekit_engine")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(), name)

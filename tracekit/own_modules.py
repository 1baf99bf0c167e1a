"""Modules of the user's own, imported from the current folder because ``module:Class`` named them.

In: the name of a module. Out: the module. The folder is not put on ``sys.path``: there a file
``scipy.py`` beside a trace would run as soon as a library looks whether SciPy is installed. Instead
the folder is searched for the named module, and for what that module itself imports, then or later.
Installed modules go first.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_finders: dict[str, "_FolderFinder"] = {}


def import_own(name: str) -> ModuleType:
    """Import the module `name`, which may be a file of the current folder.

    Raises
    ------
    Exception
        Whatever importing it raises.
    """
    # The module may import numba, which would read a file of the current folder.
    importlib.import_module("tracekit.numba_import")
    finder = _finder_of(_current_folder())
    if finder is None:
        return importlib.import_module(name)
    with finder.searching(name.partition(".")[0]):
        return importlib.import_module(name)


def own_modules() -> list[ModuleType]:
    """Return the modules that were found in a current folder: another process does not find them."""
    names = {name for finder in _finders.values() for name in finder.found}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None


def _finder_of(folder: str | None) -> "_FolderFinder | None":
    if folder is None:
        return None
    if folder not in _finders:
        _finders[folder] = _FolderFinder(folder)
        sys.meta_path.append(_finders[folder])
    return _finders[folder]


class _FolderFinder:
    """Finds in a folder what was named, and what modules that were found there import."""

    def __init__(self, folder: str):
        self._folder = folder
        self._named: str | None = None
        self.found: set[str] = set()

    @contextmanager
    def searching(self, name: str) -> Iterator[None]:
        """Find the module `name` in the folder while the block runs."""
        before, self._named = self._named, name
        try:
            yield
        finally:
            self._named = before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the module is, if it may be found here and is there."""
        asking = _asking_module()
        is_named = fullname == self._named and asking == __name__
        if path is not None or not (is_named or asking.partition(".")[0] in self.found):
            return None
        spec = PathFinder.find_spec(fullname, [self._folder], target)
        if spec is not None:
            self.found.add(fullname)
        return spec


def _asking_module() -> str:
    """Return the name of the module whose code asks for an import."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in ("importlib", "_frozen_importlib"):
            return name
        frame = frame.f_back
    return ""

"""Names of policies and predictors: a decorator registers a class, a lookup finds it."""

import difflib
import importlib
from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import Generic, TypeVar

from tracekit.trace.errors import UsageError

T = TypeVar("T")
# Of the modules that users' own classes came from: what goes wrong there is for them to mend.
own_files: set[str | None] = set()


def unknown(kind: str, name: str, known: Collection[str]) -> UsageError:
    """Return the error about a name that is not among `known`: it names the nearest match."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
    return UsageError(f"No {kind} is called {name!r}; {hint}")


class Registry(Generic[T]):
    """Classes by name, in the order they were registered.

    Parameters
    ----------
    kind : str
        What is registered, in the words of an error message: ``"policy"``, ``"predictor"``.
    base : type
        The class that every entry, and every class named ``module:Class``, derives from.
    """

    def __init__(self, kind: str, base: type[T]):
        self.kind = kind
        self.base = base
        self._classes: dict[str, type[T]] = {}

    def register(self, cls: type[T]) -> type[T]:
        """Class decorator: file `cls` under its ``name``."""
        if cls.name in self._classes:
            raise ValueError(f"{self.kind} {cls.name!r} is registered twice")
        self._classes[cls.name] = cls
        return cls

    def __iter__(self) -> Iterator[type[T]]:
        return iter(self._classes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def find(self, name: str | type[T]) -> type[T]:
        """Return the class called `name`, or the user's own: the class, or ``module:Class``.

        Raises
        ------
        UsageError
            The name is unknown (the sentence names the nearest match), or the module or class
            cannot be imported, or the class does not derive from the registry's base, or has no
            name of its own.
        """
        if isinstance(name, type) and issubclass(name, self.base):
            return name
        if not isinstance(name, str):
            raise UsageError(f"A {self.kind} is given by its name or class, not as {name!r}.")
        if ":" in name:
            return self._load(name)
        if name in self._classes:
            return self._classes[name]
        plain, _, setting = name.partition("@")
        if setting and plain in self._classes:
            raise UsageError(
                f"The parameters of a {self.kind} are given apart here: {plain}, and "
                f"--param {plain}.{setting}."
            )
        raise unknown(self.kind, name, self._classes)

    def _load(self, spec: str) -> type[T]:
        module_name, _, class_name = spec.partition(":")
        if module_name.endswith(".py") or "/" in module_name:
            raise UsageError(
                f"The {self.kind} {spec!r} cannot be loaded: a module is named, not its file; in the "
                f"file's folder, write {PurePath(module_name).stem}:{class_name}."
            )
        try:
            module = importlib.import_module(module_name)
        except (ImportError, TypeError, ValueError) as error:  # the latter: no name of a module
            raise UsageError(
                f"The {self.kind} {spec!r} cannot be loaded: {error}; "
                "the module must be importable from the current directory."
            ) from error
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise UsageError(f"The {self.kind} {spec!r} cannot be loaded: {what}.") from error
        cls = getattr(module, class_name, None)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise UsageError(
                f"{spec!r} is not a {self.kind}: {module_name} must hold a class {class_name!r} "
                f"derived from {self.base.__module__}.{self.base.__name__}."
            )
        if missing := getattr(cls, "__abstractmethods__", None):
            raise UsageError(
                f"{spec!r} lacks {', '.join(sorted(missing))}, which every {self.kind} has; write it."
            )
        own_files.add(getattr(module, "__file__", None))
        name = getattr(cls, "name", None)
        if not isinstance(name, str):
            raise UsageError(f"{spec!r} has no name to print; give the class one: name = 'mine'.")
        if self._classes.get(name, cls) is not cls:
            raise UsageError(
                f"{spec!r} is called {name!r}, as one that comes with tracekit; give it a name of "
                "its own."
            )
        return cls

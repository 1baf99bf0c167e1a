"""Policies, predictors and formats by name: a decorator registers a class, a lookup finds it.

In: a name, ``module:Class``, or a class. Out: the class, or a sentence that says what is wrong with it.
This module knows nothing of what the classes do.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from types import MappingProxyType, ModuleType
from typing import ClassVar, Generic, Protocol, TypeGuard, TypeVar

from tracekit.own_modules import import_own
from tracekit.trace.build import on_one_line, shown
from tracekit.trace.errors import UsageError


class Named(Protocol):
    """What is registered has a name."""

    name: ClassVar[str]


T = TypeVar("T", bound=Named)

# The files of the modules that ``module:Class`` named.
_users_files: set[str] = set()


# Classes by what the user calls them, ``module:Class``, where the module itself cannot be imported.
_lent: ContextVar[Mapping[str, type]] = ContextVar("lent", default=MappingProxyType({}))


@contextmanager
def lent(classes: Mapping[str, type]) -> Iterator[None]:
    """Let every registry find these `classes` as ``module:Class``, in this thread, in the block."""
    token = _lent.set(classes)
    try:
        yield
    finally:
        _lent.reset(token)


def is_users_file(file: str) -> bool:
    """Say whether `file` was loaded as ``module:Class``: its errors are for its author to mend."""
    return file in _users_files


def unknown(kind: str, name: str, known: Collection[str]) -> UsageError:
    """Return the error about a name that is not among `known`: it names the nearest match."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
    return UsageError(f"No {kind} is called {shown(name)}; {hint}")


class Registry(Generic[T]):
    """Classes by name, in the order they were registered.

    Parameters
    ----------
    kind : str
        What is registered, in the words of an error message: ``"policy"``, ``"predictor"``.
    base : type
        The class that every entry, and every class named ``module:Class``, derives from.
    """

    def __init__(self, kind: str, base: type):
        self.kind = kind
        self.base = base
        self._classes: dict[str, type[T]] = {}

    def register(self, cls: type[T]) -> type[T]:
        """Class decorator: file `cls` under its ``name``."""
        if cls.name in self._classes:
            raise ValueError(f"{self.kind} {cls.name!r} is registered twice")
        self._classes[cls.name] = cls
        return cls

    def arrange(self, names: Mapping[str, object]) -> None:
        """Put the classes into the order in which `names`, of a module, has the modules that hold them.

        The order of registration is another one where a module was imported before.
        """
        modules = [value.__name__ for value in names.values() if isinstance(value, ModuleType)]
        place = {module: i for i, module in enumerate(modules)}
        ordered = sorted(
            self._classes.items(), key=lambda item: place.get(item[1].__module__, len(place))
        )
        self._classes = dict(ordered)

    def __iter__(self) -> Iterator[type[T]]:
        return iter(self._classes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def find(self, name: str | type[T]) -> type[T]:
        """Return the class called `name`, or the user's own: the class, or ``module:Class``.

        Raises
        ------
        UsageError
            The name is unknown (the sentence names the nearest match). Or the module or class
            cannot be imported, or the class does not derive from the registry's base, is abstract
            or has no name of its own.
        """
        if isinstance(name, str):
            return self._load(name) if ":" in name else self._registered(name)
        if self._is_one(name):
            return name
        raise UsageError(f"A {self.kind} is given by its name or class, not as {shown(name)}.")

    def _is_one(self, cls: object) -> TypeGuard[type[T]]:
        return isinstance(cls, type) and issubclass(cls, self.base)

    def _registered(self, name: str) -> type[T]:
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
        """Return the class that ``module:Class`` names."""
        given = _lent.get().get(spec)
        if self._is_one(given):
            return given
        module_name, _, class_name = spec.partition(":")
        module = self._import(spec, module_name, class_name)
        cls = getattr(module, class_name, None)
        if self._is_one(cls):
            self._check_complete(spec, cls)
            file = getattr(module, "__file__", None)  # a notebook has none
            if file is not None:
                _users_files.add(file)
            return cls
        raise UsageError(
            f"{shown(spec)} is not a {self.kind}: {on_one_line(module_name)} must hold a class {shown(class_name)} "
            f"derived from {self.base.__module__}.{self.base.__name__}."
        )

    def _check_complete(self, spec: str, cls: type[T]) -> None:
        """Check that a user's class can be made, and has a name that no other class has."""
        if missing := getattr(cls, "__abstractmethods__", None):
            raise UsageError(
                f"{shown(spec)} lacks {', '.join(sorted(missing))}, which every {self.kind} has; write it."
            )
        name = getattr(cls, "name", None)
        if not isinstance(name, str):
            raise UsageError(
                f"{shown(spec)} has no name to print; give the class one: name = 'mine'."
            )
        if self._classes.get(name, cls) is not cls:
            raise UsageError(
                f"{shown(spec)} is called {shown(name)}, as one that comes with tracekit; give it a name of "
                "its own."
            )

    def _import(self, spec: str, module_name: str, class_name: str) -> ModuleType:
        fault = f"The {self.kind} {shown(spec)} cannot be loaded"
        if module_name.endswith(".py") or "/" in module_name:
            raise UsageError(
                f"{fault}: a module is named, not its file; in the file's folder, write "
                f"{on_one_line(f'{PurePath(module_name).stem}:{class_name}')}."
            )
        try:
            return import_own(module_name)
        except (ImportError, TypeError, ValueError) as error:  # the latter: no name of a module
            raise UsageError(
                f"{fault}: {on_one_line(str(error))}; the module must be importable from the current "
                "directory."
            ) from error
        except Exception as error:
            reason = on_one_line(f"{type(error).__name__}: {error}")
            raise UsageError(f"{fault}: {reason}.") from error

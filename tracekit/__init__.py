"""Record and replay how a Mixture-of-Experts model routes its tokens.

>>> import tracekit
>>> trace = tracekit.open_trace("run.trace")
>>> tracekit.replay(trace, ["lru", "belady", "bound"], cache_mib=[1000, 3000]).frame

Everything here is imported when it is first used, so that ``import tracekit`` costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit import analysis, plots
    from tracekit.formats import open_any as open_trace
    from tracekit.predictors import predict
    from tracekit.replay import replay
    from tracekit.studies import sweep
    from tracekit.trace import Trace, TracekitError, synthesize

# Public name: where it is defined, and under which name.
_PUBLIC = {
    "Trace": ("tracekit.trace", "Trace"),
    "TracekitError": ("tracekit.trace", "TracekitError"),
    "open_trace": ("tracekit.formats", "open_any"),
    "predict": ("tracekit.predictors", "predict"),
    "replay": ("tracekit.replay", "replay"),
    "sweep": ("tracekit.studies", "sweep"),
    "synthesize": ("tracekit.trace", "synthesize"),
}

# Submodules that are public as a whole.
_MODULES = ("analysis", "plots")

__all__ = [
    "Trace",
    "TracekitError",
    "analysis",
    "open_trace",
    "plots",
    "predict",
    "replay",
    "sweep",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tracekit")
    if name in _MODULES:
        return import_module(f"tracekit.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


class _Package(ModuleType):
    """Keeps ``tracekit.replay`` the function, although the package of its parts has that name.

    Python sets every imported submodule as an attribute of its package; not over a public name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

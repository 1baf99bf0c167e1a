"""Record and replay how a Mixture-of-Experts model routes its tokens.

>>> import tracekit
>>> tracekit.record("model.gguf", "Once upon a time", "run.trace")
>>> trace = tracekit.open_trace("run.trace")
>>> tracekit.replay(trace, ["lru", "belady", "bound"], cache_mib=[1000, 3000]).frame

Everything here is imported when it is first used, so that ``import tracekit`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracekit.display import draw_with

if TYPE_CHECKING:
    from tracekit import analysis, engine, plots, timing
    from tracekit.advice.advise import advise
    from tracekit.engine import Session, record
    from tracekit.exports import export
    from tracekit.formats import from_arrays, open_counts
    from tracekit.formats import open_any as open_trace
    from tracekit.hooks import record_transformers, recording
    from tracekit.replaying import replay
    from tracekit.scoring import predict
    from tracekit.studies import sweep
    from tracekit.timing.comparison import compare
    from tracekit.trace import Trace, TracekitError, synthesize

# Public name: where it is defined, and under which name.
_PUBLIC = {
    "Session": ("tracekit.engine", "Session"),
    "Trace": ("tracekit.trace", "Trace"),
    "TracekitError": ("tracekit.trace", "TracekitError"),
    "advise": ("tracekit.advice.advise", "advise"),
    "compare": ("tracekit.timing.comparison", "compare"),
    "export": ("tracekit.exports", "export"),
    "from_arrays": ("tracekit.formats", "from_arrays"),
    "open_counts": ("tracekit.formats", "open_counts"),
    "open_trace": ("tracekit.formats", "open_any"),
    "predict": ("tracekit.scoring", "predict"),
    "record": ("tracekit.engine", "record"),
    "record_transformers": ("tracekit.hooks", "record_transformers"),
    "recording": ("tracekit.hooks", "recording"),
    "replay": ("tracekit.replaying", "replay"),
    "sweep": ("tracekit.studies", "sweep"),
    "synthesize": ("tracekit.trace", "synthesize"),
}

# A result draws itself with a plot; only this module may know both.
draw_with("ReplayResult", "tracekit.plots.curves", "plot_replay")
draw_with("PredictResult", "tracekit.plots.accuracy", "plot_scores")

# Submodules that are public as a whole.
_MODULES = ("analysis", "engine", "plots", "timing")

__all__ = [
    "Session",
    "Trace",
    "TracekitError",
    "advise",
    "analysis",
    "compare",
    "engine",
    "export",
    "from_arrays",
    "open_counts",
    "open_trace",
    "plots",
    "predict",
    "record",
    "record_transformers",
    "recording",
    "replay",
    "sweep",
    "synthesize",
    "timing",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tracekit.version import version

        return version()
    if name in _MODULES:
        return import_module(f"tracekit.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

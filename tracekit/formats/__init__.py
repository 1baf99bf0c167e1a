"""Which files can be read as a trace? Traces of other tools, one file a format, told apart by content.

To add a format, write a file beside this one with a class derived from `Format` and decorated with
``@register``, and add a line for it to ``all.py``. ``tests/format_samples.py`` needs a small sample of
it; ``tests/test_formats_conformance.py`` then tests it like every other format.

Names are imported when they are first used: most commands open a ``.trace``, which needs no reader of
another format.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.formats.all import FORMATS
    from tracekit.formats.base import read_bytes
    from tracekit.formats.counts.all import COUNTS
    from tracekit.formats.counts.expert_counts import ExpertCounts
    from tracekit.formats.counts.opening import as_trace_or_counts, open_counts
    from tracekit.formats.format import Format, register
    from tracekit.formats.in_memory import from_arrays
    from tracekit.formats.opening import as_trace, import_any, is_read_whole, open_any
    from tracekit.formats.options import ImportOptions, ModelSizes

_MODULES = {
    "COUNTS": "counts.all",
    "FORMATS": "all",
    "ExpertCounts": "counts.expert_counts",
    "Format": "format",
    "ImportOptions": "options",
    "ModelSizes": "options",
    "as_trace": "opening",
    "as_trace_or_counts": "counts.opening",
    "from_arrays": "in_memory",
    "import_any": "opening",
    "is_read_whole": "opening",
    "open_any": "opening",
    "open_counts": "counts.opening",
    "read_bytes": "base",
    "register": "format",
}

__all__ = [
    "COUNTS",
    "FORMATS",
    "ExpertCounts",
    "Format",
    "ImportOptions",
    "ModelSizes",
    "as_trace",
    "as_trace_or_counts",
    "from_arrays",
    "import_any",
    "is_read_whole",
    "open_any",
    "open_counts",
    "read_bytes",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

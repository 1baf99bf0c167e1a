"""Which plot shows a result: results ask here, so that no result imports a plot.

Plots stand above results: they import what results are made of. So a result that draws itself cannot
import its plot. Instead the top of the house, `tracekit` itself, says here by name which function
draws which result. The module of that function is imported when a result is drawn, not before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The name of a result's class: the module and the name of the function that draws it.
_PLOTS: dict[str, tuple[str, str]] = {}


def draw_with(result: str, module: str, function: str) -> None:
    """Say that results of the class called `result` are drawn by `function` of `module`."""
    _PLOTS[result] = module, function


def draw(result: object, **options: Any) -> "Axes":
    """Draw `result` with its plot, which takes the result, ``ax`` and other `options`."""
    module, function = _PLOTS[type(result).__name__]
    axes: Axes = getattr(import_module(module), function)(result, **options)
    return axes

"""Pictures of a trace: one function a plot, a DataFrame of `tracekit.analysis` in, an Axes out.

>>> from tracekit import analysis, plots
>>> ax = plots.plot_popularity(analysis.expert_popularity(trace))
>>> ax.figure.savefig("popularity.png")

Every function takes ``ax`` to draw into a figure of yours, and passes other keywords to the
matplotlib call that draws its data. Without ``ax`` it makes a figure that no window and no global
state knows about; in a notebook, end the cell with ``ax.figure``. `add_caption` writes below it which
model it is of, as ``tracekit plot`` does.
"""

from tracekit.plots.accuracy import plot_horizon, plot_predictability, plot_recall
from tracekit.plots.concentration import plot_concentration
from tracekit.plots.curves import plot_curves
from tracekit.plots.gains import plot_gains
from tracekit.plots.overlap import plot_overlap
from tracekit.plots.popularity import plot_popularity
from tracekit.plots.read_bytes import plot_read_bytes
from tracekit.plots.reuse import plot_reuse
from tracekit.plots.style import add_caption
from tracekit.plots.timeline import plot_timeline
from tracekit.plots.working_set import plot_working_set

__all__ = [
    "add_caption",
    "plot_concentration",
    "plot_curves",
    "plot_gains",
    "plot_horizon",
    "plot_overlap",
    "plot_popularity",
    "plot_predictability",
    "plot_read_bytes",
    "plot_recall",
    "plot_reuse",
    "plot_timeline",
    "plot_working_set",
]

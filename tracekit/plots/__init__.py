"""What does the routing of a trace look like? One file a plot: a DataFrame in, an Axes out.

>>> from tracekit import analysis, plots
>>> ax = plots.plot_popularity(analysis.expert_popularity("run.trace"))
>>> ax.figure.savefig("popularity.png")

Every function takes ``ax`` to draw into a figure of yours, and passes other keywords to the
matplotlib call that draws its data. Without ``ax`` it makes a figure that no window and no global
state knows about; in a notebook, end the cell with ``ax.figure``. `add_caption` writes below it which
model it is of, as ``tracekit plot`` does.

To add a plot, write a file beside these: a function that draws, decorated with
`tracekit.plots.kinds.register`, which says the name of its kind and from which data it draws. Then
import it below, at the place where ``tracekit plot --list`` is to name it.
"""

# isort: off
from tracekit.plots.accuracy import plot_predictability, plot_horizon, plot_recall
from tracekit.plots.history import plot_history
from tracekit.plots.curves import plot_curves
from tracekit.plots.gains import plot_gains
from tracekit.plots.times import plot_time, plot_time_curves
from tracekit.plots.layer_times import plot_layer_times
from tracekit.plots.read_bytes import plot_read_bytes
from tracekit.plots.popularity import plot_popularity, plot_popularity_sorted
from tracekit.plots.reuse import plot_reuse
from tracekit.plots.working_set import plot_working_set
from tracekit.plots.overlap import plot_overlap
from tracekit.plots.closure import plot_closure
from tracekit.plots.compare import plot_comparison
from tracekit.plots.concentration import plot_concentration
from tracekit.plots.pinning import plot_pinning
from tracekit.plots.timeline import plot_timeline
# isort: on

from tracekit.plots.caption import add_caption, caption

__all__ = [
    "add_caption",
    "caption",
    "plot_closure",
    "plot_comparison",
    "plot_concentration",
    "plot_curves",
    "plot_gains",
    "plot_history",
    "plot_horizon",
    "plot_layer_times",
    "plot_overlap",
    "plot_pinning",
    "plot_popularity",
    "plot_popularity_sorted",
    "plot_predictability",
    "plot_read_bytes",
    "plot_recall",
    "plot_reuse",
    "plot_time",
    "plot_time_curves",
    "plot_timeline",
    "plot_working_set",
]

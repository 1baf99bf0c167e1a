"""How long does a token take? A fit of recorded times, and what it says of another cache or policy."""

from tracekit.timing.fitting import Fit, fit
from tracekit.timing.prediction import Prediction

__all__ = ["Fit", "Prediction", "fit"]

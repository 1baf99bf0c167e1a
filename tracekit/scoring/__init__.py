"""How often does a predictor name what the model selects? The same scorer for all of them."""

from tracekit.scoring.predict import predict
from tracekit.scoring.result import PredictResult

__all__ = ["PredictResult", "predict"]

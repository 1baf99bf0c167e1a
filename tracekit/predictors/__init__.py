"""Predictors of expert routing: one file a predictor, found through a registry."""

from tracekit.predictors.base import (
    PREDICTORS,
    LearnedPredictor,
    Predictor,
    register,
)
from tracekit.predictors.combined import Combined
from tracekit.predictors.ctrl import Control
from tracekit.predictors.embedding_gate import EmbeddingGate
from tracekit.predictors.layer_lag import LayerLag
from tracekit.predictors.oracle import Oracle
from tracekit.predictors.prev_token import PrevToken
from tracekit.predictors.random_guess import RandomGuess
from tracekit.predictors.stale_gate import StaleGate
from tracekit.predictors.stale_gate_fit import StaleGateFit
from tracekit.predictors.stale_gate_renorm import StaleGateRenorm
from tracekit.predictors.static_hot import StaticHot
from tracekit.predictors.static_hot_insample import StaticHotInSample
from tracekit.predictors.token_table import TokenTable

__all__ = [
    "PREDICTORS",
    "Combined",
    "Control",
    "EmbeddingGate",
    "LayerLag",
    "LearnedPredictor",
    "Oracle",
    "Predictor",
    "PrevToken",
    "RandomGuess",
    "StaleGate",
    "StaleGateFit",
    "StaleGateRenorm",
    "StaticHot",
    "StaticHotInSample",
    "TokenTable",
    "register",
]

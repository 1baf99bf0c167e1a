"""Which experts will a layer select? One file a predictor, found through a registry.

Predictors stand in the registry, and in every default table, in the order in which this file
imports them; a predictor may import one that stands above it.
"""

# isort: off
from tracekit.predictors.base import (
    PREDICTORS,
    TOKEN,
    Horizon,
    LearnedPredictor,
    Predictor,
    register,
)
from tracekit.predictors.online import (
    OnlinePredictor,
    PassByPassPredictor,
    PlainOnlinePredictor,
)

from tracekit.predictors.stale_gate import StaleGate
from tracekit.predictors.prev_token import PrevToken
from tracekit.predictors.ctrl import Control
from tracekit.predictors.static_hot import StaticHot
from tracekit.predictors.layer_lag import LayerLag
from tracekit.predictors.random_guess import RandomGuess
from tracekit.predictors.stale_gate_renorm import StaleGateRenorm
from tracekit.predictors.stale_gate_fit import StaleGateFit
from tracekit.predictors.embedding_gate import EmbeddingGate
from tracekit.predictors.token_table import TokenTable
from tracekit.predictors.layer_table import LayerTable
from tracekit.predictors.recall import Recall
from tracekit.predictors.recall_gate import RecallGate
from tracekit.predictors.combined import Combined
from tracekit.predictors.oracle import Oracle
from tracekit.predictors.static_hot_insample import StaticHotInSample
# isort: on

__all__ = [
    "PREDICTORS",
    "TOKEN",
    "Combined",
    "Control",
    "EmbeddingGate",
    "Horizon",
    "LayerLag",
    "LayerTable",
    "LearnedPredictor",
    "OnlinePredictor",
    "Oracle",
    "PassByPassPredictor",
    "PlainOnlinePredictor",
    "Predictor",
    "PrevToken",
    "RandomGuess",
    "Recall",
    "RecallGate",
    "StaleGate",
    "StaleGateFit",
    "StaleGateRenorm",
    "StaticHot",
    "StaticHotInSample",
    "TokenTable",
    "register",
]

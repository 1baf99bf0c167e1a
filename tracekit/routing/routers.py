"""The routers of a model, as a trace carries them."""

from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracekit.routing.selection import SelectionRule
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import DECODE

if TYPE_CHECKING:
    from tracekit.trace import Trace


def rounded_routers(trace: "Trace") -> dict[int, str]:
    """Return the type of each router that is not stored as F32, by the model's number of the layer.

    llama.cpp rounds the gate input for the product with such a matrix, torch the gate input and the
    logits. A recording notes the types; other traces say nothing of them.
    """
    noted = trace.facts.notes.get("router_types")
    types = noted.items() if isinstance(noted, dict) else ()
    return {
        layer: name
        for name, layers in types
        if name != "F32" and isinstance(layers, list)
        for layer in layers
        if isinstance(layer, int)
    }


class Routers:
    """The router of each MoE layer, as far as the trace has it; a layer is an index among those.

    A layer without a router matrix selects by something other than logits: the first layers of
    DeepSeek-V4 take the experts of a token from a table by its id.

    Attributes
    ----------
    layer_ids : int16 [L]
        The model's own numbers of the MoE layers.
    n_layers, n_expert, top_k : int
    rule : SelectionRule
    norm_eps : float
        Epsilon of the RMS norm before routing.
    """

    def __init__(self, trace: "Trace"):
        model = trace.facts.model
        self.layer_ids = trace.moe_layers
        self.n_layers = len(self.layer_ids)
        self.n_expert = trace.n_expert
        self.top_k = trace.top_k
        self.rule = SelectionRule(model.gating, model.n_group, model.n_group_used)
        self.norm_eps = model.norm_eps if model.norm_eps is not None else 1e-6
        self._trace = trace
        # A cache of this object's own, so that the arrays are released with it.
        self._array = cache(self._read)

    def has(self, name: str) -> bool:
        """Say whether every layer that selects by logits has the array `name`, and there is one."""
        layers = [layer for layer in range(self.n_layers) if self.knows(layer, "router_matrix")]
        return bool(layers) and all(self.knows(layer, name) for layer in layers)

    def knows(self, layer: int, name: str) -> bool:
        """Say whether a layer has `name`: an array of layers.parquet, or ``gate_input``."""
        if name == "gate_input":
            return layer not in self._without_gate_input
        return self._array(layer, name) is not None

    @cached_property
    def _without_gate_input(self) -> set[int]:
        """Layers without a router have no gate input: all of their rows are null."""
        unrouted = [at for at in range(self.n_layers) if not self.knows(at, "router_matrix")]
        if not unrouted or not self._trace.has("gate_input"):
            return set()
        for rows in self._trace.iter_routing(["layer", "gate_input"], phase=DECODE):
            is_null = np.isnan(rows["gate_input"]).all(axis=1)
            return {at for at in unrouted if is_null[rows["layer"] == self.layer_ids[at]].all()}
        return set()

    def matrix(self, layer: int) -> np.ndarray:
        """Return the router matrix of a layer, float32 [n_expert, n_embd]."""
        return self._needed(layer, "router_matrix")

    def norm_weight(self, layer: int) -> np.ndarray:
        """Return the weight of the norm before routing, float32 [n_embd]."""
        return self._needed(layer, "norm_weight")

    def logits(self, layer: int, gate_input: np.ndarray) -> np.ndarray:
        """Return the router logits of `layer` for gate inputs [T, n_embd], float32 [T, n_expert]."""
        product: np.ndarray = gate_input @ self.matrix(layer).T
        bias = self._array(layer, "router_bias")
        return product if bias is None else product + bias

    def selection_scores(self, layer: int, logits: np.ndarray) -> np.ndarray:
        """Return the scores that the model's own rule ranks, from router logits [T, n_expert]."""
        return self.rule.scores(logits, self._array(layer, "selection_bias"))

    def _needed(self, layer: int, name: str) -> np.ndarray:
        value = self._array(layer, name)
        if value is None:
            raise TraceError(
                f"Layer {self.layer_ids[layer]} of {self._trace.name} has no {name}; "
                "`tracekit record` writes it for every MoE layer."
            )
        return value

    def _read(self, layer: int, name: str) -> np.ndarray | None:
        return self._trace.layer_array(int(self.layer_ids[layer]), name)

"""How large a trace is, and its model: what the facts, the passes, the steps and the layers say of it.

In: the facts and the tables of an open trace. Out: numbers, and arrays with one value a layer or a step.
"""

from functools import cached_property

import numpy as np

from tracekit.trace.facts import TraceFacts
from tracekit.trace.layers import LayerTable
from tracekit.trace.pass_table import PassTable
from tracekit.trace.routings import RoutingTable
from tracekit.trace.steps import StepTable


class Sizes:
    """The part of a `Trace` that reads no rows but through its tables."""

    facts: TraceFacts
    _routing: RoutingTable
    _step_table: StepTable
    _layer_table: LayerTable

    @property
    def n_rows(self) -> int:
        """How many routings the trace has."""
        return self._routing.columns.rows.n_rows

    @property
    def n_steps(self) -> int:
        """How many (pass, step) the trace has."""
        return self._step_table.columns.rows.n_rows

    @property
    def n_layer(self) -> int:
        """Layers of the model, dense ones too."""
        return self.facts.model.n_layer

    @property
    def n_expert(self) -> int:
        """Experts of one MoE layer."""
        return self.facts.model.n_expert

    @property
    def top_k(self) -> int:
        """Experts of one routing."""
        return self.facts.model.top_k

    @property
    def complete(self) -> bool:
        """Whether the recording came to its end; False if it was cut short."""
        return self.facts.complete

    @property
    def passes(self) -> PassTable:
        """The passes that have routings: where each begins, its turn, phase and steps."""
        return self._routing.passes

    @property
    def n_turns(self) -> int:
        """How many turns have a routing."""
        return len(np.unique(self.passes.turn))

    @property
    def n_decoded(self) -> int:
        """How many tokens were decoded and stayed; drafted ones that were rejected do not count."""
        return self._step_table.n_decoded

    @property
    def most_decoded_at_once(self) -> int:
        """The most tokens of one decode pass: more than 1 where drafted tokens were verified."""
        return self._step_table.most_decoded_at_once

    @property
    def kept(self) -> np.ndarray:
        """Which steps stayed, bool [n_steps], in the order of `steps`; see `StepTable.kept`."""
        return self._step_table.kept

    @property
    def budget_bytes(self) -> int | None:
        """The cache budget the engine ran with; None where the trace does not say."""
        return self.facts.engine.cache_bytes if self.facts.engine else None

    @cached_property
    def moe_layers(self) -> np.ndarray:
        """Model numbers of the layers that routed, ascending, int16 [L].

        A layer with experts that never ran (a draft head) is not among them: no token touches it.
        In a trace without a single routing, they are the layers that have an expert size.
        """
        return self._layer_table.routed(self.passes.layers)

    @property
    def layer_columns(self) -> dict[str, np.ndarray]:
        """The scalar columns of the layers: `layer`, `expert_bytes`, `dense_bytes` (-1: null)."""
        return self._layer_table.scalars

    @property
    def expert_bytes(self) -> np.ndarray:
        """Bytes of one expert of each of `moe_layers`, int64 [L].

        Raises
        ------
        TraceError
            The size of a layer's experts is not known. Taken as 0, that layer would always hit.
        """
        return self._layer_table.expert_bytes(self.moe_layers)

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers; errors are those of `expert_bytes`."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes that one token touches over all layers; errors are those of `expert_bytes`."""
        return int(self.expert_bytes.sum()) * self.top_k

    def layer_array(self, layer: int, name: str) -> np.ndarray | None:
        """Return an array of a layer, None where the trace does not have it.

        Parameters
        ----------
        layer : int
            The model's own number of the layer.
        name : {"router_matrix", "router_bias", "selection_bias", "norm_weight"}

        Returns
        -------
        float32 array or None
            [n_expert, n_embd] of the router matrix, [n_embd] of the norm weight, [n_expert] else.

        Raises
        ------
        TraceError
            The array has another number of values than the model's facts ask for, or one that is
            not finite.
        """
        return self._layer_table.array(layer, name)

"""The callback llama.cpp calls for every node of a graph: it watches the router while it works.

llama.cpp asks for each node in turn whether its data is wanted; "yes" makes it compute up to that
node and call again. Each question costs a Python call, so an answer is one dictionary lookup;
each "yes" isolates a node, so there are two in a MoE layer and one for the embeddings.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine import binding
from engine.ggml import NAME_OFFSET, Tensor
from engine.graph import MoeLayer, Plan


@dataclass(frozen=True)
class Capture:
    """What to copy out of every pass besides the selected experts and their weights."""

    logits: bool = True
    gate_inputs: bool = True
    embeddings: bool = True


@dataclass
class LayerCapture:
    """What one layer did in one pass, token-major; an array is None where it was not wanted.

    Attributes
    ----------
    experts, weights : ndarray, uint16 and float32 [n_tokens, top_k]
    residency : ndarray or None, uint8 [n_tokens, top_k]
    logits : ndarray or None, float32 [n_tokens, n_expert]
    gate_input : ndarray or None, float32 [n_tokens, n_embd]
    """

    layer: MoeLayer
    experts: np.ndarray | None = None
    weights: np.ndarray | None = None
    residency: np.ndarray | None = None
    logits: np.ndarray | None = None
    gate_input: np.ndarray | None = None


@dataclass
class PassCapture:
    """What the hook saw in one pass: layers in the order they ran, embeddings [n_tokens, n_embd]."""

    layers: list[LayerCapture] = field(default_factory=list)
    embedding: np.ndarray | None = None


OnSelection = Callable[[MoeLayer, np.ndarray], np.ndarray | None]


class Hook:
    """Owns the C callback of a context; what it does with a node changes over a session's life.

    Parameters
    ----------
    capture : Capture
    on_selection : callable
        Called as ``on_selection(layer, experts)`` when a layer has selected and its experts have
        not run; returns the residency of each selected expert, or None.
    """

    def __init__(self, capture: Capture):
        self.capture = capture
        self.on_selection: OnSelection | None = None
        self.callback = binding.load().ggml_backend_sched_eval_callback(self._call)
        self._act: Callable[[int, bool], bool] = self._ignore
        self._error: BaseException | None = None
        self._nodes: list[int] = []
        self._wanted: dict[bytes, Callable[[int, bool], bool]] = {}
        self._pass = PassCapture()

    def collect_nodes(self) -> list[int]:
        """From now on note the address of every node; the list returned fills while a pass runs."""
        self._nodes = []
        self._act = self._collect
        return self._nodes

    def pause(self) -> None:
        """From now on let every node pass unseen."""
        self._act = self._ignore

    def follow(self, plan: Plan) -> None:
        """From now on copy what `capture` wants of the plan's layers."""
        self._wanted = {}
        for layer in plan.layers:
            watch = _LayerWatch(self, layer)
            if self.capture.logits or self.capture.gate_inputs:
                self._wanted[layer.router_node] = watch.router
            self._wanted[layer.ids_node] = watch.ids
            self._wanted[layer.weights_node] = watch.weights
        if self.capture.embeddings and plan.embedding_node is not None:
            self._wanted[plan.embedding_node] = self._embedding
        self._act = self._dispatch

    def take(self) -> PassCapture:
        """Return what was captured since the last call, or raise what went wrong in the callback."""
        captured, self._pass = self._pass, PassCapture()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return captured

    @property
    def current(self) -> PassCapture:
        """The pass being captured."""
        return self._pass

    def _call(self, node: int, ask: bool, _data: object) -> bool:
        # An exception must not cross C: it is kept, the rest of the pass runs unwatched.
        if self._error is not None:
            return False
        try:
            return self._act(node, ask)
        except BaseException as error:
            self._error = error
            return False

    def _ignore(self, _node: int, _ask: bool) -> bool:
        return False

    def _collect(self, node: int, ask: bool) -> bool:
        if ask:
            self._nodes.append(node)
        return False

    def _dispatch(self, node: int, ask: bool) -> bool:
        wanted = self._wanted.get(ctypes.string_at(node + NAME_OFFSET))
        return wanted is not None and wanted(node, ask)

    def _embedding(self, node: int, ask: bool) -> bool:
        if not ask:
            tensor = Tensor.from_address(node)
            self._pass.embedding = tensor.array().reshape(-1, tensor.ne[0])
        return True


class _LayerWatch:
    """The hook's answers for the nodes of one layer.

    A layer that runs a second set of experts by the same ids (GroveMoE) names its nodes twice;
    the first of a name counts.
    """

    def __init__(self, hook: Hook, layer: MoeLayer):
        self.hook = hook
        self.layer = layer
        self._ids = 0
        self._seen = LayerCapture(layer)
        self._done_in: PassCapture | None = None

    def router(self, node: int, ask: bool) -> bool:
        if self._done_in is self.hook.current:
            return False
        if not ask:
            product = Tensor.from_address(node)
            if self.hook.capture.logits:
                logits = product.array().reshape(-1, self.layer.n_expert)
                if self.layer.router_bias is not None:
                    logits = logits + self.layer.router_bias
                self._seen.logits = logits
            if self.hook.capture.gate_inputs:
                gate_input = product.source(1)
                self._seen.gate_input = gate_input.array().reshape(-1, gate_input.ne[0])
        return True

    def ids(self, node: int, _ask: bool) -> bool:
        if self._done_in is not self.hook.current:
            self._ids = node  # computed by the time the weights are
        return False

    def weights(self, node: int, ask: bool) -> bool:
        if self._done_in is self.hook.current:
            return False
        if not ask:
            seen, self._seen = self._seen, LayerCapture(self.layer)
            width = self.layer.top_k
            seen.weights = Tensor.from_address(node).array().reshape(-1, width)
            experts = Tensor.from_address(self._ids).array().reshape(-1, width)
            seen.experts = experts.astype(np.uint16)
            if self.hook.on_selection is not None:
                seen.residency = self.hook.on_selection(self.layer, experts)
            self._done_in = self.hook.current
            self._done_in.layers.append(seen)
        return True

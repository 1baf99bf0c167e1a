"""The callback that llama.cpp calls for every node of a graph: it watches the router at work.

llama.cpp asks for each node in turn whether its data is wanted. After a "yes" it computes up to that
node and calls again. Each question costs a Python call, so an answer is one dictionary lookup. Each
"yes" splits the graph there, so there are two in a MoE layer and one for the embeddings.
"""

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracekit.trace.errors import UsageError
from tracekit_engine import binding
from tracekit_engine.ggml import NAME_OFFSET, Tensor
from tracekit_engine.graph import MoeLayer, Plan
from tracekit_engine.interrupts import CtrlC

_DTYPES = {"f32": np.float32, "f16": np.float16}


@dataclass(frozen=True)
class Capture:
    """What to copy out of every pass besides the selected experts and their weights.

    Attributes
    ----------
    logits, gate_inputs, embeddings : bool
    gate_dtype : {"f32", "f16"}
        Precision of the gate inputs in the trace.
    """

    logits: bool = True
    gate_inputs: bool = True
    embeddings: bool = True
    gate_dtype: str = "f32"

    def __post_init__(self) -> None:
        if self.gate_dtype not in _DTYPES:
            raise UsageError(f"--gate-dtype takes f32 or f16, not {self.gate_dtype!r}.")

    def row_bytes(self, n_expert: int, n_embd: int) -> int:
        """Return the bytes that are copied of one token at one layer."""
        gate_bytes = np.dtype(_DTYPES[self.gate_dtype]).itemsize * n_embd
        return self.logits * 4 * n_expert + self.gate_inputs * gate_bytes


class PassCapture:
    """What the hook copied in one pass: a row for each layer and token, in the order they ran.

    Attributes
    ----------
    layers : list of (int, int)
        Each layer with its number of rows.
    experts : ndarray, uint16 [n_rows, top_k]
    weights : ndarray, float32 [n_rows, top_k]
    residency : ndarray, uint8 [n_rows, top_k], or None if experts are not streamed
    logits : ndarray, float32 [n_rows, n_expert], or None
        NaN in the rows of a layer where the token's id selects the experts.
    gate_input : ndarray, float32 or float16 [n_rows, n_embd], or None
        NaN in the rows of a layer without a router.
    embedding : ndarray, float32 [n_tokens, n_embd], or None
    """

    def __init__(self, plan: Plan, capture: Capture, n_tokens: int, streamed: bool):
        n_rows = n_tokens * len(plan.layers)
        gate_dtype = _DTYPES[capture.gate_dtype]
        self.layers: list[tuple[int, int]] = []
        self.experts = np.empty((n_rows, plan.top_k), np.uint16)
        self.weights = np.empty((n_rows, plan.top_k), np.float32)
        self.residency = np.empty((n_rows, plan.top_k), np.uint8) if streamed else None
        self.logits: np.ndarray | None = None
        self.gate_input: np.ndarray | None = None
        if capture.logits:
            self.logits = np.empty((n_rows, plan.n_expert), np.float32)
        if capture.gate_inputs:
            self.gate_input = np.empty((n_rows, plan.n_embd), gate_dtype)
        self.embedding: np.ndarray | None = None
        self._selected: list[float] = []  # when each layer had selected its experts, in seconds
        self._ready: list[float] = []  # when they were in memory
        self._ended = 0.0
        self.n_rows = 0

    def end_layer(self, layer: int, count: int, selected: float, ready: float) -> None:
        """Note that all of a layer's `count` rows are there.

        Parameters
        ----------
        selected, ready : float
            When it had selected its experts, and when these were in memory.
        """
        self.layers.append((layer, count))
        self.n_rows += count
        self._selected.append(selected)
        self._ready.append(ready)

    @property
    def wait_ms(self) -> np.ndarray:
        """For how long each layer waited until its experts were in memory, [layers]."""
        return 1e3 * (np.array(self._ready) - self._selected)

    @property
    def compute_ms(self) -> np.ndarray:
        """The time from then until the next layer had selected, or the pass ended, [layers]."""
        return 1e3 * (np.array([*self._selected[1:], self._ended]) - self._ready)

    def end(self) -> None:
        """Note the time, and drop the rows of tokens that a layer did not run."""
        self._ended = time.perf_counter()
        for name in ("experts", "weights", "residency", "logits", "gate_input"):
            rows = getattr(self, name)
            if rows is not None:
                setattr(self, name, rows[: self.n_rows])


OnSelection = Callable[[int, np.ndarray], np.ndarray]


class Hook:
    """Owns the C callback of a context; what it does with a node changes over a session's life.

    Parameters
    ----------
    capture : Capture

    Attributes
    ----------
    ctrl_c : CtrlC
        Says when Ctrl-C is to end the pass.
    on_selection : callable or None
        Called as ``on_selection(layer, experts)`` when a layer has selected its experts and they
        have not run yet; returns the residency of each selected expert.
    """

    def __init__(self, capture: Capture):
        self.capture = capture
        self.on_selection: OnSelection | None = None
        self.callback = binding.load().ggml_backend_sched_eval_callback(self._call)
        self.ctrl_c = CtrlC()
        self._current: PassCapture | None = None
        self._act: Callable[[int, bool], bool] = self._ignore
        self._error: BaseException | None = None
        self._nodes: list[int] = []
        self._wanted: dict[bytes, Callable[[int, bool], bool]] = {}

    @property
    def current(self) -> PassCapture:
        """What was copied of the pass that runs."""
        if self._current is None:
            raise RuntimeError("no pass runs: call begin first")
        return self._current

    def collect_nodes(self) -> list[int]:
        """From now on note the address of every node; the list returned fills while a pass runs."""
        self._nodes = []
        self._act = self._collect
        return self._nodes

    def follow(self, plan: Plan) -> None:
        """From now on copy what `capture` wants of the plan's layers."""
        self._plan = plan
        self._wanted = {}
        for layer in plan.layers:
            watch = _LayerWatch(self, layer)
            if layer.router_node is not None and (self.capture.logits or self.capture.gate_inputs):
                self._wanted[layer.router_node] = watch.router
            self._wanted[layer.ids_node] = watch.ids
            self._wanted[layer.weights_node] = watch.weights
        if self.capture.embeddings and plan.embedding_node is not None:
            self._wanted[plan.embedding_node] = self._embedding
        self._act = self._dispatch

    def begin(self, n_tokens: int) -> None:
        """Make room for a pass of `n_tokens` tokens."""
        streamed = self.on_selection is not None
        self._current = PassCapture(self._plan, self.capture, n_tokens, streamed)

    def end(self) -> PassCapture:
        """Return what was copied since `begin`."""
        captured, self._current = self.current, None
        captured.end()
        return captured

    def reraise(self) -> None:
        """Raise the exception that the callback met, if it met one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _call(self, node: int, ask: bool, _data: object) -> bool:
        # An exception must not cross C, so it is stored. The pass ends where a node is wanted and
        # no node after it is.
        try:
            if self._error is None and not self.ctrl_c.must_stop:
                return self._act(node, ask)
            self._error = self._error or KeyboardInterrupt()
        except BaseException as error:
            self._error = error
        return ask

    def _ignore(self, _node: int, _ask: bool) -> bool:
        return False

    def _collect(self, node: int, ask: bool) -> bool:
        if ask:
            self._nodes.append(node)
        return False

    def _dispatch(self, node: int, ask: bool) -> bool:
        act = self._wanted.get(ctypes.string_at(node + NAME_OFFSET))
        return act is not None and act(node, ask)

    def _embedding(self, node: int, ask: bool) -> bool:
        if not ask:
            tensor = Tensor.from_address(node)
            self.current.embedding = tensor.array().reshape(-1, tensor.ne[0])
        return True


class _LayerWatch:
    """The hook's answers for the nodes of one layer.

    A layer that runs a second set of experts by the same ids (GroveMoE) has two nodes of each name;
    the first of them counts.
    """

    def __init__(self, hook: Hook, layer: MoeLayer):
        self.hook = hook
        self.layer = layer
        self._ids = 0
        self._done_in: PassCapture | None = None

    def router(self, node: int, ask: bool) -> bool:
        current = self.hook.current
        if self._done_in is current:
            return False
        if not ask:
            product = Tensor.from_address(node)
            rows = slice(current.n_rows, current.n_rows + math.prod(product.ne[1:]))
            if current.logits is not None and self.layer.selects_by_logits:
                current.logits[rows] = product.rows()
                if self.layer.router_bias is not None:
                    current.logits[rows] += self.layer.router_bias
            if current.gate_input is not None:
                current.gate_input[rows] = product.source(1).rows()
        return True

    def ids(self, node: int, _ask: bool) -> bool:
        if self._done_in is not self.hook.current:
            self._ids = node  # its data is there once the weights are computed
        return False

    def weights(self, node: int, ask: bool) -> bool:
        current = self.hook.current
        if self._done_in is current:
            return False
        if not ask:
            layer = self.layer.layer
            experts = Tensor.from_address(self._ids).rows()
            rows = slice(current.n_rows, current.n_rows + len(experts))
            current.experts[rows] = experts
            current.weights[rows] = Tensor.from_address(node).array().reshape(experts.shape)
            if current.logits is not None and not self.layer.selects_by_logits:
                current.logits[rows] = np.nan
            if current.gate_input is not None and self.layer.router_node is None:
                current.gate_input[rows] = np.nan
            selected = ready = time.perf_counter()
            if current.residency is not None and self.hook.on_selection is not None:
                current.residency[rows] = self.hook.on_selection(layer, experts)
                ready = time.perf_counter()
            current.end_layer(layer, len(experts), selected, ready)
            self._done_in = current
        return True

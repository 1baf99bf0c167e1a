"""What a model's compute graph says of its MoE layers, read from the graph of one token.

Nothing here knows an architecture. A MoE layer is a layer with expert products (``MUL_MAT_ID``).
Their ids come from a top-k, and the operations between the router's product and the top-k are the
model's rule of selection. Or they come from a table by token id, as in the first layers of
DeepSeek-V4. Nodes are found by what they compute and remembered by their names, which stay the same
in every graph of the model.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracekit.trace.errors import TracekitError
from tracekit_engine.ggml import Tensor, check_layout

_VIEWS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "CONT")
_WEIGHT_STAGES = ("ffn_moe_weights", "_softmax", "_norm", "_scaled")
_EMBEDDING_WEIGHT = "token_embd.weight"
_UNNAMED = "node_"
_TOKENS = "inp_tokens"


@dataclass(frozen=True)
class MoeLayer:
    """How one layer routes.

    Attributes
    ----------
    experts : tuple of str
        Names of the stacked expert weights, [n_expert, …]; a routing reads its experts' slices.
    router_node : bytes or None
        The router's product: its operand 1 is the gate input. None if the layer has no router.
    ids_node, weights_node : bytes
        The selected ids; the applied weights, computed before any expert runs.
    n_embd : int
        Width of the gate input, or of the experts' input in a layer without a router.
    gating : str or None
        What selection ranks by: ``softmax``, ``sigmoid``, ``sqrt-softplus`` or ``logits``. None if
        the token's id selects the experts; a router then only weights them.
    router_matrix : ndarray or None, float32 [n_expert, n_embd]
        None if the token's id selects.
    router_type : str or None
        How the router's matrix is stored: ``"F32"``. llama.cpp rounds the gate input for the product
        with any other type: to 8 bits for ``"Q8_0"``.
    router_bias, selection_bias : ndarray or None, float32 [n_expert]
        Added to the logits; added to the scores after gating.
    norm_weight : ndarray or None, float32 [n_embd]
    norm_eps : float or None
        ``gate_input = rms_norm(x, norm_eps) * norm_weight``; None if the gate input is no such
        product.
    """

    layer: int
    top_k: int
    n_expert: int
    n_embd: int
    experts: tuple[str, ...]
    router_node: bytes | None
    ids_node: bytes
    weights_node: bytes
    gating: str | None
    router_matrix: np.ndarray | None
    router_type: str | None
    router_bias: np.ndarray | None
    selection_bias: np.ndarray | None
    norm_weight: np.ndarray | None
    norm_eps: float | None

    @property
    def selects_by_logits(self) -> bool:
        """Whether the router's logits select the experts, and not the token's id."""
        return self.router_matrix is not None


@dataclass(frozen=True)
class Plan:
    """What to watch in every pass: the MoE layers in order, and where the weights are.

    Attributes
    ----------
    layers : tuple of MoeLayer
    weights : dict of str to int
        Address of the data of each weight that the graph uses.
    embedding_node : bytes or None
        Name of the node with the tokens' embeddings, as they enter the first layer or scaled; None
        if there is none.
    """

    layers: tuple[MoeLayer, ...]
    weights: dict[str, int]
    embedding_node: bytes | None

    @property
    def n_expert(self) -> int:
        """Experts of one layer."""
        return self.layers[0].n_expert

    @property
    def top_k(self) -> int:
        """Experts that a token selects in one layer."""
        return self.layers[0].top_k

    @property
    def n_embd(self) -> int:
        """Width of a gate input."""
        return self.layers[0].n_embd

    @property
    def typical(self) -> MoeLayer:
        """The first layer that selects by logits, else the first one."""
        return next((each for each in self.layers if each.selects_by_logits), self.layers[0])


def read_plan(nodes: list[int]) -> Plan:
    """Find the MoE layers among a graph's nodes.

    Parameters
    ----------
    nodes : list of int
        Addresses of the nodes, in the order in which they are computed.

    Raises
    ------
    TracekitError
        No layer selects experts, or a layer selects them in a way that cannot be followed.
    """
    graph = [Tensor.from_address(address) for address in nodes]
    for node in graph[:8]:
        check_layout(node)
    weights = {
        leaf.name_text: leaf.data
        for node in graph
        for leaf in node.sources()
        if leaf.op_name == "NONE"
    }
    order: dict[str, int] = {}
    for index, node in enumerate(graph):
        order.setdefault(node.name_text, index)
    products: dict[int, list[Tensor]] = {}
    for node in graph:
        layer = _layer_of_product(node)
        if layer is not None:
            products.setdefault(layer, []).append(node)
    layers = tuple(_read_layer(layer, products[layer], graph, order) for layer in sorted(products))
    if not layers:
        raise TracekitError("no layer of the model selects experts")
    _check_alike(layers)
    return Plan(layers, weights, _embedding_node(graph))


def _check_alike(layers: tuple[MoeLayer, ...]) -> None:
    first = layers[0]
    for layer in layers:
        for name in ("n_expert", "top_k", "n_embd"):
            if getattr(layer, name) != getattr(first, name):
                raise TracekitError(
                    f"layers {first.layer} and {layer.layer} differ in {name}: "
                    f"{getattr(first, name)} and {getattr(layer, name)}; a trace has one number "
                    "for all layers"
                )


def _embedding_node(graph: list[Tensor]) -> bytes | None:
    for node in graph:
        if not node.name_text.startswith(_UNNAMED):
            rows = node
            while rows.op_name in (*_VIEWS, "SCALE"):
                rows = rows.source(0)
            if rows.op_name == "GET_ROWS" and rows.source(0).name_text == _EMBEDDING_WEIGHT:
                return node.name_bytes
    return None


def _through_views(tensor: Tensor) -> Tensor:
    while tensor.op_name in _VIEWS:
        tensor = tensor.source(0)
    return tensor


def _layer_of_product(node: Tensor) -> int | None:
    """Return the layer of a product with stacked experts of a layer, else None."""
    if node.op_name != "MUL_MAT_ID":
        return None
    match = re.match(r"blk\.(\d+)\.", _stack_name(node))
    return int(match[1]) if match else None


def _stack_name(product: Tensor) -> str:
    return _through_views(product.source(0)).name_text


def _is_ranking(ids: Tensor) -> bool:
    return _through_views(ids).op_name in ("ARGSORT", "TOP_K")


def _is_table_by_token(ids: Tensor) -> bool:
    rows = _through_views(ids)
    return (
        rows.op_name == "GET_ROWS"
        and rows.source(0).op_name == "NONE"
        and rows.source(1).name_text == _TOKENS
    )


def _read_layer(
    number: int, products: list[Tensor], graph: list[Tensor], order: dict[str, int]
) -> MoeLayer:
    by_logits = [each for each in products if _is_ranking(each.source(2))]
    followed = by_logits or [each for each in products if _is_table_by_token(each.source(2))]
    if not followed:
        operation = _through_views(products[0].source(2)).op_name
        raise TracekitError(
            f"layer {number} selects experts neither by a router nor by the token's id, but by "
            f"{operation}"
        )
    ids = followed[0].source(2)
    weights_node = _last_weights(number, order)
    if weights_node is None or order[weights_node] > min(order[p.name_text] for p in followed):
        raise TracekitError(f"layer {number} runs its experts before their weights are known")
    n_expert = _through_views(followed[0].source(0)).ne[2]
    if by_logits:
        rule = _rule_by_logits(number, _through_views(ids).source(0), n_expert)
    else:  # a router may still weight what the token's id selects
        path = _path_to_router(graph[order[weights_node]], n_expert)
        rule = _Rule(path[-1] if path else None)
    _check_biases(number, rule, n_expert, ids.ne[0])
    gate_input = followed[0].source(1) if rule.router is None else rule.router.source(1)
    norm_weight, norm_eps = _norm_before(gate_input)
    return MoeLayer(
        layer=number,
        top_k=ids.ne[0],
        n_expert=n_expert,
        n_embd=gate_input.ne[0],
        experts=tuple(map(_stack_name, followed)),
        router_node=None if rule.router is None else rule.router.name_bytes,
        ids_node=ids.name_bytes,
        weights_node=weights_node.encode(),
        gating=rule.gating,
        router_matrix=rule.matrix,
        router_type=None if rule.router is None else rule.router.source(0).type_name,
        router_bias=rule.router_bias,
        selection_bias=rule.selection_bias,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
    )


class _Rule(NamedTuple):
    """How a layer selects; see `MoeLayer`."""

    router: Tensor | None
    gating: str | None = None
    matrix: np.ndarray | None = None
    router_bias: np.ndarray | None = None
    selection_bias: np.ndarray | None = None


def _check_biases(layer: int, rule: _Rule, n_expert: int, top_k: int) -> None:
    """Refuse a bias that is no number; one of -inf masks an expert, which is never selected."""
    masked = np.zeros(n_expert, bool)
    for name, bias in (("router", rule.router_bias), ("selection", rule.selection_bias)):
        if bias is None:
            continue
        wrong = bias[~(bias < np.inf)]  # nan is not less, either
        if len(wrong):
            raise TracekitError(
                f"a {name} bias of layer {layer} is {wrong[0]}; its file is damaged"
            )
        masked |= bias == -np.inf
    left = n_expert - int(masked.sum())
    if left < top_k:
        raise TracekitError(
            f"the biases of layer {layer} mask all but {left} of its experts with -inf, and a token "
            f"selects {top_k}" + (f"; give --n-expert-used {left}" if left else "")
        )


def _rule_by_logits(layer: int, scores: Tensor, n_expert: int) -> _Rule:
    path = _path_to_router(scores, n_expert)
    if path is None:
        raise TracekitError(f"layer {layer} selects experts by something other than a router")
    gating, router_bias, selection_bias = _selection_rule(path)
    matrix = path[-1].source(0).dequantised()
    return _Rule(path[-1], gating, matrix, router_bias, selection_bias)


def _path_to_router(tensor: Tensor, n_expert: int) -> list[Tensor] | None:
    """Return the operations from the ranked scores back to the router's product, in that order."""
    if tensor.op_name == "NONE":
        return None
    if tensor.op_name == "MUL_MAT":
        is_router = tensor.source(0).op_name == "NONE" and tensor.ne[0] == n_expert
        return [tensor] if is_router else None
    for source in tensor.sources():
        path = _path_to_router(source, n_expert)
        if path is not None:
            return [tensor, *path]
    return None


def _selection_rule(path: list[Tensor]) -> tuple[str, np.ndarray | None, np.ndarray | None]:
    """Return gating, router bias and selection bias; `path` leads from the scores to the router."""
    gating, before, after = "logits", None, None
    for node in path:
        if node.op_name == "SOFT_MAX":
            gating = "softmax"
        elif node.op_name == "UNARY" and node.unary_name == "SIGMOID":
            gating = "sigmoid"
        elif node.op_name == "SQRT":
            gating = "sqrt-softplus"
        elif node.op_name == "ADD":
            bias = _added_weight(node)
            if gating == "logits":
                after = bias
            else:
                before = bias
    if gating == "logits":  # only a bias is between router and top-k, so it is added to the logits
        return gating, after, None
    return gating, before, after


def _added_weight(node: Tensor) -> np.ndarray | None:
    for source in node.sources():
        if source.op_name == "NONE":
            return source.array().reshape(-1).astype(np.float32)
    return None


def _norm_before(gate_input: Tensor) -> tuple[np.ndarray | None, float | None]:
    """Return the weight and the epsilon of the RMS norm that makes the gate input, if one does.

    The weight is the product of all weights and scalings between the norm and the gate input.
    """
    factor = np.ones(gate_input.ne[0], np.float32)
    for node in _backwards(gate_input):
        if node.op_name == "RMS_NORM":
            return factor, node.float_param(0)
        if node.op_name == "MUL":
            weight = node.source(1)
            if weight.op_name != "NONE" or weight.ne[0] != len(factor):
                break
            factor = factor * weight.array().reshape(-1).astype(np.float32)
        elif node.op_name == "SCALE":
            factor = factor * np.float32(node.float_param(0))
        elif node.op_name not in _VIEWS:
            break
    return None, None


def _backwards(tensor: Tensor) -> Iterator[Tensor]:
    """Give a tensor, its first operand, the first operand of that, and so on."""
    yield tensor
    while operands := tensor.sources():
        tensor = operands[0]
        yield tensor


def _last_weights(layer: int, order: dict[str, int]) -> str | None:
    base, *suffixes = _WEIGHT_STAGES
    names = [f"{base}{suffix}-{layer}" for suffix in ("", *suffixes)]
    present = [name for name in names if name in order]
    return max(present, key=lambda name: order[name], default=None)

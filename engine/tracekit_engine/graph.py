"""What a model's compute graph says of its MoE layers, read from the graph of one token.

Nothing here knows an architecture. A MoE layer is a layer with expert products (``MUL_MAT_ID``)
whose ids come from a top-k. The operations between the router's product and the top-k are the
model's rule of selection. Nodes are found by what they compute and remembered by their names, which
stay the same in every graph of the model.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.trace.errors import TracekitError
from tracekit_engine.ggml import Tensor, check_layout

_VIEWS = ("VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "CONT")
_WEIGHT_STAGES = ("ffn_moe_weights", "_softmax", "_norm", "_scaled")
_EMBEDDING_WEIGHT = "token_embd.weight"
_UNNAMED = "node_"


@dataclass(frozen=True)
class MoeLayer:
    """How one layer routes.

    Attributes
    ----------
    experts : tuple of str
        Names of the stacked expert weights, [n_expert, …]; a routing reads its experts' slices.
    router_node : bytes
        The router's product: its operand 1 is the gate input.
    ids_node, weights_node : bytes
        The selected ids; the applied weights, computed before any expert runs.
    gating : str
        What selection ranks by: ``softmax``, ``sigmoid``, ``sqrt-softplus`` or ``logits``.
    router_matrix : ndarray, float32 [n_expert, n_embd]
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
    experts: tuple[str, ...]
    router_node: bytes
    ids_node: bytes
    weights_node: bytes
    gating: str
    router_matrix: np.ndarray
    router_bias: np.ndarray | None
    selection_bias: np.ndarray | None
    norm_weight: np.ndarray | None
    norm_eps: float | None


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
    layers = tuple(_read_layer(layer, products[layer], order) for layer in sorted(products))
    if not layers:
        raise TracekitError("no layer of the model selects experts")
    shapes = {(layer.n_expert, layer.top_k, layer.router_matrix.shape) for layer in layers}
    if len(shapes) > 1:
        raise TracekitError(
            "its layers differ in their number of experts, or in how many a token uses"
        )
    return Plan(layers, weights, _embedding_node(graph))


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
    """Return the layer of a product with stacked experts chosen by a top-k, else None."""
    if node.op_name != "MUL_MAT_ID":
        return None
    match = re.match(r"blk\.(\d+)\.", _through_views(node.source(0)).name_text)
    chosen_by_top_k = _through_views(node.source(2)).op_name in ("ARGSORT", "TOP_K")
    return int(match[1]) if match and chosen_by_top_k else None


def _read_layer(layer: int, products: list[Tensor], order: dict[str, int]) -> MoeLayer:
    ids = products[0].source(2)
    sort = _through_views(ids)
    n_expert = sort.ne[0]
    path = _path_to_router(sort.source(0), n_expert)
    if path is None:
        raise TracekitError(f"layer {layer} selects experts by something other than a router")
    router = path[-1]
    gating, router_bias, selection_bias = _selection_rule(path)
    norm_weight, norm_eps = _norm_before(router.source(1))
    weights_node = _last_weights(layer, order)
    first_product = min(order[product.name_text] for product in products)
    if weights_node is None or order[weights_node] > first_product:
        raise TracekitError(f"layer {layer} runs its experts before their weights are known")
    return MoeLayer(
        layer=layer,
        top_k=ids.ne[0],
        n_expert=n_expert,
        experts=tuple(_through_views(product.source(0)).name_text for product in products),
        router_node=router.name_bytes,
        ids_node=ids.name_bytes,
        weights_node=weights_node.encode(),
        gating=gating,
        router_matrix=router.source(0).dequantised(),
        router_bias=router_bias,
        selection_bias=selection_bias,
        norm_weight=norm_weight,
        norm_eps=norm_eps,
    )


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

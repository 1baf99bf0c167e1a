"""The routers of a transformers model: where they are, what they multiply by, what an expert weighs.

In: a model. Out: one `Router` for each MoE layer. The rule is general: a module with a child `experts`
and a child `gate` or `router`. Families whose routers give something else are refused by name.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.trace import TracekitError

ROUTER_NAMES = ("gate", "router")
# Types of models whose routers do not return logits, weights and ids of the routed experts, and why.
REFUSED = {
    "dbrx": "its router returns logits only",
    "jetmoe": "its router sorts tokens by expert, and its attention has experts, too",
    "switch_transformers": "its experts have a capacity, and drop tokens",
    "llama4": "its router returns scores of all experts, and no ids",
    "llama4_text": "its router returns scores of all experts, and no ids",
    "gemma4": "its router normalises the gate input itself, and returns no logits",
    "gemma4_text": "its router normalises the gate input itself, and returns no logits",
}
# A bias of these names is added to the scores for the selection only.
SELECTION_BIASES = ("e_score_correction_bias", "expert_bias")


@dataclass(frozen=True)
class Router:
    """The router of a MoE layer.

    Attributes
    ----------
    layer : int
        The model's own number of the layer.
    name : str
        Of the module.
    module, block : torch.nn.Module
        The router, and what holds it and the experts.
    matrix : float32 [n_expert, n_embd] or None
        None where the ids of the tokens select, or where the weights are not in memory.
    bias, selection_bias : float32 [n_expert] or None
    dtype : str
        Of the matrix, such as ``float32``.
    expert_bytes : int
    """

    layer: int
    name: str
    module: Any
    block: Any
    matrix: np.ndarray | None
    bias: np.ndarray | None
    selection_bias: np.ndarray | None
    dtype: str
    expert_bytes: int


def routers_of(model: Any) -> list[Router]:
    """Return the routers of a model, by layer.

    Raises
    ------
    TracekitError
        The model has none, two for one layer, or is of a family that is not recorded.
    """
    kind = getattr(model.config, "model_type", type(model).__name__)
    if kind in REFUSED:
        raise TracekitError(
            f"Models of the type {kind} are not recorded from transformers: {REFUSED[kind]}; record "
            "a GGUF of it with tracekit record, or another model."
        )
    routers: dict[int, Router] = {}
    for name, block in model.named_modules():
        children = dict(block.named_children())
        of_router = next((child for child in ROUTER_NAMES if child in children), None)
        if "experts" not in children or of_router is None:
            continue
        router = _router(f"{name}.{of_router}", block, children[of_router], children["experts"])
        if router.layer in routers:
            raise TracekitError(
                f"The model has two routers for layer {router.layer}, {routers[router.layer].name} "
                f"and {router.name}; record the part of it that generates text."
            )
        routers[router.layer] = router
    if not routers:
        raise TracekitError(
            f"{type(model).__name__} has no layer with experts and a gate or router beside them, so "
            "there is no routing to record; give a Mixture-of-Experts model."
        )
    return [routers[layer] for layer in sorted(routers)]


def _router(name: str, block: Any, module: Any, experts: Any) -> Router:
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    if not numbers:
        raise TracekitError(
            f"The router {name} is in no numbered layer, so its place in the model is not known; "
            "such a model is not recorded."
        )
    matrices = [v for n, v in module.named_parameters() if v.dim() == 2 and not n.endswith("bias")]
    matrix = matrices[0] if len(matrices) == 1 else None
    if matrix is None:
        raise TracekitError(
            f"The router {name} ({type(module).__name__}) has {len(matrices)} matrices where one is "
            "due; models of this family are not recorded."
        )
    n_expert = int(matrix.shape[0])
    n_bytes = sum(each.numel() * each.element_size() for each in experts.parameters())
    by_token = hasattr(module, "tid2eid")  # DeepSeek-V4: a table gives the experts of a token's id
    return Router(
        layer=numbers[0],
        name=name,
        module=module,
        block=block,
        matrix=None if by_token else array_of(matrix),
        bias=_bias(module, n_expert),
        selection_bias=_selection_bias(module, block, n_expert),
        dtype=str(matrix.dtype).removeprefix("torch."),
        expert_bytes=n_bytes // n_expert,
    )


def _bias(module: Any, n_expert: int) -> np.ndarray | None:
    """Return the bias that is part of the logits: a parameter `bias` of the router or its Linear."""
    for name, value in module.named_parameters():
        if name.split(".")[-1] == "bias" and value.numel() == n_expert:
            return array_of(value.reshape(-1))
    return None


def _selection_bias(module: Any, block: Any, n_expert: int) -> np.ndarray | None:
    for owner in (module, block):
        for name, value in (*owner.named_parameters(), *owner.named_buffers()):
            if name.split(".")[-1] in SELECTION_BIASES and value.numel() == n_expert:
                return array_of(value.reshape(-1))
    return None


def array_of(tensor: Any) -> np.ndarray | None:
    """Return a tensor as float32 in memory; None if its values are not there (a meta tensor)."""
    if tensor.is_meta:
        return None
    values: np.ndarray = tensor.detach().float().cpu().numpy()
    return values


def layer_rows(model: Any, routers: list[Router], with_arrays: bool) -> list[dict[str, Any]]:
    """Return the rows of ``layers.parquet``: one for each layer of the model, dense ones too.

    Parameters
    ----------
    model : torch.nn.Module
    routers : list of Router
    with_arrays : bool
        Write the router matrices and biases, too.
    """
    by_layer = {router.layer: router for router in routers}
    rows: list[dict[str, Any]] = []
    layers = _layers(model, routers[0])
    for number in range(max(len(layers), routers[-1].layer + 1)):
        row: dict[str, Any] = {"layer": number}
        router = by_layer.get(number)
        if number < len(layers):
            n_bytes = sum(
                each.numel() * each.element_size() for each in layers[number].parameters()
            )
            if router is not None:
                experts = router.block.experts.parameters()
                n_bytes -= sum(each.numel() * each.element_size() for each in experts)
            row["dense_bytes"] = n_bytes
        if router is not None:
            row["expert_bytes"] = router.expert_bytes
            if with_arrays:
                row |= {
                    "router_matrix": None if router.matrix is None else router.matrix.reshape(-1),
                    "router_bias": router.bias,
                    "selection_bias": router.selection_bias,
                }
        rows.append(row)
    return rows


def _layers(model: Any, router: Router) -> list[Any]:
    """Return the modules of the layers: what the number in a router's name counts."""
    parts = router.name.split(".")
    at = next(place for place, part in enumerate(parts) if part.isdecimal())
    return list(model.get_submodule(".".join(parts[:at])).children())

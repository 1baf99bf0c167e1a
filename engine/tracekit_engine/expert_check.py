"""Whether a model's graph and its file name the same experts.

A plan and a model's file go in; only a refusal comes out. What a layer multiplies by and what is
counted as its experts' bytes must be the same. Otherwise a replay counts other bytes than the model
reads.
"""

from tracekit.trace.errors import TracekitError
from tracekit_engine.graph import Plan
from tracekit_engine.model_file import ModelFile


def check_plan(plan: Plan, file: ModelFile) -> None:
    """Compare the experts that the graph multiplies by with the expert weights of the file.

    Layers that only predict tokens further on do not run; their experts may be left out.

    Raises
    ------
    TracekitError
        A layer has expert weights that the graph does not use, or uses some that the file does not
        give as expert weights of that layer.
    """
    n_run = file.n_layer - file.n_nextn
    followed = {layer.layer: set(layer.experts) for layer in plan.layers}
    stored = {
        layer: {tensor.name for tensor in tensors}
        for layer, tensors in file.expert_tensors.items()
        if layer < n_run or layer in followed
    }
    for layer in sorted(stored.keys() | followed.keys()):
        unused = stored.get(layer, set()) - followed.get(layer, set())
        if unused:
            raise TracekitError(
                f"the file has experts in layer {layer} ({min(unused)}) that the model's graph does "
                "not use as experts, so their bytes would be counted for nothing"
            )
        unknown = followed.get(layer, set()) - stored.get(layer, set())
        if unknown:
            raise TracekitError(
                f"layer {layer} of the graph selects slices of {min(unknown)}, which the file does "
                f"not hold as a stack of {file.n_expert} experts of that layer, so their bytes are "
                "not known"
            )

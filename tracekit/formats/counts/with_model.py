"""Counts of the model whose file the user names: its layers, its experts, its name.

In: counts, and what the model's file says. Out: the same counts, with what they could not say.
"""

from dataclasses import replace

import numpy as np

from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.model_files import ModelSizes
from tracekit.trace.errors import TraceError


def with_model(counts: ExpertCounts, model: ModelSizes) -> ExpertCounts:
    """Return counts with the model's own numbers of layers and experts.

    Raises
    ------
    TraceError
        The counts are of another model.
    """
    inferred = dict(counts.inferred)
    table, layers, n_expert = counts.counts, counts.layers, model.facts.n_expert
    moe = model.moe_layers
    if "layers" in inferred and not set(layers) <= set(moe) and max(layers) < len(moe):
        layers = tuple(moe[index] for index in layers)
        inferred["layers"] = "the index in the array, among the layers with experts"
    if "n_expert" in inferred and table.shape[1] < n_expert:
        table = np.pad(table, ((0, 0), (0, n_expert - table.shape[1])))
        del inferred["n_expert"]
    if table.shape[1] != n_expert:
        raise _other_model(
            f"{counts.name} counts {table.shape[1]} experts a layer, and {model.name} has {n_expert}"
        )
    if dense := sorted(set(layers) - set(moe)):
        raise _other_model(
            f"{counts.name} counts experts of layer {dense[0]}, and {model.name} has none there"
        )
    top_k = model.facts.top_k
    if counts.top_k not in (None, top_k):
        raise _other_model(
            f"{counts.name} says that a token uses {counts.top_k} experts, and {model.name} {top_k}"
        )
    return replace(
        counts,
        counts=table,
        layers=layers,
        inferred=inferred,
        top_k=top_k,
        model=counts.model or model.facts.name,
    )


def _other_model(difference: str) -> TraceError:
    return TraceError(f"{difference}, so the counts are of another model; name the right one.")

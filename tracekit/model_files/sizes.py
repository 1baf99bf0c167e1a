"""What the files of a model say of it, whatever kind they are of.

This module reads no file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.model_files.embeddings import Embeddings
from tracekit.trace.facts import ModelFacts


@dataclass(frozen=True)
class ModelSizes:
    """What a model's own file says.

    Attributes
    ----------
    facts : ModelFacts
        All layers, experts, experts a token, gating, groups.
    layers : sequence of mappings
        One for each MoE layer, as `tracekit.trace.writer.layers_table` takes them: `layer`,
        `expert_bytes` (absent: unknown), and where the file has them `dense_bytes` and the arrays
        `router_matrix`, `router_bias`, `selection_bias`, `norm_weight`.
    estimated : str or None
        How `expert_bytes` were estimated, where the file does not hold the experts themselves.
    warnings : sequence of str
        Sentences about what was left out, for the user.
    name : str
        What sentences call the file.
    embeddings : Embeddings or None
        Those of its tokens, where the file has them in a type that is decoded here.
    """

    facts: ModelFacts
    layers: Sequence[Mapping[str, Any]]
    estimated: str | None = None
    warnings: Sequence[str] = ()
    name: str = "the model's file"
    embeddings: Embeddings | None = None

    @property
    def moe_layers(self) -> list[int]:
        """The model's own numbers of its MoE layers, ascending."""
        return sorted(int(layer["layer"]) for layer in self.layers)

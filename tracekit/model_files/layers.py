"""The experts of a layer as tensors give them, and the checks that a model's file must pass.

In: names, counts and bytes of tensors. Out: bytes of one expert of each layer. This module reads no
file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracekit.model_files.sizes import ModelSizes
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts, TraceFacts


@dataclass
class Experts:
    """The expert weights of one layer: stacked tensors, or tensors of one expert each.

    Attributes
    ----------
    stacks : set of int
        How many experts the stacked tensors hold.
    ids : dict of int to int
        Bytes of each expert whose tensors stand apart.
    stacked_bytes : int
    types : dict of str to int
        Bytes by the name of their type.
    """

    stacks: set[int] = field(default_factory=set)
    ids: dict[int, int] = field(default_factory=dict)
    stacked_bytes: int = 0
    types: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.stacks or self.ids)

    @property
    def n_expert(self) -> int:
        """Experts of the layer, as its tensors show them."""
        return max([*self.stacks, max(self.ids, default=-1) + 1])

    def add_stack(self, n_expert: int, n_bytes: int, kind: str) -> None:
        """Add a tensor that holds weights of all experts."""
        self.stacks.add(n_expert)
        self.stacked_bytes += n_bytes
        self.types[kind] = self.types.get(kind, 0) + n_bytes

    def add_one(self, expert: int, n_bytes: int, kind: str) -> None:
        """Add a tensor of one expert."""
        self.ids[expert] = self.ids.get(expert, 0) + n_bytes
        self.types[kind] = self.types.get(kind, 0) + n_bytes

    def bytes_of_one(self, n_expert: int, where: str) -> int:
        """Return the bytes of one expert; `where` names the layer.

        Raises
        ------
        TraceError
            The tensors are of another number of experts, or some experts are missing.
        """
        if self.stacks - {n_expert} or self.n_expert > n_expert:
            numbers = " and ".join(map(str, sorted(self.stacks | {self.n_expert})))
            raise TraceError(
                f"{where} holds tensors of {numbers} experts, and the model has {n_expert}; download "
                "it again."
            )
        if self.ids and len(self.ids) < n_expert:
            raise TraceError(
                f"{where} holds {len(self.ids)} of {n_expert} experts; name a folder with all files "
                "of the model."
            )
        total = self.stacked_bytes + sum(self.ids.values())
        return -(-total // n_expert)


def checked(
    facts: ModelFacts,
    rows: Sequence[dict[str, Any]],
    experts: Mapping[int, Experts],
    name: str,
    warnings: Sequence[str] = (),
) -> ModelSizes:
    """Return what a model's file says, with the bytes of one expert in each row.

    Raises
    ------
    TraceError
        The model has no experts, or its numbers cannot be.
    """
    if not experts:
        raise TraceError(f"{name} holds no experts, so it is a dense model; name a MoE model.")
    TraceFacts(facts, "imported").check(name)
    types: dict[str, int] = {}
    for row in rows:
        found = experts[row["layer"]]
        row["expert_bytes"] = found.bytes_of_one(facts.n_expert, f"{name}, layer {row['layer']},")
        for kind, n_bytes in found.types.items():
            types[kind] = types.get(kind, 0) + n_bytes
    facts = replace(facts, quantisation=max(types, key=types.__getitem__))
    return ModelSizes(facts, rows, None, tuple(warnings), name)

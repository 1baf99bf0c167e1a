"""What a user says about a file because the file does not: the options of ``tracekit import``.

In: numbers from flags, facts of a model file. Out: frozen dataclasses. This module reads no file.
"""

import math
from dataclasses import dataclass
from numbers import Integral

from tracekit.model_files.embeddings import Embeddings
from tracekit.model_files.sizes import ModelSizes as ModelSizes
from tracekit.trace.errors import UsageError

AXES = ("tokens", "layers", "k")
MIB = 1 << 20


@dataclass(frozen=True)
class ImportOptions:
    """What a user says of a file that the file does not say.

    Attributes
    ----------
    model : ModelSizes or None
        From the file that ``--model`` names.
    expert_mib : float or None
        Size of one expert of every MoE layer.
    n_expert, n_layer, top_k : int or None
        Experts of a MoE layer; layers of the model, dense ones too; experts of a routing.
    axes : tuple of str or None
        What the three axes of an array of experts are: `AXES` in any order.
    chunk : int or None
        Most tokens of a prefill pass; None: each prompt is one pass.
    embeddings : bool
        Give each token the embedding that the model's file has for its id.

    Raises
    ------
    UsageError
        A number is out of its range, or there are no embeddings to give.
    """

    model: ModelSizes | None = None
    expert_mib: float | None = None
    n_expert: int | None = None
    n_layer: int | None = None
    top_k: int | None = None
    axes: tuple[str, ...] | None = None
    chunk: int | None = None
    embeddings: bool = False

    def __post_init__(self) -> None:
        for name, most in (
            ("n_expert", 1 << 16),
            ("n_layer", 1 << 15),
            ("top_k", 1 << 16),
            ("chunk", 1 << 31),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not (isinstance(value, Integral) and 1 <= int(value) <= most):
                raise UsageError(f"{name} takes a whole number from 1 to {most}, not {value!r}.")
            object.__setattr__(self, name, int(value))  # it may be one of numpy
        mib = self.expert_mib
        if mib is not None and not (math.isfinite(mib) and 1 <= mib * MIB <= 1 << 40):
            raise UsageError(f"expert_mib takes a size in MiB above 0, not {mib!r}.")
        if self.axes is not None and sorted(self.axes) != sorted(AXES):
            raise UsageError(
                f"axes takes the three words {','.join(AXES)} in the order of the array's axes, not "
                f"{','.join(map(str, self.axes))!r}."
            )

        if self.embeddings and self.model is None:
            raise UsageError("Embeddings are those of the model's file; name it with --model PATH.")
        if self.embeddings and self.embeddings_of_model is None:
            assert self.model is not None
            raise UsageError(
                f"{self.model.name} has no token embeddings as F32, F16, BF16 or Q8_0, which are read "
                "here; name a file that has them, or leave out --embeddings."
            )

    @property
    def embeddings_of_model(self) -> Embeddings | None:
        """The embeddings that are asked for."""
        return self.model.embeddings if self.embeddings and self.model is not None else None

    @property
    def expert_bytes(self) -> int | None:
        """`expert_mib` in bytes."""
        return None if self.expert_mib is None else round(self.expert_mib * MIB)

    @property
    def given_top_k(self) -> int | None:
        """Experts of a routing, as the user or the model's file says."""
        return self.top_k or (self.model.facts.top_k if self.model else None)

    @property
    def given_n_layer(self) -> int | None:
        """Layers of the model, dense ones too, as the user or the model's file says."""
        return self.n_layer or (self.model.facts.n_layer if self.model else None)

    @property
    def given_n_expert(self) -> int | None:
        """Experts of a MoE layer, as the user or the model's file says."""
        return self.n_expert or (self.model.facts.n_expert if self.model else None)


NOTHING_SAID = ImportOptions()

"""How often each expert was used: what is left of a run if nobody kept the order.

In: a table of counts. Out: the same, checked. This module reads no file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracekit.trace.errors import TraceError

# Of one expert; sums over all experts of a model stay within 64 bits.
MOST = 1 << 40
MOST_LAYERS, MOST_EXPERTS = 1 << 15, 1 << 16


@dataclass(frozen=True)
class ExpertCounts:
    """How often the tokens of a run used each expert.

    Attributes
    ----------
    counts : int64 [layers, n_expert]
        Of the layers that have any.
    layers : tuple of int
        Their numbers, ascending.
    name : str
        What sentences call the file.
    format : str
        What `tracekit formats` calls its format.
    n_tokens : int or None
        Tokens that were counted.
    top_k : int or None
        Experts that a token uses.
    model : str or None
        Its name.
    inferred : dict
        What the file does not say, and how it was inferred.
    warnings : list of str

    Raises
    ------
    TraceError
        No expert was used, or a number cannot be a count.
    """

    counts: np.ndarray
    layers: tuple[int, ...]
    name: str
    format: str
    n_tokens: int | None = None
    top_k: int | None = None
    model: str | None = None
    inferred: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        n_layers, n_expert = self.counts.shape
        if not n_layers or not self.counts.any():
            raise TraceError(f"{self.name} says of no expert that it was used; record it again.")
        if self.counts.min() < 0 or self.counts.max() > MOST:
            raise TraceError(
                f"{self.name} holds {self.counts.min()} to {self.counts.max()}, which are no counts; "
                "record it again."
            )
        if n_expert > MOST_EXPERTS or max(self.layers) >= MOST_LAYERS:
            raise TraceError(
                f"{self.name} has {n_expert} experts and {max(self.layers) + 1} layers, which no model "
                "has; record it again."
            )
        if self.top_k is not None and not 1 <= self.top_k <= n_expert:
            raise TraceError(
                f"{self.name} says that a token uses {self.top_k} of {n_expert} experts; correct it."
            )
        self.counts.flags.writeable = False

    @property
    def n_expert(self) -> int:
        """Experts of a layer."""
        return int(self.counts.shape[1])

    @classmethod
    def of_all_layers(
        cls,
        counts: np.ndarray,
        name: str,
        format: str,
        layers: Sequence[int] | None = None,
        **more: object,
    ) -> "ExpertCounts":
        """Return counts of all layers without those that have none: they are dense.

        Parameters
        ----------
        counts : int64 [all layers, n_expert]
        name, format : str
        layers : sequence of int, optional
            Their numbers, ascending; from 0 by default.
        **more
            Other attributes.
        """
        numbers = np.arange(len(counts)) if layers is None else np.asarray(layers)
        used = counts.any(axis=1)
        return cls(
            np.ascontiguousarray(counts[used], np.int64),
            tuple(numbers[used].tolist()),
            name,
            format,
            **more,  # type: ignore[arg-type]
        )


def whole_counts(values: np.ndarray, name: str) -> np.ndarray:
    """Return numbers as int64.

    Raises
    ------
    TraceError
        One is not finite, is negative, or has a fraction.
    """
    with np.errstate(invalid="ignore"):
        sound = (values >= 0) & (values <= MOST)  # NaN is neither
    if not sound.all():
        wrong = values[~sound].ravel()[0]
        raise TraceError(f"{name} holds {wrong}, which is no count; record it again.")
    whole: np.ndarray = np.rint(values).astype(np.int64)
    if (whole != values).any():
        wrong = values[whole != values].ravel()[0]
        raise TraceError(f"{name} holds {wrong}, which is no whole number; record it again.")
    return whole

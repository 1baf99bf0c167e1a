"""The embeddings of a model's tokens, of which only the rows that are asked for are read.

In: where the table of embeddings stands in a file, and ids of tokens. Out: a row for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracekit.trace.errors import TraceError


@dataclass(frozen=True)
class Embeddings:
    """A table of embeddings in a model's file.

    Attributes
    ----------
    path : Path
    start : int
        Byte at which it begins.
    n_vocab, n_embd : int
        Tokens, and values of each.
    row_bytes : int
    decode : callable
        Maps the bytes of whole rows to float32 values.
    """

    path: Path
    start: int
    n_vocab: int
    n_embd: int
    row_bytes: int
    decode: Callable[[bytes], np.ndarray]

    def rows(self, tokens: np.ndarray) -> np.ndarray:
        """Return the embeddings of tokens, float32 [n, n_embd]; NaN where the id is below 0.

        Parameters
        ----------
        tokens : int [n]

        Raises
        ------
        TraceError
            A token is none of the model's, or the file is cut short or damaged.
        """
        different, index = np.unique(tokens, return_inverse=True)
        if len(different) and different[-1] >= self.n_vocab:
            raise TraceError(
                f"{self.path} has the embeddings of {self.n_vocab} tokens, and the trace has token "
                f"{different[-1]}, so it is of another model; name the right one."
            )
        found = np.full((len(different), self.n_embd), np.nan, np.float32)
        try:
            with self.path.open("rb") as file:
                for at, token in enumerate(different.tolist()):
                    if token >= 0:
                        file.seek(self.start + token * self.row_bytes)
                        found[at] = self.decode(file.read(self.row_bytes))
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:
            raise TraceError(
                f"{self.path} is cut short within its embeddings; copy it again."
            ) from error
        if not np.isfinite(found[different >= 0]).all():
            raise TraceError(f"{self.path} has embeddings that are nan or infinite; copy it again.")
        return found[index.reshape(-1)]

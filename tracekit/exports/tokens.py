"""What the table of steps says of the tokens that routings belong to.

In: a trace; the pass and step of routings. Out: the ids of their tokens, and whether these stayed.
"""

import numpy as np

from tracekit.exports.format import marks_kept
from tracekit.trace import Trace


class TokenColumns:
    """The ids of the tokens of a trace, and which of them stayed.

    Attributes
    ----------
    has_ids : bool
        Whether the trace has an id of any token.
    marks_kept : bool
        Whether it has tokens that did not stay though no later pass takes them back.
    """

    def __init__(self, trace: Trace):
        self.has_ids = trace.has_steps("token")
        self.marks_kept = marks_kept(trace)
        if self.is_needed:
            steps = trace.steps(["pass", "step", *(["token"] if self.has_ids else [])])
            self._key = _key(steps["pass"], steps["step"])
            self._columns = {"token_id": steps["token"]} if self.has_ids else {}
            if self.marks_kept:
                self._columns["kept"] = trace.kept

    @property
    def is_needed(self) -> bool:
        """Whether there is a column to give."""
        return self.has_ids or self.marks_kept

    def of(self, passes: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
        """Return `token_id` (-1: unknown) and `kept` of routings, as far as the trace has them.

        Parameters
        ----------
        passes, steps : int [n]
        """
        at = np.searchsorted(self._key, _key(passes, steps))
        return {name: values[at] for name, values in self._columns.items()}


def _key(passes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    key: np.ndarray = passes.astype(np.int64) << 32 | steps
    return key

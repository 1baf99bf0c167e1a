"""Router logits as features and targets of a regression."""

import numpy as np


def as_features(logits: np.ndarray, is_known: bool = True) -> np.ndarray:
    """Return logits with 0 in place of −inf, which masks an expert for good.

    A column that is always 0 gets the coefficient 0, and a sum over rows stays finite.

    Parameters
    ----------
    logits : float32 [T, n_expert]
    is_known : bool
        False of a layer that does not select by logits; all of them are 0 then.
    """
    if not is_known:
        return np.zeros_like(logits)
    if logits.min(initial=0) > -np.inf:
        return logits
    return np.where(logits == -np.inf, np.float32(0), logits)

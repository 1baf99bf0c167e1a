"""From the name of a policy or predictor to its class, whichever of the two it is."""

import difflib
from typing import TYPE_CHECKING

from tracekit.trace.build import shown
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from tracekit.policies import Policy
    from tracekit.predictors import Predictor


def find_class(name: str) -> "type[Policy] | type[Predictor]":
    """Return the policy or predictor called `name`; ``module:Class`` may be either.

    Raises
    ------
    UsageError
        There is none; the sentence gives the nearest match.
    """
    from tracekit.policies import POLICIES

    if name in POLICIES:
        return POLICIES.find(name)
    from tracekit.predictors import PREDICTORS

    if name in PREDICTORS or "@" in name:
        return PREDICTORS.find(name)  # of a name with @ it says how parameters are given
    if ":" in name:
        try:
            return PREDICTORS.find(name)
        except UsageError:
            return POLICIES.find(name)
    known = [cls.name for kind in (POLICIES, PREDICTORS) for cls in kind]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`tracekit policies` lists them."
    raise UsageError(f"No policy or predictor is called {shown(name)}; {hint}")

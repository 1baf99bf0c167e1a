"""What the report spares where a trace is long: nothing that it shows changes without a sentence.

In: a trace. Out: the part of it that predictors are scored and advice is tried on, and how many budgets
a policy is replayed at.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tracekit.analysis.curves import budgets_of_curves
from tracekit.policies import LFU, LRU, Belady, Bound, Policy, Ring
from tracekit.replaying.batches import model_of
from tracekit.routing.excerpt import excerpt
from tracekit.trace import Trace

# From so many lookups on, a trace is long; an excerpt has less than half as many.
LONG_LOOKUPS = 1_000_000
EXCERPT_LOOKUPS = 400_000
# These take one pass for all budgets, where all experts have one size.
IN_ONE_PASS: tuple[type[Policy], ...] = (LRU, Belady, Bound)
# These take a second or so for so many lookups, times budgets; any other policy takes several.
QUICK: tuple[type[Policy], ...] = (LFU, Ring)
MOST_OF_QUICK, MOST_REPLAYED = 400_000_000, 20_000_000


@dataclass(frozen=True, eq=False)
class Studied:
    """What predictors, the advice and policies that act on predictions are tried on.

    Attributes
    ----------
    trace : Trace
        The whole trace, or an excerpt of a long one.
    is_excerpt : bool
    excerpt_of : str
        What the excerpt is, in words; empty of a whole trace.
    notes : list of str
        The sentence that a reader needs where figures are of an excerpt.
    """

    trace: Trace
    is_excerpt: bool = False
    excerpt_of: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """What stands first on the page."""
        if not self.is_excerpt:
            return []
        return [
            "This trace is long. What stands in short, how predictable the routing is and what acting on "
            f"it buys are of an excerpt: {self.excerpt_of}. The tables and the plots of caches and of "
            "routing are of the whole trace."
        ]


def studied(trace: Trace) -> Studied:
    """Return what is tried of `trace`."""
    lookups_of_token = len(trace.moe_layers) * trace.top_k
    if not is_long(trace) or not trace.n_decoded:
        return Studied(trace)
    found = excerpt(trace, max(1, EXCERPT_LOOKUPS // lookups_of_token))
    if found.trace.n_rows == trace.n_rows:
        return Studied(trace)
    turns = "the turn" if trace.n_turns == 1 else f"each of {found.n_turns:,} turns drawn evenly"
    words = (
        f"{found.trace.n_decoded:,} of {trace.n_decoded:,} decoded tokens, the first "
        f"{found.most_tokens:,} at most of {turns}, with their prompts"
    )
    return Studied(found.trace, True, words, [f"These figures are of an excerpt: {words}."])


def is_long(trace: Trace) -> bool:
    """Say whether some parts of the report are of an excerpt."""
    return trace.n_rows * trace.top_k > LONG_LOOKUPS


def budgets_of_long(
    trace: Trace, budgets: Sequence[int], main: int, has_times: bool
) -> Callable[[Policy], Sequence[int]]:
    """Return at which budgets a policy is replayed: a function of the policy.

    Of a long trace, what takes one pass for all budgets is replayed at those of curves too, unless
    times are wanted or sizes differ, which takes a pass for each. A policy that takes long is replayed
    at `main` only.
    """
    lookups = trace.n_rows * trace.top_k * len(budgets)
    in_curves = budgets
    if is_long(trace):
        model = model_of(trace)
        if model.has_equal_sizes:
            in_curves = sorted({*budgets, *budgets_of_curves(model, model.bank_bytes)})

    def asked(policy: Policy) -> Sequence[int]:
        if type(policy) in IN_ONE_PASS:  # a class derived from one does as it likes
            return budgets if has_times else in_curves
        most = MOST_OF_QUICK if type(policy) in QUICK else MOST_REPLAYED
        return [main] if lookups > most else budgets

    return asked

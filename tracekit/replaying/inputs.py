"""What each policy is given to run on: the batches, and what it knows beside them.

That is the guesses of its predictor, or how often each expert was used elsewhere.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tracekit.formats import ExpertCounts
from tracekit.policies import Batches, Guesses, Policy
from tracekit.replaying.warming import Warm, warmed_by
from tracekit.trace import Trace, UsageError
from tracekit.trace.errors import MissingDataError, TracekitError
from tracekit.trace.schema import DECODE

# Below this share of tokens with a guess a reader must know; prev-token has none for a turn's first.
_LEAST_GUESSED = 0.75

_ORDERS = {
    "sorted": "the order of the expert ids",
    "unknown": "an order that its source does not say",
}

# Batches with the guesses of a predictor, by its name and horizon.
Shared = dict[tuple[str, int], Batches]
# The guesses themselves: replays of one trace have them in common, whatever else they are given.
Kept = dict[tuple[str, int], Guesses]


class NoMeaningError(UsageError):
    """A policy has no meaning under the admission that is replayed."""


@dataclass(frozen=True)
class Runnable:
    """A policy and the batches that it runs on."""

    policy: Policy
    batches: Batches


def runnable(
    policies: Sequence[Policy],
    trace: Trace,
    batches: Batches,
    seed: int,
    train: Trace | None = None,
    counts: ExpertCounts | None = None,
    warm: Warm | None = None,
    kept: Kept | None = None,
    jobs: int | None = None,
) -> tuple[list[Runnable], list[str]]:
    """Return the policies that can run on `trace`, and sentences about the others.

    With `warm`, each is given what it runs on there too, and first. Guesses are taken from `kept`, and
    left there; predictors are asked for them on up to `jobs` threads.

    Raises
    ------
    MissingDataError, UsageError
        No policy can run.
    """
    able: list[Runnable] = []
    sentences: list[str] = []
    first_error: TracekitError | None = None
    shared = shared_guesses(policies, trace, batches, seed, train, kept, jobs)
    warmed: Shared = {}
    joined: dict[int, Batches] = {}  # by the batches of `trace`, which `shared` keeps
    for policy in policies:
        try:
            given = inputs_of(policy, trace, batches, seed, shared, train, counts)
            first = None
            if warm is not None:
                learned_on = warm.learned_on(train)
                first = inputs_of(
                    policy, warm.trace, warm.batches, seed, warmed, learned_on, counts
                )
        except (MissingDataError, NoMeaningError) as error:
            first_error = first_error or error
            sentences.append(f"Left out: {policy.name}, because {error}")
            continue
        share = _guessed_share(given)
        if first is not None:
            given = joined.setdefault(id(given), warmed_by(first, given))
        able.append(Runnable(policy, given))
        if share < _LEAST_GUESSED:
            sentences.append(
                f"{policy.name} acts on {policy.params.predictor} for only {100 * share:.0f} % of "
                "the decoded tokens: with a single turn, a learned predictor takes the first half to "
                "learn from."
            )
    if not able and first_error:
        raise first_error
    return able, list(dict.fromkeys(sentences))


def shared_guesses(
    policies: Sequence[Policy],
    trace: Trace,
    batches: Batches,
    seed: int = 0,
    train: Trace | None = None,
    kept: Kept | None = None,
    jobs: int | None = None,
) -> Shared:
    """Return `batches` with the guesses of each predictor that `policies` act on.

    All that is not in `kept` is found in one reading of the trace, and left there. Where one of the
    predictors cannot run, all are left to `inputs_of`, which says why.
    """
    kept = {} if kept is None else kept
    asked = {
        (policy.params.predictor, policy.params.horizon): policy.params
        for policy in policies
        if policy.needs_predictor
        and hasattr(policy.params, "predictor")
        and hasattr(policy.params, "horizon")
        and (policy.can_bypass or not batches.bypass)
    }
    lacking = {source: params for source, params in asked.items() if source not in kept}
    if lacking:
        from tracekit.replaying.guesses import all_guesses  # it loads all predictors

        with suppress(TracekitError):
            found = all_guesses(trace, batches, [*lacking.values()], seed, train, jobs)
            kept |= dict(zip(lacking, found, strict=True))
    return {source: replace(batches, guesses=kept[source]) for source in asked if source in kept}


def _guessed_share(batches: Batches) -> float:
    """Return for which share of the decoded tokens there is a guess at some layer."""
    if batches.guesses is None:
        return 1.0
    keys, n_layers = batches.guesses.keys[batches.phase == DECODE], len(batches.expert_bytes)
    whole = len(keys) // n_layers * n_layers  # the last pass may be cut
    of_tokens = (keys[:whole] >= 0).reshape(-1, n_layers * keys.shape[1])
    return float(of_tokens.any(axis=1).mean()) if len(of_tokens) else 1.0


def inputs_of(
    policy: Policy,
    trace: Trace,
    batches: Batches,
    seed: int = 0,
    shared: Shared | None = None,
    train: Trace | None = None,
    counts: ExpertCounts | None = None,
) -> Batches:
    """Return `batches` with what `policy` asks for: the guesses of its predictor, or popularity.

    Policies that act on the same guesses take them from `shared`, where the first leaves them.
    They learn on `train`, or on the other turns of `trace`. `counts` of experts go before both.

    Raises
    ------
    UsageError
        The policy needs a predictor, and its parameters do not name one; or the replay is one with
        `bypass`, and the policy has no meaning there.
    MissingDataError
        The trace lacks a column that the predictor needs, or it does not know the rank of the slots
        and the policy goes by it. Or it learns on other turns, and there are none. Or it leaves experts out and the trace has decode passes
        of several tokens.
    """
    if policy.needs_rank and trace.facts.slot_order != "ranked":
        raise MissingDataError(
            f"{policy.name} goes by the rank of the slots, and {trace.name} has them in "
            f"{_ORDERS[trace.facts.slot_order]}; weights would rank them."
        )
    if batches.bypass and not policy.can_bypass:
        raise NoMeaningError(
            f"{policy.name} does not say what it does where an engine may drop at once what it has "
            "just used; replay it without bypass, or set can_bypass in its class if it heeds that."
        )
    if policy.lossy and trace.most_decoded_at_once > 1:
        raise MissingDataError(
            f"{policy.name} leaves experts out token by token, and {trace.name} has decode passes "
            f"of up to {trace.most_decoded_at_once} tokens, whose experts are loaded together."
        )
    known = None
    if policy.needs_popularity:
        from tracekit.replaying.popularity import popularity

        known = popularity(policy, trace, batches, train, counts)
    if not policy.needs_predictor:
        return replace(batches, popularity=known) if known else batches
    if not (hasattr(policy.params, "predictor") and hasattr(policy.params, "horizon")):
        raise UsageError(
            f"Policy {policy.name!r} needs a predictor, so its Params need fields predictor and "
            "horizon; add them."
        )
    from tracekit.replaying.guesses import guesses  # it loads all predictors

    source = policy.params.predictor, policy.params.horizon
    shared = {} if shared is None else shared
    if source not in shared:
        found = guesses(trace, batches, policy.params, seed, train)
        shared[source] = replace(batches, guesses=found)
    return replace(shared[source], popularity=known) if known else shared[source]

"""By which rule a model selects its experts, told from its routers and from what they gave once.

In: routers, and their logits, weights and ids of one pass. Out: gating and groups, and whether the rule
selects what the model did. transformers has no name for the gating that all families share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.hooks.routers import Router
from tracekit.routing.selection import SelectionRule, normalised
from tracekit.trace.facts import GATINGS

# These types rank the logits and take a softmax of those selected; to the weights it is the same.
RANK_LOGITS = ("gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid", "granitemoe_swa")
# Weights and gated logits agree within the rounding of the model's type.
TOLERANCE = {"float32": 1e-3, "float64": 1e-3}
ROUNDED_TOLERANCE = 0.05
NEAR_TIE = 1e-5


@dataclass(frozen=True)
class Given:
    """What a router gave for some tokens: float32 [n, n_expert], [n, k], and ids [n, k]."""

    router: Router
    logits: np.ndarray
    weights: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class Found:
    """The rule, and how far it holds.

    Attributes
    ----------
    rule : SelectionRule
    missed, routings : int
        Routings that the rule selects otherwise (near ties left out), of how many.
    """

    rule: SelectionRule
    missed: int
    routings: int


def rule_of(kind: str, given: Sequence[Given]) -> Found:
    """Return the rule by which the routings of a pass were selected.

    Parameters
    ----------
    kind : str
        Type of the model, as its config has it.
    given : sequence of Given
    """
    first = given[0].router.module
    n_group, used = _groups(first)
    gating = "logits" if kind in RANK_LOGITS else _gating(given)
    rule = SelectionRule(gating, n_group, used)
    by_logits = [each for each in given if each.router.matrix is not None]
    missed = sum(_missed(rule, each) for each in by_logits if gating is not None)
    return Found(rule, missed, sum(len(each.ids) for each in by_logits))


def _groups(router: Any) -> tuple[int, int]:
    """Return how many expert groups a router has, and how many of them stay unmasked."""
    if getattr(router, "topk_method", None) == "greedy":
        return 1, 1
    n_group = getattr(router, "num_group", getattr(router, "n_group", None)) or 1
    return int(n_group), int(getattr(router, "topk_group", None) or n_group)


def _gating(given: Sequence[Given]) -> str | None:
    """Return the gating to which the weights are in proportion, or None if there is none."""
    for gating in GATINGS:
        rule = SelectionRule(gating)
        if gating != "logits" and all(_agrees(rule, each) for each in given):
            return gating
    return None


def _agrees(rule: SelectionRule, given: Given) -> bool:
    chosen = np.take_along_axis(given.logits, given.ids, axis=1)
    with np.errstate(all="ignore"):
        error = np.abs(rule.weights(chosen) - normalised(given.weights))
    most = TOLERANCE.get(given.router.dtype, ROUNDED_TOLERANCE)
    return bool((error <= most).all())


def _missed(rule: SelectionRule, given: Given) -> int:
    k = given.ids.shape[1]
    scores = rule.scores(given.logits, given.router.selection_bias)
    order = np.argsort(-scores, axis=1, kind="stable")
    differs = (np.sort(order[:, :k], axis=1) != np.sort(given.ids, axis=1)).any(axis=1)
    ranked = np.take_along_axis(scores, order, axis=1)
    if k < ranked.shape[1]:
        differs &= ~(ranked[:, k - 1] - ranked[:, k] < NEAR_TIE)
    return int(np.count_nonzero(differs))

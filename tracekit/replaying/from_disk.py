"""Policies fed from disk, piece by piece: the rows of a replay in memory that does not grow with the trace.

In: pieces, policies that can be fed, budgets. Out: their rows, and the largest loads. What a row holds,
and with which bound it is compared, is not decided here.
"""

from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np

from tracekit.ahead import ahead
from tracekit.policies.base import Batches, Policy
from tracekit.policies.fed import FedPolicy
from tracekit.policies.model import Model
from tracekit.replaying.answer_checks import checked
from tracekit.replaying.loads import Loads
from tracekit.replaying.pieces import Future, Pieces
from tracekit.replaying.rows import Row
from tracekit.replaying.tally import Tally
from tracekit.replaying.threads import on_threads


def can_be_fed(policy: Policy) -> TypeGuard[FedPolicy]:
    """Say whether `policy` replays from disk: it needs nothing but the pieces of the run."""
    needs_more = policy.needs_predictor or policy.needs_popularity or policy.lossy
    needs_more |= policy.reads_ahead is not None  # the bound of its class judges the whole run
    is_fed = isinstance(policy, FedPolicy) and type(policy).simulate is FedPolicy.simulate
    return is_fed and not needs_more


def rows_from_disk(
    pieces: Pieces,
    policies: Sequence[FedPolicy],
    budgets: np.ndarray,
    budgets_a_task: int,
    per_layer: bool,
    jobs: int,
    progress: Callable[[float], None],
) -> tuple[list[list[Row]], Loads]:
    """Feed `pieces` to all of `policies` at all of `budgets`.

    The pieces are read once, and a second time if a policy looks into the future.

    Parameters
    ----------
    pieces : Pieces
    policies : sequence of FedPolicy
    budgets : int64 [C]
        In bytes.
    budgets_a_task : int
        The most budgets that one thread replays together.
    per_layer : bool
    jobs : int
        Threads.
    progress : callable
        Called with the share of the work that is done.

    Returns
    -------
    rows : list of list of Row
        By policy and budget.
    loads : Loads
        The largest loads of the run.
    """
    parts = [budgets[i : i + budgets_a_task] for i in range(0, len(budgets), budgets_a_task)]
    tasks = [
        [_Task(policy, pieces.model, part, per_layer) for part in parts] for policy in policies
    ]
    online = [task for of in tasks for task in of if not task.policy.offline]
    offline = [task for of in tasks for task in of if task.policy.offline]
    future, loads = Future(pieces.model), Loads()
    n_rounds = 2 if offline else 1
    rows_done = 0

    def feed(piece: Batches, to: Sequence[_Task]) -> None:
        nonlocal rows_done
        for _ in on_threads(lambda task: task.feed(piece), to, jobs):
            pass
        rows_done += 0 if piece.rows is None else len(piece.rows)
        progress(rows_done / max(1, n_rounds * pieces.trace.n_rows))

    for piece in ahead(pieces):
        loads = loads.with_those_of(piece)
        if offline:
            future.note(piece)
        feed(piece, online)
    for piece in ahead(future.of(pieces)) if offline else ():
        _ = piece.next_use  # found once, before threads would each do it
        feed(piece, offline)
    return [[row for task in of for row in task.rows()] for of in tasks], loads


class _Task:
    """One policy at some budgets."""

    def __init__(self, policy: FedPolicy, model: Model, budgets: np.ndarray, per_layer: bool):
        self.policy = policy
        self._budgets = budgets
        self._run = policy.start(model, budgets)
        self._tallies = [Tally(policy, model, budget, per_layer) for budget in budgets.tolist()]

    def feed(self, piece: Batches) -> None:
        cells = checked(self.policy, piece, self._budgets, self._run.feed(piece), "feed")
        for c, tally in enumerate(self._tallies):
            tally.add(piece, cells[c])

    def rows(self) -> list[Row]:
        return [tally.row() for tally in self._tallies]

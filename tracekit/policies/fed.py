"""Policies that are fed a run piece by piece, so that a replay from disk need not hold it.

A run goes on from one piece to the next exactly as if both had been one: its figures do not depend
on where the run is cut. To replay in memory is to feed one piece.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np

from tracekit.policies.base import Batches, Cell, Limit, Policy
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.model import Model


class Run(ABC):
    """One policy at C budgets, in the midst of a run."""

    @abstractmethod
    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Cell] | list[Limit]:
        """Replay the next piece of the run.

        Parameters
        ----------
        batches : Batches
            Whole batches, those that follow the piece before.
        per_lookup : bool
            Fill ``Cell.hit`` too.

        Returns
        -------
        list of Cell or list of Limit
            For each budget a cell of these batches alone; or the limits of all batches so far.
        """


class FedPolicy(Policy):
    """A policy that a run is fed to: derive from it and write `start`; there is no more to do.

    Its figures are the same in memory and from disk, whatever the pieces.
    """

    @abstractmethod
    def start(self, model: Model, budgets: np.ndarray) -> Run:
        """Begin a run at each of `budgets` with an empty cache.

        Parameters
        ----------
        model : Model
            Sizes of experts, and the rules of the replay. Every piece carries them too.
        budgets : int64 [C]
            In bytes.
        """

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell] | list[Limit]:
        """Feed the whole run at once."""
        return self.start(batches, np.asarray(budgets, np.int64)).feed(batches, per_lookup)


State = TypeVar("State", bound=tuple[Any, ...])


class KernelRun(Run, Generic[State]):
    """A run whose kernel takes one budget and goes on from arrays that it is given again.

    Parameters
    ----------
    budgets : int64 [C]
    kernel : callable
        Called as ``kernel(*inputs(batches), *state, budget, bypass, hits, resident, hit)``: a
        budget in bytes, ``batches.bypass``, and three arrays to fill, as `cells_of_kernel` says.
    state : callable
        Returns new arrays that the kernel works with, as they are before the first batch. Each
        budget has arrays of its own, and the kernel leaves in them all that it has to know later.
    inputs : callable
        Returns what the kernel reads of a piece, the same for every budget.
    go_on : callable, optional
        Called with each budget's state before every piece but the first.
    """

    def __init__(
        self,
        budgets: np.ndarray,
        kernel: Callable[..., None],
        state: Callable[[], State],
        inputs: Callable[[Batches], Iterable[Any]],
        go_on: Callable[[State], None] = lambda state: None,
    ):
        self._budgets = budgets
        self._kernel = kernel
        self._inputs = inputs
        self._go_on = go_on
        self._has_begun = False
        self._states = [state() for _ in budgets]

    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Cell]:
        for each in self._states if self._has_begun else ():
            self._go_on(each)
        self._has_begun = True
        states = iter(self._states)
        return cells_of_kernel(
            batches,
            self._budgets,
            per_lookup,
            self._kernel,
            *self._inputs(batches),
            state=lambda: next(states),
        )

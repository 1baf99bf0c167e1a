"""Executors behind one face: pools of ``concurrent.futures``, and the workers of dask.

In: an executor of the user's. Out: how many steps run at once and where, and futures. This module knows
nothing of studies.
"""

import os
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from pickle import loads
from typing import Any, Protocol, cast

from tracekit.trace.errors import UsageError

# The address of a worker; None where an executor chooses by itself.
Place = str | None


class Workers(Protocol):
    """Whoever runs calls that were pickled."""

    def threads(self) -> Mapping[Place, int]:
        """Return how many calls run at once, by place."""

    def submit(self, call: bytes, near: "Future[Any] | None" = None) -> "Future[Any]":
        """Let `call` run, if possible where `near` ran."""


def workers_of(executor: Any) -> Workers:
    """Return the workers of a dask client, or of what has the ``submit`` of ``concurrent.futures``.

    Raises
    ------
    UsageError
        It is neither, or a client that is closed or asynchronous.
    """
    client = getattr(executor, "_client", executor)
    is_class = isinstance(executor, type)
    if is_class or not callable(getattr(executor, "submit", None)):
        what = f"the class {executor.__name__}" if is_class else type(executor).__name__
        raise UsageError(
            "executor takes a dask client, or what has the submit() of concurrent.futures, not "
            f"{what}."
        )
    if hasattr(client, "nthreads"):
        return _Dask(client)
    return _Pool(executor)


class _Pool:
    def __init__(self, executor: Any):
        self._executor = executor

    def threads(self) -> Mapping[Place, int]:
        return {None: getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1}

    def submit(self, call: bytes, near: "Future[Any] | None" = None) -> "Future[Any]":
        return cast("Future[Any]", self._executor.submit(loads, call))


class _Dask:
    """The client itself: its executor would never say that a future was lost with its worker."""

    def __init__(self, client: Any):
        if getattr(client, "asynchronous", False):
            raise UsageError(
                "The dask client is asynchronous; give one made without asynchronous=True."
            )
        if getattr(client, "status", "running") == "closed":
            raise UsageError("The dask client is closed; make a new one.")
        self._client = client

    def threads(self) -> Mapping[Place, int]:
        # Workers come and go; one may have no threads.
        return {place: n for place, n in self._client.nthreads().items() if n} or {None: 1}

    def submit(self, call: bytes, near: "Future[Any] | None" = None) -> "Future[Any]":
        # A call that is given the result of another runs where that is. Naming the worker would do the
        # same, but such calls wait for ever if all workers die at once and others come.
        what = (loads, call) if near is None else (_loads_beside, call, near)
        # Calls of one name are one kind for the scheduler; it spreads those that follow from another kind.
        future = self._client.submit(*what, pure=False, key=f"tracekit-{uuid.uuid4()}")
        return cast("Future[Any]", future)


def _loads_beside(call: bytes, _near: object) -> Any:
    return loads(call)

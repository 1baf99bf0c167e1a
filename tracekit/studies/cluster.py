"""Workers of dask.distributed: a cluster on this machine, or a scheduler that the user runs.

In: what the user named. Out: a dask client. dask is imported when one is asked for; its settings
(certificates, timeouts) are those of the user's own dask configuration.
"""

import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from tracekit.trace.build import shown
from tracekit.trace.errors import TracekitError, UsageError

HERE = "dask"
_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx)://([^\s/@]+@)?[^\s/@]+:\d+/?")
_CONNECT_S = 30  # a scheduler that was started just before takes some seconds


def check_where(where: str, jobs: int | None) -> None:
    """Check what was named as the place to run, before anything is imported.

    Raises
    ------
    UsageError
        It is neither ``dask`` nor the address of a scheduler; or `jobs` is given with an address.
    """
    if where == HERE:
        return
    if not _ADDRESS.fullmatch(where):
        raise UsageError(
            "--on takes dask, for workers on this machine, or the address of a dask scheduler, as in "
            f"tcp://host:8786, not {shown(_without_secret(where))}."
        )
    if jobs is not None:
        raise UsageError(
            "--jobs is for this machine; the scheduler knows how many workers it has: leave it out."
        )


@contextmanager
def client_on(where: str, jobs: int | None, tell: Callable[[str], None]) -> Iterator[Any]:
    """Give a dask client for `where`, which `check_where` has checked.

    Parameters
    ----------
    where : str
    jobs : int or None
        Workers on this machine; as many as there are processor cores by default.
    tell : callable
        Called with a sentence that the user should know while it waits.

    Raises
    ------
    TracekitError
        dask is not installed, or the scheduler does not answer.
    """
    try:
        import distributed
    except ImportError as error:
        raise UsageError(
            "--on needs dask.distributed; install it with: pip install 'tracekit[cluster]'"
        ) from error
    dask: Any = distributed  # its functions have no types
    with _quiet_logs():
        if where == HERE:
            with (
                _workers_here(dask, jobs) as cluster,
                dask.Client(cluster, set_as_default=False) as client,
            ):
                yield client
            return
        try:
            client = dask.Client(where, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, ImportError) as error:
            raise TracekitError(
                f"The scheduler at {_without_secret(where)} does not answer after {_CONNECT_S} s; start "
                "it with: dask scheduler"
            ) from error
        with client:
            if not client.nthreads():
                tell(
                    f"The scheduler at {_without_secret(where)} has no worker yet; waiting for one."
                )
            yield client


def _workers_here(dask: Any, jobs: int | None) -> Any:
    # The workers inherit that Ctrl-C is held back: it ends this process, and this process ends them.
    # Python's tracker of resources, if it starts later, would let it through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return dask.LocalCluster(
            n_workers=jobs or os.cpu_count() or 1,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,  # as a sweep without workers: a limit would pause a worker for good
            silence_logs=logging.CRITICAL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep dask's own logs to themselves: what goes wrong is said in a sentence."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    logs = [logging.getLogger(name) for name in ("distributed", *names)]  # each has its own level
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _without_secret(address: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", address)

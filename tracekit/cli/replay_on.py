"""``tracekit replay --on``: traces that workers of dask replay.

In: what the user asked for. Out: what is said of each trace.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.replay_output import Said, said_by_worker
from tracekit.formats import open_any
from tracekit.studies.cluster import check_where, client_on
from tracekit.studies.replays import replay_on
from tracekit.studies.spec import Run


def on_workers(
    where: str,
    jobs: int | None,
    console: Console,
    paths: Sequence[Path],
    run: Run,
    warm: Path | None,
    seed: int,
) -> list[Said]:
    """Replay the traces at `paths` on the workers at `where`.

    Raises
    ------
    UsageError, TracekitError
        As for `check_where`, `client_on` and `replay_on`.
    """
    check_where(where, jobs)
    traces = [(open_trace(path, console), path) for path in paths]
    before = None if warm is None else (open_any(warm), warm)
    with (
        client_on(where, jobs, console.note) as executor,
        console.progress("replay") as progress,
    ):
        found = replay_on(executor, traces, run, warm=before, seed=seed, progress=progress)
    return [
        said_by_worker(trace.name, forms) for (trace, _), forms in zip(traces, found, strict=True)
    ]


def run_of(
    policies: Sequence[str],
    budgets: Mapping[str, Any],
    params: Mapping[str, Any],
    bypass: bool,
    skip: int,
) -> Run:
    """Return what is replayed as a study has it."""
    given: dict[str, Any] = {
        name: list(sizes) for name, sizes in budgets.items() if sizes is not None
    }
    return Run(policies=list(policies), params=params, bypass=bypass, skip=skip, **given)

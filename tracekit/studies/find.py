"""Find the traces of a study: bundled ones, files beside it, and those that have to be fetched.

In: a study and the folder of fetched traces. Out: paths, or opened traces. Nothing is fetched here.
"""

import os
from pathlib import Path

from tracekit import datasets
from tracekit.figures import joined
from tracekit.formats import open_any
from tracekit.replaying.agreement import verified
from tracekit.studies.files import TraceFile
from tracekit.studies.spec import Study
from tracekit.trace import Trace, TracekitError
from tracekit.trace.urls import is_url

TRACES_VARIABLE = "TRACEKIT_TRACES"


def open_traces(study: Study, folder: str | Path | None = None) -> dict[str, Trace]:
    """Open every trace of `study`.

    Parameters
    ----------
    study : Study
    folder : str or Path, optional
        The folder of fetched traces; the environment's TRACEKIT_TRACES by default.

    Raises
    ------
    TracekitError
        A trace that has to be fetched is not there; the sentence says where to get it.
    """
    paths = trace_paths(study, folder)
    return {name: verified(open_any(path)) for name, path in paths.items()}


def trace_files(study: Study, folder: str | Path | None = None) -> dict[str, TraceFile]:
    """Return the place and the digest of every trace of `study`, for whoever opens it elsewhere.

    Arguments and errors are those of `open_traces`.
    """
    paths = trace_paths(study, folder)
    return {name: TraceFile.of(open_any(path), path) for name, path in paths.items()}


def trace_paths(study: Study, folder: str | Path | None = None) -> dict[str, Path]:
    """Return where each trace of `study` is; arguments and errors are those of `open_traces`."""
    found = {}
    for name, spec in study.traces.items():
        (found[name],) = _locate(study, [spec.file], spec.source, folder)
    return found


def measured_paths(study: Study, folder: str | Path | None = None) -> dict[str, tuple[Path, Path]]:
    """Return where the tables of measured runs and of their tokens are; errors as of `open_traces`."""
    found = {}
    for name, spec in study.measured.items():
        runs, tokens = _locate(study, [spec.runs, spec.tokens], spec.source, folder)
        found[name] = runs, tokens
    return found


def _locate(
    study: Study, files: list[str], source: str | None, fetched: str | Path | None
) -> list[Path]:
    if source is None:
        return [
            datasets.resolve(file)
            if file.startswith(datasets.PREFIX) or is_url(file)
            else study.path.parent / file
            for file in files
        ]
    named = fetched or os.environ.get(TRACES_VARIABLE)
    folder = Path(named) if named else None
    lacks = [file for file in files if folder is None or not (folder / file).exists()]
    if folder is None or lacks:
        one = len(lacks) == 1
        not_there = f" {'It is' if one else 'They are'} not in {folder}." if folder else ""
        raise TracekitError(
            f"{study.path} needs {joined(lacks)}, which {'does' if one else 'do'} not come with tracekit: "
            f"get {'it' if one else 'them'} from {source}, and name the folder with --traces or "
            f"{TRACES_VARIABLE}.{not_there}"
        )
    return [folder / file for file in files]

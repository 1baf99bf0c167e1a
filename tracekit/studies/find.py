"""Find the traces of a study: bundled ones, files beside it, and those that have to be fetched.

In: a study and the folder of fetched traces. Out: paths, or opened traces. Nothing is fetched here.
"""

import os
from pathlib import Path

from tracekit import datasets
from tracekit.formats import open_any
from tracekit.replaying.agreement import verified
from tracekit.studies.files import TraceFile
from tracekit.studies.spec import Study, TraceSpec
from tracekit.trace import Trace, TracekitError

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
    folder = folder or os.environ.get(TRACES_VARIABLE)
    return {
        name: _locate(study, spec, Path(folder) if folder else None)
        for name, spec in study.traces.items()
    }


def _locate(study: Study, spec: TraceSpec, folder: Path | None) -> Path:
    if spec.file.startswith(datasets.PREFIX):
        return datasets.resolve(spec.file)
    if spec.source is None:
        return study.path.parent / spec.file
    if folder is None or not (folder / spec.file).exists():
        not_there = "" if folder is None else f" It is not in {folder}."
        raise TracekitError(
            f"{study.path} needs {spec.file}, which does not come with tracekit: get it from "
            f"{spec.source}, and name its folder with --traces or {TRACES_VARIABLE}.{not_there}"
        )
    return folder / spec.file

"""Find the traces of a study: bundled ones, files beside it, and those that have to be fetched.

In: a study and the folder of fetched traces. Out: paths, or opened traces. Nothing is fetched here.
"""

import os
from pathlib import Path

from tracekit import datasets
from tracekit.formats import open_any
from tracekit.replaying.agreement import verified
from tracekit.studies.spec import Study
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


def trace_paths(study: Study, folder: str | Path | None = None) -> dict[str, Path]:
    """Return where each trace of `study` is; arguments and errors are those of `open_traces`."""
    return {
        name: _locate(study, spec.file, spec.source, folder) for name, spec in study.traces.items()
    }


def measured_paths(study: Study, folder: str | Path | None = None) -> dict[str, tuple[Path, Path]]:
    """Return where the tables of measured runs and of their tokens are; errors as of `open_traces`."""
    return {
        name: (
            _locate(study, spec.runs, spec.source, folder),
            _locate(study, spec.tokens, spec.source, folder),
        )
        for name, spec in study.measured.items()
    }


def _locate(study: Study, file: str, source: str | None, fetched: str | Path | None) -> Path:
    if file.startswith(datasets.PREFIX):
        return datasets.resolve(file)
    if source is None:
        return study.path.parent / file
    named = fetched or os.environ.get(TRACES_VARIABLE)
    folder = Path(named) if named else None
    if folder is None or not (folder / file).exists():
        not_there = "" if folder is None else f" It is not in {folder}."
        raise TracekitError(
            f"{study.path} needs {file}, which does not come with tracekit: get it from "
            f"{source}, and name its folder with --traces or {TRACES_VARIABLE}.{not_there}"
        )
    return folder / file

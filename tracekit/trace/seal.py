"""The digest that a finished trace carries, so that opening it does not read all of it.

In: a directory whose Parquet files are written, or a trace. Out: the digest of these files.
"""

from dataclasses import replace
from pathlib import Path

from tracekit.trace.digest import sizes_digest
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import KeptDigest, TraceFacts
from tracekit.trace.file_rows import FileRows
from tracekit.trace.reader import Trace
from tracekit.trace.schema import FACTS_FILE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE


def sealed(folder: Path, facts: TraceFacts, sha256: str | None = None) -> TraceFacts:
    """Return `facts` with the digest of the files in `folder`; without one if they are incomplete.

    Parameters
    ----------
    folder : Path
    facts : TraceFacts
    sha256 : str, optional
        What is known to be the digest of the files; otherwise they are read.

    Raises
    ------
    TraceError
        A file cannot be read back.
    """
    if not facts.complete:
        return replace(facts, digest=None)
    layers, routing, steps = (
        FileRows(folder / file) for file in (LAYERS_FILE, ROUTING_FILE, STEPS_FILE)
    )
    trace = Trace(facts, layers, routing, steps, folder)
    return replace(facts, digest=_digest_of(trace, sha256))


def verified_digest(trace: Trace) -> KeptDigest | None:
    """Compute the digest of a trace that has files, and compare it with the one that it carries.

    Returns
    -------
    KeptDigest or None
        The digest of the files; None of a trace that has no finished files.

    Raises
    ------
    TraceError
        The trace carries another digest.
    """
    if not trace.complete or trace.rows(ROUTING_FILE).n_bytes is None:
        return None
    found, kept = _digest_of(trace), trace.facts.digest
    if kept is not None and kept.sha256 != found.sha256:
        raise TraceError(
            f"{trace.name}/{FACTS_FILE} says that the digest is {kept.sha256[:16]}…, but the files "
            f"have {found.sha256[:16]}…: they were changed after they were written. Copy the trace "
            "again; or, if the change was meant, take `digest` out of the file and verify again."
        )
    return found


def _digest_of(trace: Trace, sha256: str | None = None) -> KeptDigest:
    n_bytes = trace.rows(ROUTING_FILE).n_bytes
    assert n_bytes is not None  # a finished trace has one file of routings
    sizes = sizes_digest(trace.facts.model, trace.layer_columns)
    return KeptDigest(sha256 or trace.computed_digest(), sizes, n_bytes)

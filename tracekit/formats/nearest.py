"""What a file of no format lacks to be one of the universal forms, in one sentence.

In: the files that a user named. Out: a sentence. No file is read further than its first lines.
"""

from collections.abc import Sequence

from tracekit.formats.arrays import NPY_MAGIC, SUFFIX, npy
from tracekit.formats.counts.load_arrays import FROM_LOGITS
from tracekit.formats.given import File, Given
from tracekit.formats.names import ALIASES, named
from tracekit.formats.tables import header_of
from tracekit.formats.torch_files import OLD_MAGIC
from tracekit.formats.universal_jsonl import first_object
from tracekit.formats.universal_tables import REQUIRED

PAGE = "docs/formats.md"
_NAMED = 6  # names of a column in a sentence


def what_is_missing(given: Given) -> str:
    """Return why the files are no trace, and where the forms are shown that anybody can write.

    Raises
    ------
    TraceError
        A file is damaged.
    """
    reasons = (_reason(file) for file in given.files)
    reason = next(filter(None, reasons), "it is neither a .trace directory nor of any format")
    return (
        f"{given.name} is no trace that tracekit knows: {reason}; `tracekit formats` lists what can "
        f"be read, and {PAGE} shows forms that are easy to write."
    )


def _reason(file: File) -> str | None:
    """Return what a file lacks to be of the form that it is nearest to; None if it is near none."""
    if file.head.startswith(OLD_MAGIC):
        return (
            "it was saved by a torch before 1.6 or in that form, which is a bare pickle and is never "
            "run: load it with torch and save it again with torch.save"
        )
    if file.head[:1] == b"\x80" and file.head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return "it is a bare pickle, which is a program and is never run: write its arrays instead"
    if file.torch is not None:
        value = file.torch.value
        keys = [str(key) for key in value] if isinstance(value, dict) else []
        what = f"a dict with the keys {_listed(keys)}" if keys else f"a {type(value).__name__}"
        return f"it is a file of torch.save with {what}, which no format has"
    if any(name.endswith(SUFFIX) for name in file.members):
        arrays = [name.removesuffix(SUFFIX) for name in file.members]
        what = f"it is an archive of the arrays {_listed(arrays)}, and none is called experts"
        if "logits" in arrays:
            return f"{what}: add {FROM_LOGITS} if the model selects the k largest"
        return f"{what}: numpy.savez(FILE, experts=…) names it"
    if file.head.startswith(NPY_MAGIC):
        array = npy(file.path)
        return (
            f"it is an array of {array.dtype} with {len(array.shape)} axes, where whole numbers "
            "[tokens, layers, k] are needed"
        )
    if file.columns:
        return _lacking("a Parquet file with columns", "column", file.columns)
    row = first_object(file.first_lines)
    if row is not None:
        return _lacking("JSON lines with keys", "key", list(row))
    columns, _, _ = header_of(file.head)
    return _lacking("a table with columns", "column", columns)


def _lacking(kind: str, what: str, columns: Sequence[str]) -> str | None:
    """Return which columns are missing; None if not one of them is known."""
    names = named(columns)
    lacking = names.missing(REQUIRED)
    if not names.found:
        return None
    if not lacking:
        return f"it is {kind} {_listed(list(names.found.values()))}, but not of single numbers"
    words = " and ".join(f"{name} ({_listed(ALIASES[name])})" for name in lacking)
    return f"it is {kind} {_listed(columns)}, and lacks a {what} for {words}"


def _listed(names: Sequence[str]) -> str:
    shown = [name[:30] if name.isprintable() else repr(name[:30]) for name in names[:_NAMED]]
    return ", ".join([*shown, "…"] if len(names) > _NAMED else shown)

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
_LOOKED_AT = 20  # files of a folder
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"PK\3\4": "zip",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
}
_ARROW = b"ARROW1"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_OTHER_SEPARATORS = ("|", " ", ":")


def what_is_missing(given: Given) -> str:
    """Return why the files are no trace, and where the forms are shown that anybody can write.

    Raises
    ------
    TraceError
        A file is damaged.
    """
    if (given.folder is not None or len(given.files) > 1) and (mixed := _mixed(given)):
        return mixed
    reasons = (_reason(file) for file in given.files)
    reason = next(filter(None, reasons), "it is neither a .trace directory nor of any format")
    return (
        f"{given.name} is no trace that tracekit knows: {reason}; `tracekit formats` lists what can "
        f"be read, and {PAGE} shows forms that are easy to write."
    )


def _mixed(given: Given) -> str | None:
    """Return that files are no part of the run beside them; None if all are of no format."""
    from tracekit.formats.all import FORMATS

    readers = [format_class() for format_class in FORMATS]
    files = given.files[:_LOOKED_AT]
    known = [any(reader.recognises(Given([file])) for reader in readers) for file in files]
    if not any(known):
        return None
    if all(known):
        what = f"{given.folder} holds" if given.folder else f"{given.name} are"
        return (
            f"{what} files of several formats, or of several runs; name those of one run: tracekit "
            f"import {files[0].path} …"
        )
    if given.folder is None:
        return None
    other = files[known.index(False)].path
    return (
        f"{given.folder} holds {other.name} beside files of a trace; take it out, or name the files of "
        f"the run: tracekit import {files[known.index(True)].path} …"
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
        if isinstance(value, dict) and value.get("records") == []:
            return (
                "it is a dump of SGLang's recorder without a pass: let the server answer, then dump"
            )
        return (
            f"it is a file of torch.save with {what}, which no format has: of a tensor of experts, "
            "numpy.savez(FILE, experts=tensor.cpu().numpy()) writes one that is read"
        )
    if any(name.endswith(SUFFIX) for name in file.members):
        arrays = [name.removesuffix(SUFFIX) for name in file.members]
        what = f"it is an archive of the arrays {_listed(arrays)}, and none is called experts"
        if any("logits" in name.lower() for name in arrays):
            return f"{what}: add {FROM_LOGITS} if the model selects the k largest"
        if len(arrays) > 1 and all("expert" in name.lower() for name in arrays):
            return f"{what}: numpy.concatenate them to one, and add lengths, the tokens of each"
        return f"{what}: numpy.savez(FILE, experts=…) names it"
    if file.head.startswith(NPY_MAGIC):
        array = npy(file.path)
        return (
            f"it is an array of {array.dtype} with {len(array.shape)} axes, where whole numbers "
            "[tokens, layers, k] are needed"
        )
    if file.columns:
        return _lacking("a Parquet file with columns", "column", file.columns)
    for magic, kind in _PACKED.items():
        if file.head.startswith(magic):
            return f"it is packed with {kind}: unpack it first (gzip is read as it is)"
    if file.head.startswith(_ARROW):
        return "it is a file of Arrow (Feather): write the table as Parquet"
    row = first_object(file.first_lines)
    if row is not None:
        return _lacking("JSON lines with keys", "key", list(row))
    return _reason_of_text(file.head)


def _reason_of_text(head: bytes) -> str | None:
    if head.startswith(_UTF16):
        return "it is text as UTF-16: save it as UTF-8"
    if head[:1] in (b"\n", b"\r"):
        return "its first line is empty: take empty lines out of its beginning"
    if head.startswith((b"data:", b"event:")):
        return "it is a stream of a server's events: ask the server without stream, and save its answer"
    if head.startswith(b"#"):
        return "it begins with a comment: take the lines that begin with # out"
    if head.lstrip().startswith((b"[", b"{")):
        return "it is one JSON value: write an object for each routing, each in a line of its own"
    columns, names, _ = header_of(head)
    if names.found:
        return _lacking("a table with columns", "column", columns)
    line = b"".join(head.splitlines()[:1]).decode("utf-8", "replace")
    for separator in _OTHER_SEPARATORS:
        if not named([each.strip() for each in line.split(separator)]).missing(REQUIRED):
            return (
                f"its columns are parted by {separator!r}: part them by commas, semicolons or tabs"
            )
    if any(field.strip(' "').isdecimal() for field in line.split(",")[1:]):
        return (
            "its first line holds numbers: name the columns in a line before, as token,layer,expert"
        )
    return None


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

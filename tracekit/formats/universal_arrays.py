"""``.npz`` and ``.npy`` files with the selected experts as one array: whoever has arrays writes them.

In: a file with `experts` [tokens, layers, k]. Out: the run, block by block. In an archive other arrays
may stand beside it: lengths of the prompts, passes, weights, logits, sizes.
"""

from collections.abc import Mapping, Sequence

from tracekit.formats.array_run import ArrayRun
from tracekit.formats.arrays import NPY_MAGIC, SUFFIX, Array, Npz, npy
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.names import ALIASES
from tracekit.formats.options import AXES, ImportOptions
from tracekit.formats.source import Source, one_after_another


@register
class UniversalNpz(Format):
    """Reader of archives of arrays, one of which is `experts` [tokens, layers, k]."""

    name = "npz"
    summary = "arrays of numpy.savez: experts [tokens, layers, k] and what else is known"
    told_by = "a zip archive with the array experts"
    lacks = "what its arrays do not hold"
    is_universal = True

    def recognises(self, given: Given) -> bool:
        """Say whether every file is an archive with the experts among its arrays."""
        return bool(given.files) and all(_has_experts(file.members) for file in given.files)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the archives; each is one or more turns."""
        sources = [_source(file, Npz(file.path), options, self.name) for file in given.files]
        return one_after_another(given.name, sources)


@register
class UniversalNpy(Format):
    """Reader of one array of whole numbers, [tokens, layers, k]."""

    name = "npy"
    summary = "one array of numpy.save: experts [tokens, layers, k]"
    told_by = "the header of an array of whole numbers with three axes"
    lacks = "prompts, passes, weights, sizes"
    is_universal = True

    def recognises(self, given: Given) -> bool:
        """Say whether every file is one array of whole numbers with three axes."""
        return bool(given.files) and all(_is_grid(file) for file in given.files)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the arrays; each is one turn."""
        sources = [
            _source(file, {"experts": npy(file.path)}, options, self.name) for file in given.files
        ]
        return one_after_another(given.name, sources)


def _source(file: File, arrays: Mapping[str, Array], options: ImportOptions, form: str) -> Source:
    return ArrayRun(str(file.path), arrays, Given([file]), options, form).source()


def _has_experts(members: Sequence[str]) -> bool:
    names = {member.lower() for member in members}
    return any(f"{alias}{SUFFIX}" in names for alias in ALIASES["experts"])


def _is_grid(file: File) -> bool:
    if not file.head.startswith(NPY_MAGIC):
        return False
    array = npy(file.path)
    return array.dtype.kind in "iu" and len(array.shape) == len(AXES)

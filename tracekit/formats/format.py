"""What a format is, and the registry of formats.

In: the files that a user named. Out: for a subclass of `Format`, what the run in them was. This module
knows no format by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tracekit.formats.given import Given
from tracekit.formats.options import NOTHING_SAID, ImportOptions
from tracekit.formats.source import Source, trace_of
from tracekit.registry import Registry
from tracekit.trace import Trace, TraceError


class Format(ABC):
    """A file format that can be read as a trace: derive, set the attributes, write two methods.

    Attributes
    ----------
    name : str
        What ``tracekit formats`` calls it.
    summary : str
        One line: whose traces these are.
    told_by : str
        How a file is told to be of this format, in a few words.
    lacks : str
        What such a file cannot say, in a few words; empty: nothing.
    needs : tuple of str
        Flags of ``tracekit import`` without which it cannot be read.
    is_universal : bool
        Anybody's files may resemble it: it reads what no other format recognises.
    is_told_late : bool
        What tells it may stand anywhere in a file, so that others are asked before.
    is_read_whole : bool
        It cannot be read piece by piece, so that it is in memory as a whole.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    told_by: ClassVar[str]
    lacks: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    is_universal: ClassVar[bool] = False
    is_told_late: ClassVar[bool] = False
    is_read_whole: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        """Say whether a file that begins with `head` is of this format.

        Parameters
        ----------
        head : bytes
            The first 4 KiB, decompressed and without a byte order mark.
        """
        return False

    def recognises(self, given: Given) -> bool:
        """Say whether what the user named is a run of this format.

        By default every file must begin as `sniff` asks for. Derived formats look at the names of
        entries, at columns, at a folder.
        """
        return bool(given.files) and all(self.sniff(file.head) for file in given.files)

    @abstractmethod
    def source(self, given: Given, options: ImportOptions) -> Source:
        """Say what the run was, and give its routings in chunks.

        Raises
        ------
        TraceError
            A file is damaged or of another format; the sentence names place and remedy.
        UsageError
            An option is missing without which the files cannot be read; see `missing`.
        """

    def read(self, paths: Path | Sequence[Path], options: ImportOptions = NOTHING_SAID) -> Trace:
        """Read files of this format as a trace in memory.

        Raises
        ------
        TraceError, UsageError
            As for `source`; or the files are of another format.
        """
        given = Given.of(paths)
        if not self.recognises(given):
            raise TraceError(
                f"{given.name} is not of the format {self.name}, which is told by {self.told_by}."
            )
        return trace_of(self.source(given, options), options)


FORMATS: Registry[Format] = Registry("format", Format)
register = FORMATS.register

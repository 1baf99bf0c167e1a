"""What a format of counts is, and the registry of such formats.

In: the files that a user named. Out: for a subclass of `CountsFormat`, the counts in them. This module
knows no format by name.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.formats.given import Given
from tracekit.registry import Registry
from tracekit.trace.errors import TraceError


class CountsFormat(ABC):
    """A file format that holds counts: derive, set the attributes, write two methods.

    Attributes
    ----------
    name : str
        What ``tracekit formats`` calls it.
    summary : str
        One line: whose counts these are.
    told_by : str
        How a file is told to be of this format, in a few words.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    told_by: ClassVar[str]

    def sniff(self, head: bytes) -> bool:
        """Say whether a file that begins with `head`, 4 KiB without compression, is of this format."""
        return False

    def recognises(self, given: Given) -> bool:
        """Say whether what the user named is of this format: by default, every file as `sniff` asks."""
        return bool(given.files) and all(self.sniff(file.head) for file in given.files)

    @abstractmethod
    def read(self, given: Given) -> ExpertCounts:
        """Read the counts; of several files of one run, their sum.

        Raises
        ------
        TraceError
            A file is damaged or of another format; the sentence names place and remedy.
        """

    def no_trace(self, given: Given) -> TraceError:
        """Return the error about files of this format where a trace is needed."""
        return no_trace(given.name)


def no_trace(name: str) -> TraceError:
    """Return the error about counts where a trace is needed; `name` is what sentences call them."""
    return TraceError(
        f"{name} holds counts: how often each expert was used, and not in which order, so it cannot "
        "be imported, replayed, predicted or reported; `tracekit info`, `tracekit plot popularity` and "
        "`tracekit plot concentration` open it."
    )


COUNTS: Registry[CountsFormat] = Registry("format of counts", CountsFormat)
register = COUNTS.register

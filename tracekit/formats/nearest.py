"""What a file of no format lacks to be one, in one sentence.

In: the files that a user named. Out: a sentence. No file is read further than its first bytes.
"""

from tracekit.formats.given import Given

PAGE = "docs/formats.md"


def what_is_missing(given: Given) -> str:
    """Return why the files are no trace, and where the forms are shown that anybody can write."""
    return (
        f"{given.name} is no trace that tracekit knows: it is neither a .trace directory nor of a "
        f"format that `tracekit formats` lists; {PAGE} shows forms that are easy to write."
    )

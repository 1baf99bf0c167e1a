"""How much a compressed file may open into: a small file must not fill the memory.

In: sizes. Out: nothing, or a `TraceError`. No limit here is one on the size of a trace: a large trace
is a large file. What is limited is how many times its size a file may open into.
"""

from tracekit.trace.errors import TraceError

# A trace of 200 layers in which every token selects the same experts opens into 400 times its file;
# one of a real model into less than 30 times.
MOST_TIMES = 500
# So much fits into any memory, whatever the size of the file.
FREE_BYTES = 64 << 20

_MEND = "copy, record or import it again"


def allowed_bytes(file_bytes: int, most_times: int = MOST_TIMES) -> int:
    """Return how many bytes a file of `file_bytes` may open into."""
    return max(FREE_BYTES, most_times * file_bytes)


def too_large(
    path: object,
    file_bytes: int,
    most_times: int = MOST_TIMES,
    *,
    where: str = "",
    mend: str = _MEND,
) -> TraceError:
    """Return the error about a file that opens into more than is allowed; `where` in it, if known."""
    return TraceError(
        f"{path} is damaged, or made to fill the memory: its {file_bytes:,} bytes open into more than "
        f"{allowed_bytes(file_bytes, most_times):,}{where}, as no recording does; {mend}."
    )

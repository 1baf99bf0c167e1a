"""One small valid sample of every format, by the format's name; `test_formats_conformance` needs it.

A sample has a prompt and several decoded tokens at two or more layers, in the order of a trace.
"""

import io
from dataclasses import dataclass, field

import numpy as np
import route_trace_files

from tracekit.formats import ImportOptions


@dataclass(frozen=True)
class Sample:
    """A file, or the files of a folder by name, and the options without which they are not read.

    `is_text`: lines of text, so that text put between them makes a hostile file.
    """

    files: bytes | dict[str, bytes]
    options: ImportOptions = field(default_factory=ImportOptions)
    is_text: bool = True


def saved(write, *args, **named) -> bytes:
    """Return what a function writes to the file that it is given first."""
    file = io.BytesIO()
    write(file, *args, **named)
    return file.getvalue()


# A prompt of three tokens and four decoded ones, at two layers, of eight experts two.
EXPERTS = np.array([[[t % 7, 7], [(t + 3) % 7, (t + 1) % 7]] for t in range(7)], np.int16)

SAMPLES: dict[str, Sample] = {
    "route_trace": Sample(
        route_trace_files.text(
            route_trace_files.turn(0) + route_trace_files.turn(1, decoded=3)
        ).encode()
    ),
    "npz": Sample(
        saved(
            np.savez,
            experts=EXPERTS,
            prompt_lengths=np.array([3]),
            lengths=np.array([7]),
            n_expert=8,
            expert_bytes=1000,
        ),
        is_text=False,
    ),
    "npy": Sample(saved(np.save, EXPERTS), is_text=False),
}

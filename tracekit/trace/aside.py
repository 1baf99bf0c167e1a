"""Columns kept aside while a trace is written, because its digest takes one after the other.

In: chunks of the routings. Out: the digest, without reading and decoding what was just encoded, which
takes five times as long.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from tracekit.trace.atomic import writing
from tracekit.trace.columns import NULLS, nulls, numpy_type
from tracekit.trace.digest import COLUMNS, digest
from tracekit.trace.facts import ModelFacts
from tracekit.trace.schema import routing_schema

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 1 << 16


class ColumnsAside:
    """The columns of a digest, each in a file without a name.

    Parameters
    ----------
    folder : Path
        Where these files are, which take about twice the bytes of the trace.
    stack : ExitStack
        Removes them when it is closed.
    """

    def __init__(self, folder: Path, stack: ExitStack):
        self._folder = folder
        self._stack = stack
        self._files: dict[str, IO[bytes]] = {}
        self._n_rows = 0

    def add(self, columns: Mapping[str, np.ndarray]) -> None:
        """Keep the next rows.

        Parameters
        ----------
        columns : mapping
            Those of `tracekit.trace.digest.COLUMNS` that are known, the same of all rows, in the types
            of a trace.

        Raises
        ------
        TracekitError
            They cannot be written.
        """
        self._n_rows += len(columns["experts"])
        with writing(self._folder):
            for name in COLUMNS:
                if name not in columns:
                    continue
                if name not in self._files:
                    file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - the stack closes it
                    self._files[name] = self._stack.enter_context(file)
                self._files[name].write(np.ascontiguousarray(columns[name]).data)

    def digest(self, model: ModelFacts, layers: Mapping[str, np.ndarray]) -> str:
        """Return the digest of all rows; arguments as of `tracekit.trace.digest.digest`.

        Raises
        ------
        TracekitError
            What was kept cannot be read.
        """
        schema = routing_schema(model.top_k)

        def blocks(name: str) -> Iterator[np.ndarray]:
            kind = schema.field(name).type
            if name not in self._files:
                for start in range(0, self._n_rows, BLOCK_ROWS):
                    yield nulls(kind, min(BLOCK_ROWS, self._n_rows - start), NULLS[name])
                return
            file = self._files[name]
            with writing(self._folder):
                file.seek(0)
                while data := file.read(BLOCK_BYTES):
                    yield np.frombuffer(data, numpy_type(kind))

        return digest(model, layers, blocks)

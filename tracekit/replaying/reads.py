"""What a run looked up and read, batch by batch.

A policy that looks up every expert and reads only what missed does not say so batch by batch: it
follows from its hits.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.policies.base import Batches, Cell


@dataclass(frozen=True, eq=False)
class Reads:
    """Figures of each batch of a run, int64 [batches].

    Attributes
    ----------
    lookups : int64 [batches]
    missed : int64 [batches]
        Lookups that missed.
    demand_bytes : int64 [batches]
        Bytes of what missed: those that a token waits for.
    read_bytes : int64 [batches]
        Bytes read, what was read ahead included.
    """

    lookups: np.ndarray
    missed: np.ndarray
    demand_bytes: np.ndarray
    read_bytes: np.ndarray


def reads_of(batches: Batches, cell: Cell) -> Reads:
    """Return what the run `cell` of `batches` looked up and read."""
    lookups = batches.lookups if cell.lookups is None else cell.lookups
    missed = lookups - cell.hits
    demand_bytes = missed * batches.expert_bytes[batches.layer]
    read_bytes = demand_bytes if cell.read_bytes is None else cell.read_bytes
    return Reads(lookups, missed, demand_bytes, read_bytes)

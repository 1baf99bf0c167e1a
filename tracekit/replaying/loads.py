"""The largest loads of a run: what a scratch buffer has to hold."""

from dataclasses import dataclass

import numpy as np

from tracekit.policies.base import Batches
from tracekit.trace.schema import DECODE, PREFILL


@dataclass(frozen=True)
class Loads:
    """The bytes of the largest batch of decoded tokens and of prompts; 0: there is none."""

    decode_bytes: int = 0
    prefill_bytes: int = 0

    def with_those_of(self, batches: Batches) -> "Loads":
        """Return the largest of these loads and of those of `batches`."""
        load = batches.lookups * batches.expert_bytes[batches.layer]
        decode, prefill = (
            int(np.max(load[batches.phase == phase], initial=0)) for phase in (DECODE, PREFILL)
        )
        return Loads(max(decode, self.decode_bytes), max(prefill, self.prefill_bytes))

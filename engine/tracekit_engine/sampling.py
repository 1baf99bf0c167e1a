"""The next token: the likeliest, or one drawn at a temperature."""

import ctypes
from dataclasses import dataclass

from tracekit.trace.errors import UsageError
from tracekit_engine import binding


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes
    ----------
    temperature : float
        0 takes the likeliest token.
    top_p : float
        Draw from the likeliest tokens that together reach this probability.
    seed : int
        Of the draws; every turn starts from it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 1000:
            raise UsageError(f"A temperature of {self.temperature} cannot be; give 0 or more.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"A top-p of {self.top_p} cannot be; give more than 0, at most 1.")
        if self.temperature == 0 and self.top_p < 1:
            raise UsageError("A top-p needs a temperature above 0: give --temp too.")
        if not 0 <= self.seed < 2**32 - 1:
            raise UsageError(f"The seed {self.seed} is out of range; give 0 to {2**32 - 2}.")


class Sampler:
    """llama.cpp's samplers in a row, as `sampling` wants them."""

    def __init__(self, sampling: Sampling):
        llama = binding.load()
        self._chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        if sampling.temperature == 0:
            steps = [llama.llama_sampler_init_greedy()]
        else:
            steps = [
                llama.llama_sampler_init_top_p(sampling.top_p, 1),
                llama.llama_sampler_init_temp(sampling.temperature),
                llama.llama_sampler_init_dist(sampling.seed),
            ]
        for step in steps:
            llama.llama_sampler_chain_add(self._chain, step)

    def reset(self) -> None:
        """Start the draws anew."""
        binding.load().llama_sampler_reset(self._chain)

    def sample(self, context: ctypes.c_void_p) -> int:
        """Return the token that follows the last evaluated one."""
        return binding.load().llama_sampler_sample(self._chain, context, -1)

    def close(self) -> None:
        """Free the samplers."""
        binding.load().llama_sampler_free(self._chain)

"""How the next token is chosen: the likeliest one, or one drawn at random at a temperature."""

from dataclasses import dataclass

from tracekit.trace.errors import UsageError
from tracekit_engine import binding

MOST_TEMPERATURE = 1000
MOST_SEED = 2**32 - 2


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
        Seed of the draws; every turn starts from it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= MOST_TEMPERATURE:
            raise UsageError(
                f"--temp takes a number from 0 to {MOST_TEMPERATURE}, not {self.temperature}."
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p takes a number above 0, at most 1, not {self.top_p}.")
        if self.temperature == 0 and self.top_p < 1:
            raise UsageError("--top-p needs a temperature above 0; give --temp too.")
        if not 0 <= self.seed <= MOST_SEED:
            raise UsageError(f"--seed takes a whole number from 0 to {MOST_SEED}, not {self.seed}.")


class Sampler:
    """llama.cpp's chain of samplers for a `Sampling`; closed with `close`."""

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
        """Start the draws from the seed again."""
        binding.load().llama_sampler_reset(self._chain)

    def sample(self, context: int) -> int:
        """Return the token that follows the last evaluated one.

        Parameters
        ----------
        context : int
            Address of a llama.cpp context that holds the last token's logits.
        """
        return int(binding.load().llama_sampler_sample(self._chain, context, -1))

    def close(self) -> None:
        """Free the samplers."""
        binding.load().llama_sampler_free(self._chain)

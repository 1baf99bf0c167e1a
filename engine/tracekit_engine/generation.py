"""What is generated after each prompt, as a user asks for it."""

from dataclasses import dataclass, field

from tracekit.trace.errors import UsageError
from tracekit_engine.sampling import Sampling


@dataclass(frozen=True)
class Generation:
    """What to generate in each turn.

    Attributes
    ----------
    n_decode : int
        The most decode passes of a turn; 0 evaluates the prompt only.
    sampling : Sampling
        How the next token is chosen.
    ignore_eos : bool
        Go on after the token that ends a text.
    chat : bool
        Put the prompt into the model's chat template.
    n_ctx : int or None
        Context length in tokens; None takes what the longest turn needs.
    """

    n_decode: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    ignore_eos: bool = False
    chat: bool = False
    n_ctx: int | None = None

    def __post_init__(self) -> None:
        if self.n_decode < 0:
            raise UsageError(f"-n takes a whole number of 0 or more, not {self.n_decode}.")

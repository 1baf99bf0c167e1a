"""What one evaluation of the model gave: the hooks that listen to it, and its rows.

In: a model and its routers. Out: after each forward evaluation, a `Forward`. torch computes; this module
copies what the routers took and gave. It writes nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tracekit import meter
from tracekit.hooks.routers import Router, array_of
from tracekit.trace import TracekitError

# What a model's forward calls its cache; the second name is the older one.
CACHES = ("cache", "past_key_values")
LEFT_OUT = "torch.compile, CUDA graphs and kernels from the hub pass the hooks by: run the model in eager mode."


@dataclass(frozen=True)
class Routed:
    """What a router took and gave, a row for each token of each sequence, in that order.

    Attributes
    ----------
    ids : int64 [n, k]
        The selected experts, the heaviest first.
    weights : float32 [n, k]
    logits : float32 [n, n_expert]
    gate_input : float32 [n, n_embd] or None
    """

    ids: np.ndarray
    weights: np.ndarray
    logits: np.ndarray
    gate_input: np.ndarray | None


@dataclass
class Forward:
    """One evaluation of the model.

    Attributes
    ----------
    n_sequences, n_tokens : int
        Sequences of the batch, and tokens of each; 0 until the first router has run.
    past : int or None
        Tokens in the cache before it, padding included; None: not known.
    tokens : int64 [n_sequences, n_tokens] or None
        Their ids.
    mask : bool [n_sequences, past + n_tokens] or None
        False: padding.
    begins : bool
        Whether it is the first of a call of ``generate``.
    generates : bool
        Whether it is one of a call of ``generate`` that evaluates each prompt at once: all but the
        first then decode, several tokens at a time where they are drafted.
    ends_text : frozenset of int
        Ids of the tokens after which ``generate`` feeds a sequence of a batch nothing but padding.
    routed : dict
        By layer.
    wall_ms : float
    start_s : float
        When it began, by ``time.perf_counter``.
    used_before, usage : Usage
        What the process had used before it, and what it has used in it.
    available_bytes : int or None
        Memory that was available after it; None where the system does not say.
    """

    n_sequences: int = 0
    n_tokens: int = 0
    past: int | None = None
    tokens: np.ndarray | None = None
    mask: np.ndarray | None = None
    begins: bool = False
    generates: bool = False
    ends_text: frozenset[int] = frozenset()
    routed: dict[int, Routed] = field(default_factory=dict)
    wall_ms: float = float("nan")
    start_s: float = field(default_factory=time.perf_counter)
    used_before: meter.Usage = field(default_factory=meter.used)
    usage: meter.Usage | None = None
    available_bytes: int | None = None

    def end(self) -> None:
        """Note what it took."""
        self.wall_ms = 1000 * (time.perf_counter() - self.start_s)
        self.usage = meter.used() - self.used_before
        self.available_bytes = meter.available_bytes()


class Hooks:
    """Listens to a model, and gives each of its evaluations to a function.

    Parameters
    ----------
    model : torch.nn.Module
    routers : list of Router
    give : callable
        Is called with each `Forward` in which every router has run.
    gate_inputs : bool
        Copy the gate inputs.
    """

    def __init__(
        self,
        model: Any,
        routers: list[Router],
        give: Callable[[Forward], None],
        gate_inputs: bool = True,
    ):
        self._n_layers = len(routers)
        self._give = give
        self._gate_inputs = gate_inputs
        self._now: Forward | None = None
        self._model = model
        self._begins = self._generates = False
        self._ends_text: frozenset[int] = frozenset()
        self._own_generate = getattr(model, "generate", None)
        if self._own_generate is not None:
            model.generate = self._generate
        self._handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end),
            *(each.module.register_forward_hook(partial(self._routed, each)) for each in routers),
        ]

    def remove(self) -> None:
        """Take the hooks off, and give the last evaluation if it was of a part of the model."""
        for handle in self._handles:
            handle.remove()
        if self._own_generate is not None:
            # A method of the class needs no attribute; what somebody else has put there comes back.
            del self._model.generate
            if self._model.generate != self._own_generate:
                self._model.generate = self._own_generate
        self._finish()

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate, and know which evaluation is the first."""
        config = kwargs.get("generation_config") or self._model.generation_config
        chunk = kwargs.get("prefill_chunk_size", getattr(config, "prefill_chunk_size", None))
        self._begins, self._generates = True, chunk is None
        ids = kwargs.get("eos_token_id", getattr(config, "eos_token_id", None))
        given = ids if isinstance(ids, list) else [] if ids is None else [ids]
        self._ends_text = frozenset(int(each) for each in given)
        try:
            assert self._own_generate is not None
            return self._own_generate(*args, **kwargs)
        finally:
            self._begins = self._generates = False
            self._ends_text = frozenset()

    # ---- hooks -----------------------------------------------------------------------------

    def _begin(self, model: Any, args: Any, kwargs: Any) -> None:
        self._finish()
        forward = self._now = Forward(
            begins=self._begins, generates=self._generates, ends_text=self._ends_text
        )
        self._begins = False
        ids = kwargs.get("input_ids", args[0] if args else None)
        embeddings = kwargs.get("inputs_embeds")
        given = ids if ids is not None else embeddings
        if given is None:
            return
        forward.n_sequences, forward.n_tokens = (int(n) for n in given.shape[:2])
        forward.tokens = None if ids is None else ids.detach().cpu().numpy()
        caches = [kwargs[name] for name in CACHES if kwargs.get(name) is not None]
        forward.past = length_of(caches[0]) if caches else 0
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        forward.mask = self._mask(mask, forward)

    def _mask(self, mask: Any, forward: Forward) -> np.ndarray | None:
        """Return the mask [sequences, tokens so far]; None: no padding."""
        if getattr(mask, "ndim", 0) == 2:
            known: np.ndarray = mask.detach().cpu().numpy() != 0
            return known
        if mask is not None and forward.n_sequences > 1:
            raise TracekitError(
                "The attention mask of a batch does not have one value for each token, so padding "
                "cannot be told; run the prompts one by one, or with a cache that is not static."
            )
        return None

    def _routed(self, router: Router, module: Any, args: Any, output: Any) -> None:
        forward = self._now
        if forward is None or router.layer in forward.routed:
            self._finish()  # a part of the model was run: nothing but its routers shows that
            forward = self._now = Forward()
        if not (
            isinstance(output, tuple) and [getattr(o, "ndim", 0) for o in output[:3]] == [2] * 3
        ):
            raise TracekitError(
                f"The router {router.name} ({type(module).__name__}) does not return logits, weights "
                "and ids of the experts; record with transformers 5 or later, or another model."
            )
        logits, weights, ids = (each.detach() for each in output[:3])
        gate_input = args[0].detach()
        n_rows = len(ids)
        if not forward.n_sequences:
            is_batch = gate_input.ndim == 3
            forward.n_sequences = int(gate_input.shape[0]) if is_batch else 1
            forward.n_tokens = n_rows // forward.n_sequences
        if n_rows != forward.n_sequences * forward.n_tokens:
            raise TracekitError(
                f"The router {router.name} routed {n_rows} tokens where the model was given "
                f"{forward.n_sequences} × {forward.n_tokens}; such a model is not recorded."
            )
        order = weights.argsort(dim=1, descending=True, stable=True)
        known = array_of(gate_input.reshape(n_rows, -1)) if self._gate_inputs else None
        forward.routed[router.layer] = Routed(
            ids=ids.gather(1, order).cpu().numpy(),
            weights=_array(weights.gather(1, order)),
            logits=_array(logits),
            gate_input=known,
        )

    def _end(self, model: Any, args: Any, output: Any) -> None:
        if self._now is not None and not self._now.routed:
            self._now = None
            raise TracekitError(f"The model ran, and none of its routers was seen; {LEFT_OUT}")
        self._finish()

    def _finish(self) -> None:
        """Give the evaluation if it is whole; one that an error ended lacks layers."""
        forward, self._now = self._now, None
        if forward is not None and len(forward.routed) == self._n_layers:
            forward.end()
            self._give(forward)


def length_of(cache: Any) -> int | None:
    """Return the tokens in a cache; None if it cannot say, as one of linear attention only."""
    try:
        return int(cache.get_seq_length())
    except (AttributeError, ValueError):
        return None


def _array(tensor: Any) -> np.ndarray:
    # A copy: a model may go on to change what its router gave.
    values: np.ndarray = tensor.float().cpu().numpy().copy()
    return values

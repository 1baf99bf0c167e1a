"""From a grid of tokens, layers and slots to routings: how most servers and libraries give them.

In: experts [tokens, layers, k], and of each token its turn, pass, phase and step; or a request and the
length of its prompt. Out: chunks of routings, in the order of a trace.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.formats.given import Given, missing
from tracekit.formats.options import ImportOptions
from tracekit.trace import TraceError
from tracekit.trace.checks import Locate
from tracekit.trace.chunks import Routings
from tracekit.trace.schema import DECODE, PREFILL

ASSUMED_PASSES = "one prefill pass a prompt, one decode pass a generated token"


@dataclass(frozen=True)
class Tokens:
    """Where tokens stand in a run, in the order of turn and step.

    Attributes
    ----------
    turn, passes, phase, step : int [T]
        As of `Routings`.
    token : int [T] or None
        Their ids.
    kept : int [T] or None
        0: the token did not stay.
    """

    turn: np.ndarray
    passes: np.ndarray
    phase: np.ndarray
    step: np.ndarray
    token: np.ndarray | None = None
    kept: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.turn)

    def between(self, start: int, stop: int) -> "Tokens":
        """Return the tokens from `start` to before `stop`."""
        rows = slice(start, stop)
        return Tokens(**{n: each[rows] for n, each in vars(self).items() if each is not None})


def of_requests(
    lengths: Sequence[int] | np.ndarray,
    prompts: Sequence[int] | np.ndarray,
    chunk: int | None = None,
    first_turn: int = 0,
    token: np.ndarray | None = None,
) -> Tokens:
    """Return the tokens of requests that follow each other: a prompt, then what was generated.

    The prompt is one prefill pass, or passes of `chunk` tokens; each generated token is one decode
    pass.

    Parameters
    ----------
    lengths : [N]
        Routed tokens of each request: of its prompt and generated, without the last sampled one.
    prompts : [N]
        Tokens of its prompt.
    chunk : int, optional
    first_turn : int
    token : int [sum of lengths], optional
        Ids of the tokens.
    """
    lengths, prompts = np.asarray(lengths, np.int64), np.asarray(prompts, np.int64)
    lengths, prompts = lengths[lengths > 0], prompts[lengths > 0]  # of the others there is no turn
    turn = np.repeat(np.arange(len(lengths)), lengths)
    step = np.arange(len(turn)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    decode = step >= prompts[turn]
    of_prompt = np.zeros_like(step) if chunk is None else step // chunk
    # Any label will do that ascends: a decode pass is called by its step, after all of the prompt's.
    passes = np.where(decode, step + 1, of_prompt)
    phase = np.where(decode, DECODE, PREFILL)
    return Tokens(turn + first_turn, passes, phase, step, token)


def passes_of(turn: np.ndarray, phase: np.ndarray, chunk: int | None = None) -> np.ndarray:
    """Return a label of the pass of each token where only its phase is known, ascending, int [T].

    Prompt tokens that follow each other are one pass, or passes of `chunk` tokens; each decoded token
    is one.

    Parameters
    ----------
    turn, phase : int [T]
    chunk : int, optional
    """
    begins = np.ones(len(turn), np.bool_)
    begins[1:] = (np.diff(turn) != 0) | (phase[1:] == DECODE) | (phase[:-1] == DECODE)
    if chunk is not None:
        starts = np.flatnonzero(begins)
        inside = np.arange(len(turn)) - np.repeat(starts, np.diff(np.append(starts, len(turn))))
        begins |= inside % chunk == 0
    return np.cumsum(begins)


def phases_of(turn: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """Return the phase of each token where only its pass is known, int [T].

    The passes with which a turn begins, as long as they have more than one token, are its prompt.

    Parameters
    ----------
    turn, passes : int [T]
        In the order of turn and pass.
    """
    begins = np.ones(len(turn), np.bool_)
    begins[1:] = (np.diff(turn) != 0) | (np.diff(passes) != 0)
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, len(turn)))
    of_turn = np.unique(turn[starts], return_inverse=True)[1]
    single: np.ndarray = np.cumsum(counts == 1)
    before = np.zeros(of_turn.max(initial=-1) + 1, np.int64)
    first = np.unique(of_turn, return_index=True)[1]
    before[of_turn[first]] = single[first] - (counts[first] == 1)
    is_decode = single > before[of_turn]
    return np.repeat(np.where(is_decode, DECODE, PREFILL), counts)


def routings_of(
    tokens: Tokens,
    layers: np.ndarray,
    experts: np.ndarray,
    lists: Mapping[str, np.ndarray | None] | None = None,
    name: str = "",
) -> Routings:
    """Return the routings of whole passes, where every token was routed at each of the layers.

    Parameters
    ----------
    tokens : Tokens
        [T]
    layers : int [L]
        The model's own numbers of the layers, ascending.
    experts : int [T, L, k]
        A routing of -1 only was not there, and is left out.
    lists : mapping, optional
        `weights` [T, L, k], `logits` [T, L, n_expert], `gate_input` [T, L, n_embd]; None: absent.
    name : str
        What sentences call the source.

    Raises
    ------
    TraceError
        Only some of the slots of a routing are -1.
    """
    n_tokens, n_layers, k = experts.shape
    order, token = _order(tokens, n_layers), np.repeat(np.arange(n_tokens), n_layers)
    layer = np.tile(np.asarray(layers), n_tokens)
    flat = experts.reshape(-1, k)
    rows: np.ndarray | None = None if order is None else order
    absent: np.ndarray = flat < 0
    if experts.dtype.kind == "i" and absent.any():
        n_absent = np.count_nonzero(absent, axis=1)
        is_none = n_absent == k
        partly = (n_absent > 0) & ~is_none
        if partly.any():
            at = int(partly.argmax())
            slot = int(absent[at].argmax())
            raise TraceError(
                f"{name}, token {token[at]}, layer {layer[at]}: slot {slot} is {flat[at, slot]} "
                "while others name experts; every routing of a trace has the same number of "
                "experts, or none: write -1 in all of its slots."
            )
        rows = np.flatnonzero(~is_none) if rows is None else rows[~is_none[rows]]
    if rows is not None:
        token, layer, flat = token[rows], layer[rows], flat[rows]
    columns: dict[str, Any] = {}
    for column, values in (lists or {}).items():
        if values is not None:
            given = values.reshape(n_tokens * n_layers, -1)
            columns[column] = given if rows is None else given[rows]
    if tokens.token is not None:
        columns["token"] = tokens.token[token]
    if tokens.kept is not None:
        columns["kept"] = tokens.kept[token]
    return Routings(
        turn=tokens.turn[token],
        passes=tokens.passes[token],
        phase=tokens.phase[token],
        step=tokens.step[token],
        layer=layer,
        experts=flat,
        locate=_locate(name, tokens, token, layer) if name else None,
        **columns,
    )


@dataclass
class Padding:
    """Finds the slots at the end of all routings that only fill up an array: -1 wherever one looks.

    The first routings that name an expert show which these are.
    """

    _k: int | None = None

    def used(self, experts: np.ndarray) -> int:
        """Return how many slots are used; where a later routing has more, all of them.

        Parameters
        ----------
        experts : int [..., k]
        """
        k = int(experts.shape[-1])
        if experts.dtype.kind == "u" or not experts.size or experts.min() >= 0:
            self._k = self._k or k
            return k
        by_slot = np.flatnonzero((experts >= 0).reshape(-1, k).any(axis=0))
        if not len(by_slot):
            return self._k or k
        self._k = self._k or int(by_slot[-1]) + 1
        return k if by_slot[-1] >= self._k else self._k


def _locate(name: str, tokens: Tokens, token: np.ndarray, layer: np.ndarray) -> Locate:
    def locate(row: int, slot: int) -> str:
        at = token[row]
        return f"{name} (turn {tokens.turn[at]}, token {tokens.step[at]}, layer {layer[row]})"

    return locate


def _order(tokens: Tokens, n_layers: int) -> np.ndarray | None:
    """Return the order of the rows [T × L] by (pass, layer, token), or None if it is their own."""
    n_tokens = len(tokens)
    begins = np.ones(n_tokens, np.bool_)
    begins[1:] = (np.diff(tokens.turn) != 0) | (np.diff(tokens.passes) != 0)
    if begins.all():
        return None
    starts = np.flatnonzero(begins)
    counts = np.diff(np.append(starts, n_tokens))
    start, count = np.repeat(starts, counts), np.repeat(counts, counts)
    inside = np.arange(n_tokens) - start
    places = (start * n_layers + inside)[:, None] + count[:, None] * np.arange(n_layers)
    order = np.empty(n_tokens * n_layers, np.int64)
    order[places.reshape(-1)] = np.arange(n_tokens * n_layers)
    return order


def pass_ends(tokens: Tokens, most: int) -> list[int]:
    """Return where blocks of about `most` tokens end that do not cut a pass; the last is T."""
    n_tokens = len(tokens)
    ends = np.flatnonzero((np.diff(tokens.turn) != 0) | (np.diff(tokens.passes) != 0)) + 1
    ends = np.append(ends, n_tokens)
    chosen = [0]
    while chosen[-1] < n_tokens:
        last = np.searchsorted(ends, chosen[-1] + most, side="right") - 1
        first = np.searchsorted(ends, chosen[-1], side="right")
        chosen.append(int(ends[max(first, last)]))
    return chosen[1:]


@dataclass(frozen=True)
class LayerAxis:
    """Which layers an axis of layers holds.

    Attributes
    ----------
    kept : int [L]
        Places along the axis of the MoE layers.
    numbers : int [L]
        The model's own numbers of them.
    n_layer : int or None
        All layers of the model, dense ones too, where the axis shows them.
    """

    kept: np.ndarray
    numbers: np.ndarray
    n_layer: int | None = None


def layer_axis(
    given: Given,
    length: int,
    k: int,
    options: ImportOptions,
    blocks: Iterable[np.ndarray],
) -> LayerAxis:
    """Tell which layers an axis of layers holds, where the file does not number them.

    An axis over all layers of a model holds 0 or -1 at its dense layers. With two or more experts a
    routing, a layer whose every routing is ``0, 0, …`` can be nothing else, and is left out.

    Parameters
    ----------
    given : Given
        For sentences.
    length : int
        Of the axis.
    k : int
        Experts of a routing.
    options : ImportOptions
    blocks : iterable of int [block, length, k]
        All experts; read only as far as needed, and not where the model is known.

    Raises
    ------
    TraceError
        The axis has another length than the model's layers.
    UsageError
        k is 1, and a layer always selects expert 0: it may be dense.
    """
    if options.model is not None:
        moe, n_layer = np.array(options.model.moe_layers), options.model.facts.n_layer
        if length == n_layer:
            return LayerAxis(moe, moe)
        if length == len(moe):
            return LayerAxis(np.arange(length), moe)
        raise TraceError(
            f"{given.name} has {length} layers, but the model has {n_layer}, {len(moe)} of them "
            "with experts; give the model that was run."
        )
    idle, only_none = idle_layers(length, blocks)
    zeros = idle & ~only_none
    if k == 1 and zeros.any():
        raise missing(
            given,
            "--model PATH",
            f"whether layer {int(zeros.argmax())}, whose tokens all have expert 0, has experts",
        )
    kept = np.flatnonzero(~idle)
    return LayerAxis(kept, kept, length if len(kept) < length else None)


def idle_layers(length: int, blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return which layers hold 0 or -1 only, and which -1 only, bool [length] each.

    Parameters
    ----------
    length : int
    blocks : iterable of int [block, length, k]
        Read only as far as needed.
    """
    idle = np.ones(length, np.bool_)
    only_none = np.ones(length, np.bool_)
    for block in blocks:
        idle &= (block <= 0).all(axis=(0, 2))
        only_none &= (block < 0).all(axis=(0, 2))
        if not idle.any():
            break
    return idle, only_none

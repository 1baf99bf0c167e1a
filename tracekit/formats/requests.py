"""Requests that a server answered, each with the experts of its tokens, as a run.

In: requests in the order of their files: an array [tokens, layers, k], and how long the prompt was. Out:
a source in which each request is a turn. The servers' formats read the requests; this module knows no
file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracekit.formats.given import Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source
from tracekit.formats.tokens import (
    ASSUMED_PASSES,
    LayerAxis,
    layer_axis,
    of_requests,
    pass_ends,
    routings_of,
)
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings

# Slots that become routings at once.
BLOCK_SLOTS = 1 << 20
# Requests that are kept to tell which layers are dense.
_MOST_KEPT = 16
_MOST_TOKENS = 1 << 30
NO_PROMPTS = "every token is taken as decoded, since nothing says which belong to a prompt"
MOE_LAYERS_ONLY = (
    "counted from 0 among the layers that have experts; --model PATH tells their numbers"
)


@dataclass(frozen=True)
class Request:
    """One request and the routing of its tokens.

    Attributes
    ----------
    place : str
        What sentences call it.
    experts : int [tokens, layers, k]
    n_prompt : int or None
        Tokens of the whole prompt; None: the file does not say it.
    start : int
        Position of the first of `experts`: tokens before it were found in a cache, and are not there.
    token : int [tokens] or None
        Ids of the tokens, -1: unknown.
    model : str or None
        Name of the model.
    has_moe_layers_only : bool
        The axis of layers leaves out the dense ones, so that it does not say which layers they are.
    """

    place: str
    experts: np.ndarray
    n_prompt: int | None
    start: int = 0
    token: np.ndarray | None = None
    model: str | None = None
    has_moe_layers_only: bool = False


def count(place: str, holder: Any, key: str) -> int | None:
    """Return a number of tokens that a response gives under `key` of `holder`, or None.

    Raises
    ------
    TraceError
        What stands there is no number of tokens.
    """
    value = holder.get(key) if isinstance(holder, dict) else None
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < _MOST_TOKENS:
        raise TraceError(f"{place}: {key} is {str(value)[:40]!r}, which is no number of tokens.")
    return value


def ids(place: str, holder: Any, key: str) -> list[int] | None:
    """Return the token ids that a response gives under `key` of `holder`, or None.

    Raises
    ------
    TraceError
        What stands there are no token ids.
    """
    value = holder.get(key) if isinstance(holder, dict) else None
    if value is None:
        return None
    if not isinstance(value, list) or not all(
        type(each) is int and 0 <= each < 1 << 31 for each in value
    ):
        raise TraceError(f"{place}: {key} is no list of token ids; copy or record it again.")
    return value


def tokens_of(
    prompt: list[int] | None, output: list[int] | None, n_prompt: int | None, rows: range
) -> np.ndarray | None:
    """Return the ids of the tokens at the positions `rows`, -1 where they are unknown; None: all.

    Parameters
    ----------
    prompt, output : list of int or None
        Ids of the prompt and of what was generated.
    n_prompt : int or None
        Tokens of the prompt.
    rows : range
        Positions.
    """
    if n_prompt is None or (prompt is None and output is None):
        return None
    token = np.full(len(rows), -1, np.int64)
    for begins, given in ((0, prompt), (n_prompt, output)):
        first, last = max(begins, rows.start), min(begins + len(given or ()), rows.stop)
        if given is not None and first < last:
            token[first - rows.start : last - rows.start] = given[first - begins : last - begins]
    return token


def source_of(
    given: Given,
    requests: Callable[[Source], Iterable[Request]],
    options: ImportOptions,
) -> Source:
    """Return the requests as a run, each a turn.

    Parameters
    ----------
    given : Given
        For sentences.
    requests : callable
        Reads the requests anew, and tells the source what else it finds.
    options : ImportOptions
    """
    source = Source(given.name, ())
    source.chunks = _Run(given, source, requests, options).chunks()
    return source


class _Run:
    def __init__(
        self,
        given: Given,
        source: Source,
        requests: Callable[[Source], Iterable[Request]],
        options: ImportOptions,
    ):
        self._given = given
        self._source = source
        self._requests = requests
        self._options = options
        self._shape = (0, 0)

    def chunks(self) -> Iterator[Routings]:
        requests = iter(self._requests(self._source))
        kept: list[Request] = []
        for request in requests:
            self._check(request)
            if not len(request.experts):
                continue
            kept.append(request)
            if self._is_enough(kept):
                break
        if not kept:
            return
        axis = self._axis(kept)
        first_turn = n_slots = 0
        waiting: list[Request] = []
        for request in _then(kept, requests):
            self._check(request)
            if not len(request.experts):
                continue
            waiting.append(request)
            n_slots += request.experts.size
            if n_slots >= BLOCK_SLOTS:
                yield from self._routings(waiting, axis, first_turn)
                first_turn += len(waiting)
                waiting, n_slots = [], 0
        if waiting:
            yield from self._routings(waiting, axis, first_turn)

    def _check(self, request: Request) -> None:
        shape = request.experts.shape
        if len(shape) != 3 or 0 in shape[1:]:
            raise TraceError(
                f"{request.place}: its experts have the shape {shape}, where [tokens, layers, k] is "
                "due; copy or record it again."
            )
        if not len(request.experts):
            return  # nothing was routed, so that its other axes say nothing
        if not any(self._shape):
            self._shape = shape[1], shape[2]
        elif shape[1:] != self._shape:
            raise TraceError(
                f"{request.place} has {shape[1]} layers with {shape[2]} experts a token, but those "
                f"before have {self._shape[0]} and {self._shape[1]}; import the responses of one "
                "model at a time."
            )
        if request.model is not None:
            self._source.model.setdefault("name", request.model)
        inferred = self._source.inferred
        inferred.setdefault("passes", ASSUMED_PASSES)
        if request.has_moe_layers_only and self._options.model is None:
            inferred.setdefault("layers", MOE_LAYERS_ONLY)
        if request.n_prompt is None:
            inferred.setdefault("phases", NO_PROMPTS)

    def _is_enough(self, kept: list[Request]) -> bool:
        """Say whether these requests show which layers are dense; one token shows it of a layer."""
        if self._options.model is not None or len(kept) >= _MOST_KEPT:
            return True
        routed = np.zeros(self._shape[0], np.bool_)
        for request in kept:
            routed |= (request.experts >= 0).any(axis=(0, 2))
        return bool(routed.all())

    def _axis(self, kept: list[Request]) -> LayerAxis:
        length, k = self._shape
        # Where a token has one expert, expert 0 may be selected: only all requests together show it.
        seen = kept if k > 1 else self._requests(Source(self._given.name, ()))
        blocks: Iterable[np.ndarray] = (each.experts for each in seen if len(each.experts))
        return layer_axis(self._given, length, k, self._options, blocks)

    def _routings(
        self, requests: list[Request], axis: LayerAxis, first_turn: int
    ) -> Iterator[Routings]:
        lengths = [len(request.experts) for request in requests]
        prompts = [max(0, (request.n_prompt or 0) - request.start) for request in requests]
        known = any(request.token is not None for request in requests)
        tokens = of_requests(
            lengths,
            prompts,
            self._options.chunk,
            first_turn,
            np.concatenate([_token(request) for request in requests]) if known else None,
        )
        starts = np.repeat([request.start for request in requests], lengths)
        tokens = replace(tokens, step=tokens.step + starts)
        experts = np.concatenate([request.experts for request in requests])
        whole = len(axis.kept) == experts.shape[1]
        most = max(1, BLOCK_SLOTS // (experts.shape[1] * experts.shape[2]))
        start = 0
        for end in pass_ends(tokens, most):
            block = experts[start:end] if whole else experts[start:end, axis.kept]
            place = requests[0].place if len(requests) == 1 else self._given.name
            yield routings_of(tokens.between(start, end), axis.numbers, block, name=place)
            start = end


def _token(request: Request) -> np.ndarray:
    return np.full(len(request.experts), -1) if request.token is None else request.token


def _then(kept: list[Request], rest: Iterator[Request]) -> Iterator[Request]:
    """Yield the kept requests, which are let go, and those after them."""
    while kept:
        yield kept.pop(0)
    yield from rest

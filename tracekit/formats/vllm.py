"""Responses of a vLLM server that was started with ``--enable-return-routed-experts``.

In: completions or chat completions, saved as they came. Out: a run in which each choice is a turn. From
0.22 on a choice has its experts as a ``.npy`` in base64 [prompt + generated - 1, layers, k], with zeros
at dense layers; 0.21 wrote nested lists, those of the prompt beside the choices, of MoE layers only.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.formats.arrays import DiskArray
from tracekit.formats.format import register
from tracekit.formats.given import Given
from tracekit.formats.json_objects import Object, is_mark
from tracekit.formats.options import AXES, ImportOptions
from tracekit.formats.requests import Request, count, ids, tokens_of
from tracekit.formats.responses import Responses, decoded, model_name, part, parts
from tracekit.trace import TraceError

EXPERTS = "routed_experts"
OF_PROMPT = "prompt_routed_experts"


@register
class Vllm(Responses):
    """Reader of vLLM's responses with routed experts, from version 0.21 on."""

    name = "vllm"
    summary = "completions and chat completions of a vLLM server: one, an array, or one a line"
    told_by = "JSON objects with choices that have routed_experts"
    lacks = "passes, weights, the order of slots, sizes"
    top = ("choices",)
    has = ("choices", EXPERTS)
    has_not = ("sglext", "meta_info")
    lists = (OF_PROMPT, EXPERTS)
    ask = "start vllm serve with --enable-return-routed-experts, and ask again"

    def requests(
        self, response: Object, body: Mapping[str, Any], given: Given, options: ImportOptions
    ) -> Iterator[Request]:
        """Yield each choice that has experts."""
        place = response.place
        of_prompt = response.numbers(body, OF_PROMPT)
        all_choices = parts(place, body, "choices")
        choices = [each for each in all_choices if each.get(EXPERTS) is not None]
        grids = [_experts(response, choice, of_prompt) for choice in choices]
        prompts = _prompts(place, body, choices, grids)
        for number, (choice, grid, n_prompt) in enumerate(
            zip(choices, grids, prompts, strict=True)
        ):
            output = ids(place, choice, "token_ids")
            given_ids = ids(place, choice, "prompt_token_ids") or ids(
                place, body, "prompt_token_ids"
            )
            n_output = len(output) if output is not None else None
            if n_output is None and len(all_choices) == 1:
                n_output = count(place, part(body, "usage"), "completion_tokens")
            start = 0
            if n_prompt is not None and n_output is not None:
                # The server leaves out the rows of tokens that it was told to, or found cached.
                start = max(0, n_prompt + n_output - 1 - len(grid))
            yield Request(
                place if len(choices) == 1 else f"{place}, choice {number + 1}",
                grid,
                n_prompt,
                start,
                tokens_of(given_ids, output, n_prompt, range(start, start + len(grid))),
                model_name(body),
                has_moe_layers_only=_is_list(choice[EXPERTS]),
            )


def _is_list(value: object) -> bool:
    """Say whether experts are nested lists, as 0.21 wrote them, and no base64 text."""
    return not isinstance(value, str) or is_mark(value)


def _experts(
    response: Object, choice: Mapping[str, Any], of_prompt: np.ndarray | None
) -> np.ndarray:
    """Return the experts of a choice [tokens, layers, k], those of the prompt too."""
    if not _is_list(choice[EXPERTS]):
        return _npy(response.place, choice[EXPERTS])
    generated = response.numbers(choice, EXPERTS)
    both = [each for each in (of_prompt, generated) if each is not None and each.size]
    if len({each.shape[1:] for each in both}) > 1:
        raise TraceError(
            f"{response.place}: {OF_PROMPT} and {EXPERTS} have other layers or numbers of experts; "
            "copy or record it again."
        )
    if not both:
        return np.empty((0, 1, 1), np.int32)
    return np.concatenate(both)


def _npy(place: str, text: str) -> np.ndarray:
    raw = decoded(place, EXPERTS, text)
    array = DiskArray(f"{place}, {EXPERTS}", lambda: io.BytesIO(raw), len(raw))
    if array.dtype.kind not in "iu" or len(array.shape) != len(AXES):
        raise TraceError(
            f"{place}: {EXPERTS} is an array of {array.dtype} with the shape {array.shape}, where "
            "whole numbers [tokens, layers, k] are due; copy or record it again."
        )
    if array.shape[0] == 0:
        return np.empty(array.shape, array.dtype)
    return next(array.blocks(0, [array.shape[0]]))


def _prompts(
    place: str,
    body: Mapping[str, Any],
    choices: Sequence[Mapping[str, Any]],
    grids: Sequence[np.ndarray],
) -> list[int | None]:
    """Return how many tokens the prompt of each choice has; None: the response does not say it."""
    shared = ids(place, body, "prompt_token_ids")
    given = [ids(place, choice, "prompt_token_ids") or shared for choice in choices]
    usage = part(body, "usage")
    total, generated = (count(place, usage, f"{n}_tokens") for n in ("prompt", "completion"))
    # With one prompt, the rows of all choices are those of the prompt again and again.
    n_rows = sum(map(len, grids))
    n_choices = len(choices)
    is_one = n_choices == 1 or (
        total is not None
        and generated is not None
        and n_rows == n_choices * (total - 1) + generated
    )
    prompts: list[int | None] = []
    for choice, known, grid in zip(choices, given, grids, strict=True):
        output = ids(place, choice, "token_ids")
        if known is not None:
            prompts.append(len(known))
        elif is_one or total is None:
            prompts.append(total)
        elif output is not None:
            prompts.append(max(0, len(grid) + 1 - len(output)))
        else:
            raise TraceError(
                f"{place} has {n_choices} choices of several prompts, but not how long each prompt "
                "is; ask vLLM with return_token_ids, or one prompt at a time."
            )
    return prompts

"""Responses of Megatron-LM's inference server with ``moe_topk_indices``.

In: completions or chat completions. Out: a run in which each choice is a turn. The experts are nested
lists [prompt + generated - 1, MoE layers, k], those of the prompt once more under a key of their own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tracekit.formats.format import register
from tracekit.formats.given import Given
from tracekit.formats.json_objects import Object
from tracekit.formats.options import ImportOptions
from tracekit.formats.requests import Request, count, ids, tokens_of
from tracekit.formats.responses import Responses, model_name, part, parts

EXPERTS = "moe_topk_indices"
OF_PROMPT = "prompt_moe_topk_indices"


@register
class MegatronServer(Responses):
    """Reader of the responses of Megatron-LM's inference server."""

    name = "megatron-server"
    summary = "responses of Megatron-LM's inference server"
    told_by = "JSON objects with moe_topk_indices"
    lacks = "passes, weights, the order of slots, sizes, which layers have experts"
    top = ("choices", EXPERTS)
    has = (EXPERTS,)
    lists = (OF_PROMPT, EXPERTS)
    ask = "start the server with --moe-enable-routing-replay, and ask again"

    def requests(
        self, response: Object, body: Mapping[str, Any], given: Given, options: ImportOptions
    ) -> Iterator[Request]:
        """Yield each choice that has experts; an answer without choices is one itself."""
        place = response.place
        all_holders = (body, *parts(place, body, "choices"))
        holders = [each for each in all_holders if each.get(EXPERTS) is not None]
        for number, holder in enumerate(holders):
            grid = response.numbers(holder, EXPERTS)
            assert grid is not None
            if not grid.size:
                continue
            of_prompt = response.numbers(holder, OF_PROMPT)
            prompt = ids(place, holder, "prompt_token_ids")
            n_prompt = len(prompt) if prompt is not None else None
            if of_prompt is not None and n_prompt is None:
                n_prompt = len(of_prompt)
            if n_prompt is None and len(holders) == 1:
                n_prompt = count(place, part(body, "usage"), "prompt_tokens")
            output = ids(place, holder, "generation_token_ids")
            yield Request(
                place if len(holders) == 1 else f"{place}, choice {number + 1}",
                grid,
                n_prompt,
                token=tokens_of(prompt, output, n_prompt, range(len(grid))),
                model=model_name(body),
                has_moe_layers_only=True,
            )

"""Responses of an SGLang server to requests with ``return_routed_experts``.

In: responses of /generate (``meta_info.routed_experts``) or of the OpenAI endpoints
(``sglext.routed_experts``). Out: a run in which each request is a turn. The experts are int32 numbers in
base64 without any shape, over all hidden layers, so the user says how many layers and experts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracekit.formats.format import register
from tracekit.formats.given import Given, missing
from tracekit.formats.json_objects import Object
from tracekit.formats.options import ImportOptions
from tracekit.formats.requests import Request, count, ids, tokens_of
from tracekit.formats.responses import Responses, decoded, model_name, part, parts
from tracekit.trace import TraceError

EXPERTS = "routed_experts"
START = "routed_experts_start_len"
META, EXTENSION = "meta_info", "sglext"
_TYPE = np.dtype("<i4")


@register
class Sglang(Responses):
    """Reader of SGLang's responses with routed experts."""

    name = "sglang"
    summary = "responses of an SGLang server: /generate and the OpenAI endpoints"
    told_by = "JSON objects with routed_experts in meta_info or sglext"
    lacks = "passes, weights, the order of slots, sizes, layers, experts a token"
    needs = ("--n-layer", "--top-k")
    top = (META, "choices", EXTENSION)
    has = (EXPERTS,)
    lists = (EXPERTS,)
    ask = "start SGLang with --enable-return-routed-experts, and ask with return_routed_experts"

    def recognises(self, given: Given) -> bool:
        """Say whether every file holds objects with experts in the places of SGLang."""
        return super().recognises(given) and all(
            any(file.mentions(f'"{key}"'.encode()) for key in (META, EXTENSION))
            for file in given.files
        )

    def requests(
        self, response: Object, body: Mapping[str, Any], given: Given, options: ImportOptions
    ) -> Iterator[Request]:
        """Yield the request of a response, or those of its choices."""
        place = response.place
        choices = parts(place, body, "choices")
        usage = part(body, "usage")
        # Of several choices only the sum of their tokens is known.
        counts = usage if len(choices) == 1 else {**usage, "completion_tokens": None}
        holders = [
            (part(body, META), part(body, META)),
            (part(body, EXTENSION), counts),
            *((part(choice, META), {**counts, **part(choice, META)}) for choice in choices),
        ]
        for holder, says in holders:
            text = holder.get(EXPERTS)
            if text is None:
                continue
            if not isinstance(text, str):
                raise TraceError(
                    f"{place}: {EXPERTS} is no base64 text; copy or record the response again."
                )
            grid = _grid(place, decoded(place, EXPERTS, text), given, options)
            n_prompt = count(place, says, "prompt_tokens")
            n_output = count(place, says, "completion_tokens")
            start = count(place, holder, START) or 0
            _check_rows(place, len(grid), n_prompt, n_output, start)
            output = ids(place, body, "output_ids")
            rows = range(start, start + len(grid))
            token = tokens_of(None, output, n_prompt, rows)
            yield Request(place, grid, n_prompt, start, token, model_name(body))


def _grid(place: str, raw: bytes, given: Given, options: ImportOptions) -> np.ndarray:
    """Return the experts [tokens, layers, k] of numbers without a shape."""
    n_layer, k = options.given_n_layer, options.given_top_k
    if n_layer is None or k is None:
        raise missing(
            given,
            "--n-layer N --top-k K",
            "how many layers (dense ones too) and experts a token its numbers are for; --model PATH "
            "gives both",
        )
    if len(raw) % (_TYPE.itemsize * n_layer * k):
        raise TraceError(
            f"{place}: {EXPERTS} has {len(raw)} bytes, which are no whole tokens of {n_layer} layers "
            f"× {k} experts × 4 bytes; correct --n-layer (dense layers count too) or --top-k."
        )
    return np.frombuffer(raw, _TYPE).reshape(-1, n_layer, k)


def _check_rows(
    place: str, n_rows: int, n_prompt: int | None, n_output: int | None, start: int
) -> None:
    if n_prompt is None or n_output is None:
        return
    expected = max(0, n_prompt + n_output - 1 - start)
    if n_rows != expected:
        raise TraceError(
            f"{place} has the experts of {n_rows} tokens, if --n-layer and --top-k are right, but it "
            f"counts {n_prompt} tokens of the prompt and {n_output} generated ones, of which "
            f"{expected} are routed; correct --n-layer (dense layers count too) or --top-k."
        )

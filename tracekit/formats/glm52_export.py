"""Exports ``glm52-routing-trace-export``: the experts of all tokens, layer by layer, in one JSON object.

In: a file with `layers` (by number, `executed_topk` [tokens, k]) and the rows of each prompt. Out: the run.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.json_objects import Objects
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source, one_after_another
from tracekit.formats.tokens import ASSUMED_PASSES, of_requests, pass_ends, routings_of
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings

SCHEMA = b'"glm52-routing-trace-export/'
EXPERTS = "executed_topk"
_BLOCK_SLOTS = 1 << 20


@register
class Glm52Export(Format):
    """Reader of exports of the routing of GLM-5.2."""

    name = "glm52-export"
    summary = "routing exports of the GLM-5.2 atlas, glm52-routing-trace-export"
    told_by = "the schema glm52-routing-trace-export of a JSON object"
    lacks = "passes, sizes; the scores that it may have are passed over"

    def sniff(self, head: bytes) -> bool:
        """Say whether a JSON object names the schema."""
        return head.lstrip().startswith(b"{") and SCHEMA in head

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each prompt is a turn."""
        return one_after_another(given.name, [_source(file, options) for file in given.files])


def _source(file: File, options: ImportOptions) -> Source:
    name = str(file.path)
    export = next(iter(Objects(file.path, (EXPERTS,), "export")))
    of_layers = export.value.get("layers")
    if not isinstance(of_layers, dict) or not of_layers or not all(map(_is_number, of_layers)):
        raise TraceError(f"{name} has no layers by their numbers; export it again.")
    layers = sorted(of_layers, key=int)
    grids: list[np.ndarray] = []
    for layer in layers:
        holder = of_layers[layer]
        grid = export.numbers(holder, EXPERTS) if isinstance(holder, dict) else None
        if grid is None or grid.ndim != 2 or grid.shape != (grids or [grid])[0].shape:
            raise TraceError(
                f"{name}: layer {layer} has no {EXPERTS} of as many tokens and experts as others; "
                "export it again."
            )
        grids.append(grid)
    experts = np.stack(grids, axis=1)
    lengths, prompts = _prompts(name, export.value, len(experts))
    tokens = of_requests(lengths, prompts, options.chunk)
    n_expert = _part(export.value, "routing").get("n_expert_per_layer")

    def chunks() -> Iterator[Routings]:
        start = 0
        for end in pass_ends(tokens, max(1, _BLOCK_SLOTS // experts[0].size)):
            part = tokens.between(start, end)
            yield routings_of(part, np.array(layers, np.int64), experts[start:end], name=name)
            start = end

    return Source(
        name,
        chunks(),
        model={"n_expert": n_expert} if type(n_expert) is int else {},
        slot_order="ranked",
        inferred={"passes": ASSUMED_PASSES},
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


def _part(value: dict[str, Any], key: str) -> dict[str, Any]:
    part = value.get(key)
    return part if isinstance(part, dict) else {}


def _prompts(name: str, export: dict[str, Any], n_tokens: int) -> tuple[list[int], list[int]]:
    """Return the tokens of each turn, and those of its prompt."""
    listed = _part(export, "conditional").get("prompts")
    if not isinstance(listed, list) or not listed:
        decoded = _part(export, "tokens").get("decode_step_rows")
        listed = [{"start_row": 0, "decode_step_rows": decoded, "end_row": n_tokens}]
    end = 0
    lengths, prompts = [], []
    for each in listed:
        part = each if isinstance(each, dict) else {}
        rows = [part.get(key) for key in ("start_row", "decode_step_rows", "end_row")]
        wholes = [row for row in rows if type(row) is int]
        if len(wholes) < len(rows) or wholes[0] != end:
            raise TraceError(f"{name}: its prompts do not follow each other; export it again.")
        start, decoded, end = wholes
        lengths.append(end - start)
        prompts.append(end - start - decoded)
    if end != n_tokens or min(lengths) < 1 or min(prompts) < 0:
        raise TraceError(
            f"{name}: its prompts have {end} tokens, and its layers {n_tokens}; export it again."
        )
    return lengths, prompts

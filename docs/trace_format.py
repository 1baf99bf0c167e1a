"""The trace format as tables of a page: names and types from the schema, meanings from here.

Every column and key has to have a meaning here, and every meaning a column or key: otherwise the
page is not written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pyarrow as pa

from tracekit.trace.agreement import Agreement
from tracekit.trace.facts import EngineFacts, KeptDigest, ModelFacts, TraceFacts
from tracekit.trace.schema import (
    MAY_BE_ABSENT,
    SINCE_VERSION_3,
    layers_schema,
    routing_schema,
    steps_schema,
)

PLACE = {
    "turn": "one prompt and what is generated after it, from 0",
    "pass": "one evaluation of the model, counted up over the whole trace",
    "phase": "0 prefill, 1 decode",
    "step": "position of the token in the context of its turn, from 0",
    "layer": "the model's own number of the layer, from 0",
}
ROUTING = {
    "experts": "the selected experts in slot order: the heaviest first, if `slot_order` is ranked",
    "weights": "final routing weight of each of them; a null element is unknown",
    "residency": "what the engine's cache did: 0 miss, 1 hit, 2 prefetched",
    "dropped": "1: the engine left this expert out",
    "logits": "the router's logit of every expert",
    "gate_input": "the vector that the router multiplied, as f32 or f16",
    "wait_ms": "time that the layer waited until its experts were in memory: evicting, reading",
    "compute_ms": "time from then until the next layer had selected its experts, or the pass had ended",
}
STEPS = {
    "kept": "false of a drafted token that was rejected, and of a prompt that was cancelled",
    "token": "id of the token",
    "piece": "the text of the token, as bytes",
    "wall_ms": "time of the pass",
    "io_ms": "time spent reading",
    "stall_ms": "time that computation waited for reads",
    "read_bytes": "bytes read",
    "lookups": "expert lookups",
    "hits": "lookups that found the expert in the cache",
    "start_s": "seconds from the beginning of the recording to that of the pass",
    "cpu_ms": "CPU time of all threads of the process during the pass",
    "evict_ms": "time that computation waited, outside reads, for experts to be evicted and their memory "
    "to be released or reused",
    "major_faults": "pages that the process waited for because they had to be read from storage",
    "mem_available_bytes": "memory available after the pass, as the system estimates it",
    "embedding": "the token's embedding",
}
LAYERS = {
    "expert_bytes": "bytes of one expert; null for a layer without experts",
    "dense_bytes": "bytes of the layer's other weights",
    "router_matrix": "n_expert × n_embd, row by row",
    "router_bias": "n_expert values that are part of the logits",
    "selection_bias": "n_expert values that are added to the scores for the selection only",
    "norm_weight": "n_embd weights of the norm before the router",
}
MODEL = {
    "name": "name of the model",
    "arch": "its architecture, as the model file names it",
    "n_layer": "layers, those without experts too",
    "n_expert": "experts of a MoE layer",
    "top_k": "experts that a token uses at a MoE layer",
    "n_embd": "width of gate inputs and embeddings",
    "quantisation": "type of the expert weights",
    "gating": "what the selection ranks by: softmax, sigmoid or sqrt-softplus of the logits, or logits",
    "n_group": "expert groups; 1: none",
    "n_group_used": "groups that stay unmasked before the selection",
    "norm_eps": "epsilon of the norm before the router",
    "file_bytes": "size of the model file",
}
ENGINE = {
    "name": "name of the engine",
    "version": "its version",
    "cache_policy": "eviction policy of its expert cache; null: all experts were resident",
    "cache_bytes": "budget of its expert cache",
    "io_threads": "reads in flight at a time",
    "direct_io": "reads passed the page cache by",
    "compute_threads": "threads that compute",
}
FACTS = {
    "model": "the model, below",
    "source": "recorded, imported or synthetic",
    "engine": "the engine, below",
    "complete": "false while a recording runs, and after it was killed",
    "ended": "why a recording ended: length, end of text, interrupted",
    "created": "when it was recorded",
    "prompts": "one for each turn",
    "sampling": "temperature and other settings of the sampling",
    "seed": "seed of the sampling",
    "command": "the command line of the recording",
    "notes": "everything else that was worth keeping; `begins_late` says why a turn does not begin "
    "at step 0, `ram_mib` how much memory the device has, `mode` whether reading and computing took "
    "turns (serial) or not (overlap)",
    "slot_order": "order of the slots of a routing: ranked (heaviest first), sorted (by expert id) "
    "or unknown",
    "inferred": "what the source did not say, and how it was inferred",
    "agreement": "whether a replay gives what the engine recorded, below; null: nobody has compared",
    "digest": "the digest of the trace as it was written, below; null: it is computed when it is "
    "needed",
    "captured": "which of logits, gate_input and embedding were copied out of the model while its passes "
    "were timed; null: not known",
}
DIGEST = {
    "sha256": "of the routings and of the sizes of the experts; the same for a file and for its import",
    "sizes_sha256": "of the sizes alone: with other sizes the digest no longer counts",
    "routing_bytes": "size of routing.parquet; of a file of another size the digest no longer counts",
}
AGREEMENT = {
    "policy": "the policy that was replayed",
    "budget_bytes": "the recorded budget; of another one the agreement no longer counts",
    "n_lookups": "lookups whose residency is recorded",
    "n_mismatched": "those that the replay answers otherwise",
    "n_passes": "passes of which the engine counted lookups, hits or bytes",
    "n_passes_mismatched": "those where the replay counts otherwise",
    "hits_recorded": "hits among what was compared, as recorded",
    "hits_replayed": "the same, as replayed",
    "first_mismatch": "where they differ first, and what was recorded and replayed there",
    "likely_reason": "what gives the recording instead, as far as it was tried",
}

# Widths that stand for these names in the types of list columns.
_WIDTHS = {1009: "top_k", 1013: "n_expert", 1019: "n_embd"}

_IN_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
}

Rows = list[tuple[str, ...]]


def files_of_a_trace() -> Iterator[tuple[str, str, Rows]]:
    """Give each Parquet file of a trace: its name, what a row is, and its columns."""
    top_k, n_expert, n_embd = _WIDTHS
    yield (
        "routing.parquet",
        "One row for each token at each MoE layer, in the order of pass, layer, step. Without the "
        f"column {', '.join(f'`{name}`' for name in MAY_BE_ABSENT[:-1])} or "
        f"`{MAY_BE_ABSENT[-1]}` it counts as null in every row. Where a layer ran several tokens in a pass, "
        "`wait_ms` and `compute_ms` stand on the last of its rows; traces of schema version 2 and 1 lack "
        "them.",
        _columns(routing_schema(top_k, n_expert, n_embd, layer_times=True), PLACE | ROUTING),
    )
    yield (
        "steps.parquet",
        "One row for each token of each pass. A pass of several tokens has its totals, from `wall_ms` "
        "to `mem_available_bytes`, on its last row; they are null on the others. Traces of schema "
        f"version 2 and 1 lack {', '.join(f'`{name}`' for name in SINCE_VERSION_3)}, and those of "
        "version 1 `kept`.",
        _columns(steps_schema(n_embd), {k: PLACE[k] for k in PLACE if k != "layer"} | STEPS),
    )
    yield (
        "layers.parquet",
        "One row for each layer.",
        _columns(layers_schema(), {"layer": PLACE["layer"]} | LAYERS),
    )


def _columns(schema: pa.Schema, meanings: Mapping[str, str]) -> Rows:
    _check(schema.names, meanings)
    return [
        (
            f"`{each.name}`",
            _type_name(each.type),
            "yes" if each.nullable else "no",
            meanings[each.name],
        )
        for each in schema
    ]


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"list of {_WIDTHS[kind.list_size]} {_type_name(kind.value_type)}"
    if pa.types.is_list(kind):
        return f"list of {_type_name(kind.value_type)}"
    return {"float": "float32", "double": "float64"}.get(str(kind), str(kind))


def trace_json() -> Iterator[tuple[str, Rows]]:
    """Give each object of ``trace.json``: what it is, and its keys."""
    yield "The file holds `schema` and:", _keys(TraceFacts, FACTS)
    yield "`model`:", _keys(ModelFacts, MODEL)
    yield "`engine`:", _keys(EngineFacts, ENGINE)
    yield "`agreement`:", _keys(Agreement, AGREEMENT)
    yield "`digest`:", _keys(KeptDigest, DIGEST)


def _keys(facts: type[Any], meanings: Mapping[str, str]) -> Rows:
    _check([each.name for each in fields(facts)], meanings)
    return [
        (f"`{each.name}`", _json_type(each.type), meanings[each.name]) for each in fields(facts)
    ]


def _json_type(annotation: Any) -> str:
    if isinstance(annotation, UnionType):
        return " or ".join(_json_type(part) for part in get_args(annotation))
    if get_origin(annotation) is list:
        return f"list of {_json_type(*get_args(annotation))}"
    return _IN_WORDS.get(annotation, "object")


def _check(names: list[str], meanings: Mapping[str, str]) -> None:
    if sorted(names) != sorted(meanings):
        differing = sorted(set(names) ^ set(meanings))
        raise ValueError(f"docs/trace_format.py has to explain exactly the columns: {differing}")

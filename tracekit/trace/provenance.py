"""What a trace is: a digest of what it says, and the figures that describe it."""

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.trace.errors import TraceError
from tracekit.trace.schema import DECODE, LAYERS_FILE, MISS, PREFILL, ROUTING_FILE, STEPS_FILE

if TYPE_CHECKING:
    from tracekit.trace.reader import Trace

COLUMNS = (
    "turn",
    "pass",
    "phase",
    "step",
    "layer",
    "experts",
    "weights",
    "residency",
    "dropped",
)


def digest(trace: "Trace") -> str:
    """Return the sha256, as hex digits, of the routings and of the sizes of the experts.

    A file and the trace imported from it have one digest, whatever their encoding. Logits, gate
    inputs and router matrices are left out: they can be larger than memory.
    """
    model = trace.facts.model
    known = trace.layer_columns
    sha = hashlib.sha256()
    sha.update(json.dumps([model.n_layer, model.n_expert, model.top_k]).encode())
    order = np.argsort(known["layer"])
    for name, dtype in (("layer", "<i2"), ("expert_bytes", "<i8")):
        sha.update(known[name][order].astype(dtype).tobytes())
    for name in COLUMNS:
        values = trace.routing([name])[name]
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), np.float32(np.nan), values)
        sha.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
    return sha.hexdigest()


def describe(trace: "Trace") -> dict[str, Any]:
    """Return the figures that describe a trace, as JSON can hold them.

    Sizes are null where the trace does not give the bytes of an expert, recorded rates where it
    carries no residency.

    Parameters
    ----------
    trace : Trace
    """
    model = asdict(trace.facts.model)
    rows = trace.routing(["turn", "pass", "phase"])
    steps = trace.steps(["phase"])["phase"]
    model["moe_layers"] = len(trace.moe_layers)
    return {
        "path": trace.name,
        "source": trace.facts.source,
        "complete": trace.complete,
        "ended": trace.facts.ended,
        "created": trace.facts.created,
        "model": model,
        "engine": None if trace.facts.engine is None else asdict(trace.facts.engine),
        "turns": trace.n_turns,
        "passes": len(np.unique(rows["pass"])),
        "tokens_prefill": int(np.count_nonzero(steps == PREFILL)),
        "tokens_decode": int(np.count_nonzero(steps == DECODE)),
        "routings_prefill": int(np.count_nonzero(rows["phase"] == PREFILL)),
        "routings_decode": int(np.count_nonzero(rows["phase"] == DECODE)),
        **_sizes(trace),
        **recorded_rates(trace),
        "columns": {
            file: [c for c in trace.rows(file).schema.names if trace.rows(file).has_values(c)]
            for file in (ROUTING_FILE, STEPS_FILE, LAYERS_FILE)
        },
        "digest": trace.digest,
        "warnings": trace.warnings,
    }


def _sizes(trace: "Trace") -> dict[str, int | None]:
    names = ("expert_bytes_min", "expert_bytes_max", "bank_bytes", "token_cycle_bytes")
    try:
        sizes = trace.expert_bytes
    except TraceError:  # not given: the figures are unknown, which is what null says
        sizes = np.empty(0, np.int64)
    if len(sizes) == 0:
        return {**dict.fromkeys(names), "budget_bytes": trace.budget_bytes}
    total = int(sizes.sum())
    figures = (int(sizes.min()), int(sizes.max()), total * trace.n_expert, total * trace.top_k)
    return {**dict(zip(names, figures, strict=True)), "budget_bytes": trace.budget_bytes}


def recorded_rates(trace: "Trace") -> dict[str, int | float | None]:
    """Return the lookups and hit rates that the engine recorded, null without residency.

    Each distinct expert of a batch counts once, with the residency its first routing met; a
    dropped routing is no lookup, nor is one of unknown residency.
    """
    if not trace.has("residency"):
        names = ("lookups", "lookups_decode", "hit_rate_cumulative", "hit_rate_decode")
        return {f"recorded_{name}": None for name in names}
    rows = trace.routing(["pass", "phase", "layer", "experts", "residency"])
    looked_up = rows["residency"] != 255
    if trace.has("dropped"):
        looked_up &= trace.routing(["dropped"])["dropped"] != 1
    resident = looked_up & (rows["residency"] != MISS)
    decode = rows["phase"] == DECODE
    lookups_decode = int(np.count_nonzero(looked_up[decode]))
    hits_decode = int(np.count_nonzero(resident[decode]))
    # Of a decoded token every expert is distinct; only a prefill asks for one again.
    row, slot = np.nonzero(looked_up & ~decode[:, None])
    key = rows["pass"][row].astype(np.int64) * trace.n_layer + rows["layer"][row]
    key = key * trace.n_expert + rows["experts"][row, slot]
    first = np.unique(key, return_index=True)[1]
    lookups = lookups_decode + len(first)
    hits = hits_decode + int(np.count_nonzero(resident[row[first], slot[first]]))
    return {
        "recorded_lookups": lookups,
        "recorded_lookups_decode": lookups_decode,
        "recorded_hit_rate_cumulative": hits / lookups if lookups else None,
        "recorded_hit_rate_decode": hits_decode / lookups_decode if lookups_decode else None,
    }

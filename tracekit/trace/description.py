"""The figures that describe a trace, and which trace a result comes from.

In: a trace. Out: dicts that JSON can hold. What the engine's cache found is not counted here: that
takes the rules of lookups, which ``tracekit.routing.residency`` has.
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from tracekit.trace.errors import TraceError
from tracekit.trace.reader import Trace
from tracekit.trace.schema import DECODE, LAYERS_FILE, PREFILL, ROUTING_FILE, STEPS_FILE
from tracekit.version import version


def provenance(trace: Trace) -> dict[str, Any]:
    """Return of which trace a result is, and which version made it, as JSON can hold it."""
    return {
        "tracekit": version(),
        "trace": trace.name,
        "trace_digest": trace.digest,
        "model": trace.facts.model.name,
        "source": trace.facts.source,
        "complete": trace.complete,
    }


def describe(trace: Trace) -> dict[str, Any]:
    """Return the figures that describe a trace, as JSON can hold them.

    Sizes are None where the trace does not give the bytes of an expert.

    Parameters
    ----------
    trace : Trace
    """
    model = asdict(trace.facts.model)
    passes = trace.passes
    phase, kept = trace.steps(["phase"])["phase"], trace.kept
    agreement = trace.facts.current_agreement
    n_decode_passes = int(np.count_nonzero(passes.phase == DECODE))
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
        "passes": len(passes),
        "passes_decode": n_decode_passes,
        "tokens_prefill": int(np.count_nonzero((phase == PREFILL) & kept)),
        "tokens_decode": trace.n_decoded,
        "tokens_cancelled": int(np.count_nonzero((phase == PREFILL) & ~kept)),
        "tokens_rejected": int(np.count_nonzero((phase == DECODE) & ~kept)),
        "routings_prefill": passes.rows_of_phase(PREFILL),
        "routings_decode": passes.rows_of_phase(DECODE),
        **_sizes(trace),
        **_means(trace, n_decode_passes),
        **_of_run(trace),
        "columns": {
            file: [c for c in trace.rows(file).schema.names if trace.rows(file).has_values(c)]
            for file in (ROUTING_FILE, STEPS_FILE, LAYERS_FILE)
        },
        "slot_order": trace.facts.slot_order,
        "inferred": dict(trace.facts.inferred),
        "agreement": None if agreement is None else asdict(agreement),
        "digest": trace.digest,
        "warnings": trace.warnings,
    }


def _sizes(trace: Trace) -> dict[str, int | None]:
    names = ("expert_bytes_min", "expert_bytes_max", "bank_bytes", "token_cycle_bytes")
    try:
        sizes = trace.expert_bytes
    except TraceError:  # a size is not given, so these figures are unknown
        sizes = np.empty(0, np.int64)
    if len(sizes) == 0:
        return {**dict.fromkeys(names), "budget_bytes": trace.budget_bytes}
    total = int(sizes.sum())
    figures = (int(sizes.min()), int(sizes.max()), total * trace.n_expert, total * trace.top_k)
    return {**dict(zip(names, figures, strict=True)), "budget_bytes": trace.budget_bytes}


def _means(trace: Trace, n_passes: int) -> dict[str, float | None]:
    """Return time and bytes of decoding: the mean of a pass, and of a token that stayed.

    Passes of drafted tokens that were rejected are passes too: what they took, the kept tokens took.
    """
    means: dict[str, float | None] = {}
    for name in ("wall_ms", "read_bytes", "cpu_ms", "evict_ms"):
        total = None
        if trace.has_steps(name):
            steps = trace.steps(["phase", name])
            values = steps[name][(steps["phase"] == DECODE) & (steps[name] >= 0)]
            total = float(values.sum()) if len(values) else None
        for kind, count in (("pass", n_passes), ("token", trace.n_decoded)):
            known = total is not None and count
            means[f"{name}_per_{kind}_decode"] = (
                total / count if known and total is not None else None
            )
    return means


def _of_run(trace: Trace) -> dict[str, Any]:
    """Return what is known of the whole run: how long it was, and how it fared with memory."""
    names = ("start_s", "wall_ms", "major_faults", "mem_available_bytes")
    steps = trace.steps([name for name in names if name != "wall_ms" or trace.has_steps(name)])
    begun = np.flatnonzero(steps["start_s"] >= 0)
    available = steps["mem_available_bytes"][steps["mem_available_bytes"] >= 0]
    faults = steps["major_faults"][steps["major_faults"] >= 0]
    seconds = None
    if len(begun) and "wall_ms" in steps:
        last = begun[-1]
        seconds = float(steps["start_s"][last] + np.nan_to_num(steps["wall_ms"][last]) / 1000)
    return {
        "run_s": seconds,
        "mem_available_bytes_min": int(available.min()) if len(available) else None,
        "major_faults": int(faults.sum()) if len(faults) else None,
        "captured": trace.facts.captured,
    }

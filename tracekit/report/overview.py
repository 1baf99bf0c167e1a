"""What the trace is: one line about it, and the names and values of what is known of it."""

import shlex
from collections.abc import Iterator

import numpy as np

from tracekit.figures import joined
from tracekit.report.words import counted, mib
from tracekit.routing.turns import n_decode_passes
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE

SHOWN_PROMPTS = 3
LONGEST_TEXT = 400


def lead(trace: Trace) -> str:
    """Say in one line what was routed."""
    model = trace.facts.model
    passes = n_decode_passes(trace)
    in_passes = [counted(passes, "decode pass", "decode passes")] * (passes != trace.n_decoded)
    parts = [
        counted(trace.n_decoded, "decoded token"),
        *in_passes,
        counted(trace.n_turns, "turn"),
        counted(len(trace.moe_layers), "MoE layer"),
        f"{counted(model.top_k, 'expert')} of {model.n_expert} each",
    ]
    return f"{trace.facts.source.capitalize()}: {', '.join(parts)}."


def facts(trace: Trace) -> list[tuple[str, str]]:
    """List names and values of what is known of the model, the engine, the run and the data."""
    return [*_model(trace), *_engine(trace), *_run(trace), *_data(trace)]


def _model(trace: Trace) -> Iterator[tuple[str, str]]:
    model = trace.facts.model
    yield "Architecture", model.arch
    if model.quantisation:
        yield "Quantisation", model.quantisation
    moe, dense = len(trace.moe_layers), model.n_layer - len(trace.moe_layers)
    with_experts = f"{moe} with experts, {dense} without" if dense else "all with experts"
    yield "Layers", f"{model.n_layer}: {with_experts}"
    yield "Experts", f"{model.n_expert} in a layer, {model.top_k} selected for a token"
    if model.gating:
        yield "Gating", model.gating
    if model.n_group > 1:
        yield "Expert groups", f"{model.n_group}, {model.n_group_used} of them used for a token"
    if sizes_known(trace):
        sizes = trace.expert_bytes
        low, high = mib(int(sizes.min())), mib(int(sizes.max()))
        yield "Size of an expert", low if low == high else f"{low} to {high}, by layer"
        yield "All experts", mib(trace.bank_bytes)
        yield "One token cycle", f"{mib(trace.token_cycle_bytes)} (what one token touches)"


def sizes_known(trace: Trace) -> bool:
    """Say whether the trace knows the size of every layer's experts."""
    columns = trace.layer_columns
    sized = columns["layer"][columns["expert_bytes"] >= 0]
    return bool(np.isin(trace.moe_layers, sized).all())


def _engine(trace: Trace) -> Iterator[tuple[str, str]]:
    engine = trace.facts.engine
    if engine is None:
        return
    yield "Engine", " ".join(filter(None, (engine.name, engine.version)))
    if engine.cache_bytes is not None:
        yield (
            "Recorded cache",
            " ".join(filter(None, (engine.cache_policy, mib(engine.cache_bytes)))),
        )
    if engine.io_threads is not None:
        direct = {True: ", direct I/O", False: ", through the page cache", None: ""}
        yield "Reading", counted(engine.io_threads, "lane") + direct[engine.direct_io]
    if engine.compute_threads is not None:
        yield "Compute threads", str(engine.compute_threads)


def _run(trace: Trace) -> Iterator[tuple[str, str]]:
    facts = trace.facts
    if facts.created:
        yield "Created", facts.created
    if facts.ended:
        yield "Ended by", facts.ended
    for number, prompt in enumerate(facts.prompts[:SHOWN_PROMPTS], 1):
        cut = prompt if len(prompt) <= LONGEST_TEXT else prompt[:LONGEST_TEXT] + " …"
        yield f"Prompt {number}" if len(facts.prompts) > 1 else "Prompt", cut
    if len(facts.prompts) > SHOWN_PROMPTS:
        yield "More prompts", str(len(facts.prompts) - SHOWN_PROMPTS)
    if facts.sampling:
        yield "Sampling", ", ".join(f"{name} {value}" for name, value in facts.sampling.items())
    if facts.seed is not None:
        yield "Seed", str(facts.seed)
    if facts.command:
        yield "Command", shlex.join(facts.command)
    yield from _times(trace)


def _times(trace: Trace) -> Iterator[tuple[str, str]]:
    names = {"wall_ms": "", "io_ms": " reading", "stall_ms": " waiting for reads"}
    columns = [column for column in names if trace.has_steps(column)]
    if "wall_ms" not in columns:
        return
    steps = trace.steps(["phase", *columns])
    decoded = steps["phase"] == DECODE
    medians = [
        f"{np.median(times):,.3g} ms{names[column]}"
        for column in columns
        if len(times := steps[column][decoded & ~np.isnan(steps[column])])
    ]
    if not medians:
        return
    if n_decode_passes(trace) == trace.n_decoded:
        yield "A decoded token", f"{', '.join(medians)} (medians)"
        return
    yield "A decode pass", f"{', '.join(medians)} (medians)"
    total = np.nansum(steps["wall_ms"][decoded])
    yield "A kept token", f"{total / trace.n_decoded:,.3g} ms on average"


def _data(trace: Trace) -> Iterator[tuple[str, str]]:
    yield "Routings", f"{trace.n_rows:,}"
    carried = {
        "weights": "weights",
        "residency": "recorded residency",
        "logits": "router logits",
        "gate_input": "gate inputs",
    }
    has = [words for column, words in carried.items() if trace.has(column)]
    lacks = [words for column, words in carried.items() if not trace.has(column)]
    yield "Carries", joined(["experts", *has])
    if lacks:
        yield "Does not carry", joined(lacks)
    yield "Digest", f"sha256 {trace.digest}"

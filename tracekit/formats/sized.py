"""What the user says of the model of a trace that is one already: ``tracekit import X.trace``.

In: a trace, and options. Out: the same routings, with the sizes, routers and embeddings that the options
give.
"""

from dataclasses import replace
from typing import Any

from tracekit.formats.agreement import check_agrees
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source, check_top_k, layers_of, model_of, no_token_ids
from tracekit.trace import Trace
from tracekit.trace.chunk_tables import with_embeddings
from tracekit.trace.chunks import Seen
from tracekit.trace.layers import ARRAYS
from tracekit.trace.rows import TableRows
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE


def sized(trace: Trace, options: ImportOptions) -> Trace:
    """Return a trace with what the user says of its model.

    Raises
    ------
    TraceError
        What the user says does not agree with the trace.
    UsageError
        Embeddings are asked for, and the tokens have no ids.
    """
    facts = trace.facts
    seen = Seen(trace.top_k, trace.n_rows, layers=set(trace.moe_layers.tolist()))
    source = Source(trace.name, (), model=dict(vars(facts.model)), layers=_rows_of(trace))
    check_agrees(source.name, source.model, seen, options)
    check_top_k(source, seen, options)
    inferred = dict(facts.inferred)
    model = model_of(source, seen, options, facts.model.n_expert, facts.model.n_layer)
    for name in ("n_expert", "n_layer"):
        if getattr(options, f"given_{name}") is not None:
            inferred.pop(name, None)
    layers = layers_of(source, seen, options, model.n_layer, inferred)
    facts = replace(facts, model=model, inferred=inferred)
    routing, steps = trace.rows(ROUTING_FILE), trace.rows(STEPS_FILE)
    if embeddings := options.embeddings_of_model:
        if not trace.has_steps("token"):
            raise no_token_ids(trace.name)
        names = [name for name in steps.schema.names if name != "embedding"]
        steps = TableRows(with_embeddings(steps.read(names), embeddings.rows))
    changed = Trace(
        facts, TableRows(layers), routing, steps, trace.path, trace.warnings, trace.name
    )
    changed.validate()
    return changed


def _rows_of(trace: Trace) -> list[dict[str, Any]]:
    """Return the table of layers as one mapping a layer, its arrays flat."""
    sizes = trace.layer_columns
    rows = []
    for row, layer in enumerate(sizes["layer"].tolist()):
        known = {name: int(sizes[name][row]) for name in ("expert_bytes", "dense_bytes")}
        arrays = {name: trace.layer_array(layer, name) for name in ARRAYS}
        rows.append({"layer": layer, **{n: v for n, v in known.items() if v >= 0}, **arrays})
    return rows

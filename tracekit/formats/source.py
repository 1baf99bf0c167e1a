"""What a reader makes of a file: facts of the run and chunks of its routings; a trace made of both.

In: a `Source`, and what the user said beside it. Out: a trace in memory, or a ``.trace`` on disk.
This module knows no format by name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.ahead import ahead
from tracekit.formats.agreement import check_agrees
from tracekit.formats.options import NOTHING_SAID, ImportOptions
from tracekit.trace import EngineFacts, ModelFacts, Trace, TraceError, TraceFacts, UsageError
from tracekit.trace.checks import Locate
from tracekit.trace.chunk_tables import (
    routing_table,
    schema_of,
    with_embeddings,
    without_null_columns,
)
from tracekit.trace.chunks import Numbered, Routings, Seen, check_alike
from tracekit.trace.layers import layers_table
from tracekit.trace.stream import TraceStream

UNKNOWN = "unknown"
# What a trace can hold where a number is not known yet.
_MOST_EXPERTS, _MOST_LAYERS = 1 << 16, 1 << 15


@dataclass
class Source:
    """A run as its file gives it.

    All but `name` and `chunks` may still be set while `chunks` are read, until the last.

    Attributes
    ----------
    name : str
        What sentences call the file.
    chunks : iterable of Routings
        Whole passes, in the order of turn and pass.
    model : dict
        Fields of `ModelFacts` that the file gives: `name`, `arch`, `n_layer`, `n_expert` …
    layers : sequence of mappings
        As `tracekit.trace.layers.layers_table` takes them; of the layers that the file tells of.
    expert_bytes : int or None
        Size of one expert of every layer that routes, where the file gives one for all.
    engine : EngineFacts or None
    slot_order : {"ranked", "sorted", "unknown"}
        The order of the slots of a routing. If it is not ranked and all weights of a routing are
        known, they rank it.
    inferred : dict
        What the file does not say and its reader inferred; see `TraceFacts.inferred`.
    complete : bool
    warnings : list of str
    prompts : list of str
    notes : dict
        As of `TraceFacts`.
    """

    name: str
    chunks: Iterable[Routings]
    model: dict[str, Any] = field(default_factory=dict)
    layers: Sequence[Mapping[str, Any]] = ()
    expert_bytes: int | None = None
    engine: EngineFacts | None = None
    slot_order: str = UNKNOWN
    inferred: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    warnings: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def cut(self, sentence: str) -> None:
        """Say that the file ends early, in one sentence for the user."""
        self.complete = False
        self.warnings.append(sentence)


def one_after_another(name: str, sources: Sequence[Source]) -> Source:
    """Return several files of one run as one source; the turns of each follow those before.

    Facts and warnings are those of all of them; where two say different things, the first counts.
    """
    if len(sources) == 1:
        sources[0].name = name
        return sources[0]
    joined = Source(name, ())
    for source in reversed(sources):
        joined.model |= source.model

    def chunks() -> Iterator[Routings]:
        first_turn = 0
        carried: dict[str, set[str]] = {}
        for source in sources:
            last = first_turn - 1
            for chunk in source.chunks:
                if len(chunk):
                    carried.setdefault(source.name, chunk.carries())
                    check_alike(carried, source.name)
                moved = replace(chunk, turn=np.asarray(chunk.turn) + first_turn)
                last = max(last, int(moved.turn.max(initial=-1)))
                yield moved
            first_turn = last + 1
            joined.model = {**source.model, **joined.model}
            joined.layers = [*joined.layers, *source.layers]
            joined.expert_bytes = joined.expert_bytes or source.expert_bytes
            joined.inferred = {**source.inferred, **joined.inferred}
            joined.warnings += source.warnings
            joined.prompts += source.prompts
            joined.notes = {**source.notes, **joined.notes}
            joined.complete &= source.complete
            joined.engine = joined.engine or source.engine

    joined.chunks = chunks()
    orders = {source.slot_order for source in sources}
    joined.slot_order = orders.pop() if len(orders) == 1 else UNKNOWN
    return joined


@dataclass(frozen=True)
class Imported:
    """What was written.

    Attributes
    ----------
    facts : TraceFacts
    n_rows : int
        Routings.
    columns : set of str
        The optional columns of ``routing.parquet`` that have a value.
    warnings : list of str
    """

    facts: TraceFacts
    n_rows: int
    columns: set[str]
    warnings: list[str]


def trace_of(source: Source, options: ImportOptions = NOTHING_SAID) -> Trace:
    """Return the trace of a source, in memory.

    Raises
    ------
    TraceError
        The routings are not as a trace has them, or do not agree with the options.
    """
    numbered = Numbered(source.name, rerank=source.slot_order != "ranked")
    routings: list[pa.Table] = []
    steps: list[pa.Table] = []
    starts: list[int] = []
    locates: list[Locate] = []
    schema = None
    for chunk in source.chunks:
        if len(chunk):
            starts.append(numbered.seen.n_rows)
            columns, locate = numbered.add(chunk)
            locates.append(locate)
            if schema is None:
                schema = schema_of(columns)
            routings.append(routing_table(columns, schema))
            steps.append(numbered.steps(columns))
    facts, layers = described(source, numbered.seen, options)
    assert schema is not None  # else `described` refuses

    def locate_any(row: int, slot: int) -> str:
        index = int(np.searchsorted(starts, row, side="right")) - 1
        return locates[index](row - starts[index], slot)

    names = without_null_columns(schema, numbered.seen.columns).names
    all_steps, embeddings = pa.concat_tables(steps), options.embeddings_of_model
    return Trace.from_tables(
        facts,
        layers,
        pa.concat_tables(routings).select(names),
        with_embeddings(all_steps, embeddings.rows) if embeddings else all_steps,
        name=source.name,
        warnings=source.warnings,
        locate=locate_any,
    )


def write_source(
    source: Source,
    path: Path,
    options: ImportOptions = NOTHING_SAID,
    *,
    force: bool = False,
    cache_bytes: int | None = None,
) -> Imported:
    """Write the trace of a source in bounded memory; if it is refused, nothing is left behind.

    Parameters
    ----------
    source : Source
    path : Path
        The ``.trace`` directory to make.
    options : ImportOptions
    force : bool
        Replace the trace that is at `path`.
    cache_bytes : int, optional
        The budget of the engine's cache.

    Raises
    ------
    TraceError
        As for `trace_of`.
    TracekitError
        The trace cannot be written there.
    """
    numbered = Numbered(source.name, rerank=source.slot_order != "ranked")
    widest = TraceFacts(model_of(source, Seen(1), options, _MOST_EXPERTS, _MOST_LAYERS), "imported")
    embeddings = options.embeddings_of_model
    embed = embeddings.rows if embeddings else None
    # `complete` is of the moment when a chunk was read: the next one is read meanwhile.
    read = ((chunk, source.complete) for chunk in source.chunks)
    with TraceStream(path, numbered, widest, force, embed) as stream:
        for chunk, complete in ahead(read):
            stream.add(chunk, complete)
        facts, layers = described(source, numbered.seen, options)
        _check_seen(source.name, numbered.seen, facts.model)
        if cache_bytes is not None:
            facts = facts.with_budget(cache_bytes)
        stream.finish(facts, layers)
    seen = numbered.seen
    return Imported(facts, seen.n_rows, seen.columns, source.warnings)


def described(source: Source, seen: Seen, options: ImportOptions) -> tuple[TraceFacts, pa.Table]:
    """Return the facts and the layers of a source whose chunks were all read.

    Raises
    ------
    TraceError
        There was no routing; or what the file says, what the routings show and what the user says
        do not agree.
    """
    if seen.top_k is None:
        raise TraceError(f"{source.name} holds no routing; record it again.")
    check_agrees(source.name, source.model, seen, options)
    check_top_k(source, seen, options)
    if options.embeddings and "token" not in seen.columns:
        raise no_token_ids(source.name)
    inferred = dict(source.inferred)
    n_expert = max(seen.largest_expert + 1, seen.widths.get("logits", 0), seen.top_k)
    n_layer = max(seen.layers) + 1
    model = model_of(source, seen, options, n_expert, n_layer)
    if seen.widths.get("logits", model.n_expert) != model.n_expert:
        raise TraceError(
            f"{source.name} has the logits of {seen.widths['logits']} experts, but the model has "
            f"{model.n_expert}; correct n_expert."
        )
    if _given("n_expert", source, options) is None and "logits" not in seen.widths:
        inferred["n_expert"] = "the largest expert id + 1"
    if _given("n_layer", source, options) is None:
        inferred["n_layer"] = "the last layer that routed + 1"
    layers = layers_of(source, seen, options, model.n_layer, inferred)
    facts = TraceFacts(
        model=model,
        source="imported",
        engine=source.engine,
        complete=source.complete,
        prompts=source.prompts,
        notes=source.notes,
        slot_order=_slot_order(source, seen),
        inferred=inferred,
    )
    facts.check(source.name)
    return facts, layers


def no_token_ids(name: str) -> UsageError:
    """Return the error that the tokens of a file have no ids, by which embeddings are found."""
    return UsageError(
        f"{name} has no ids of its tokens, by which their embeddings are found; leave out --embeddings."
    )


def _check_seen(name: str, seen: Seen, model: ModelFacts) -> None:
    """Refuse what chunks held that were checked before the model was known."""
    for what, largest, n in (
        ("expert", seen.largest_expert, model.n_expert),
        ("layer", max(seen.layers), model.n_layer),
    ):
        if largest >= n:
            raise TraceError(
                f"{name} has {what} {largest}, but the model has {n} (0 to {n - 1}); correct "
                f"n_{what}."
            )


def _slot_order(source: Source, seen: Seen) -> str:
    if source.slot_order == "ranked" or seen.ranked or seen.top_k == 1:
        return "ranked"
    return "sorted" if seen.ascending else source.slot_order


def _given(name: str, source: Source, options: ImportOptions) -> Any:
    """Return a number of the model as the user, the model's file or the source says it, or None."""
    said = getattr(options, name)
    if said is None and options.model is not None:
        said = getattr(options.model.facts, name)
    return source.model.get(name) if said is None else said


def check_top_k(source: Source, seen: Seen, options: ImportOptions) -> None:
    """Refuse routings that have another number of experts than somebody says.

    Raises
    ------
    TraceError
    """
    top_k = _given("top_k", source, options)
    if top_k is not None and top_k != seen.top_k:
        raise TraceError(
            f"{source.name} has {seen.top_k} experts a routing, not the top_k = {top_k} that is "
            "given for it; correct the one or the other."
        )


def model_of(
    source: Source, seen: Seen, options: ImportOptions, n_expert: int, n_layer: int
) -> ModelFacts:
    """Return the model's facts; `n_expert` and `n_layer` stand where nobody says them."""
    known = dict(source.model)
    if options.model is not None:
        of_file = options.model.facts
        known |= {name: value for name, value in vars(of_file).items() if value is not None}
    for name, inferred in (("n_expert", n_expert), ("n_layer", n_layer)):
        value = _given(name, source, options)
        known[name] = inferred if value is None else value
    known["top_k"] = seen.top_k
    if "gate_input" in seen.widths:
        known["n_embd"] = seen.widths["gate_input"]
    return ModelFacts(**{"name": UNKNOWN, "arch": UNKNOWN, **known})


def layers_of(
    source: Source,
    seen: Seen,
    options: ImportOptions,
    n_layer: int,
    inferred: dict[str, str],
) -> pa.Table:
    """Return the table of all layers of the model, with the sizes that somebody gives."""
    rows: dict[int, dict[str, Any]] = {n: {"layer": n} for n in range(n_layer)}
    for given in (source.layers, options.model.layers if options.model else ()):
        for layer in given:
            number = int(layer["layer"])
            if number >= n_layer:
                raise TraceError(
                    f"{source.name}: a size of layer {number} is given, but the model has {n_layer} "
                    "layers; correct one of them."
                )
            rows[number] |= {name: value for name, value in layer.items() if value is not None}
    for number in seen.layers & rows.keys():
        if source.expert_bytes is not None:
            rows[number].setdefault("expert_bytes", source.expert_bytes)
    if options.model is not None and options.model.estimated is not None:
        inferred["expert_bytes"] = options.model.estimated
    if options.expert_bytes is not None:
        inferred.pop("expert_bytes", None)
        for number in seen.layers & rows.keys():
            rows[number]["expert_bytes"] = options.expert_bytes
    return layers_table(list(rows.values()))

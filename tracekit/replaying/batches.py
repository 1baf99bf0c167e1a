"""From a trace's routings to the batches that a cache accounts in."""

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches
from tracekit.policies.model import Model
from tracekit.trace import Trace, TraceError
from tracekit.trace.schema import DECODE


def build_batches(
    trace: Trace, weights: bool = False, bypass: bool = False, equal_sizes: bool = False
) -> Batches:
    """Group the routings of `trace` into batches: one per pass and layer, in the order they ran.

    Of each batch every distinct expert stands once. A routing recorded as dropped is left out, as
    it was never looked up.

    Parameters
    ----------
    trace : Trace
    weights : bool
        Fill `Batches.weights` too.
    bypass : bool
        `Batches.bypass`.
    equal_sizes : bool
        Take all experts for equal if the trace gives no size of any; see `Batches.sized`.

    Raises
    ------
    TraceError
        There is no MoE layer, a layer's expert size is missing, or the trace is too long for 32-bit
        positions.
    """
    model = model_of(trace, bypass, equal_sizes)
    return batches_of(model, trace.routing(columns_for(trace, weights)))


def model_of(trace: Trace, bypass: bool = False, equal_sizes: bool = False) -> Model:
    """Return what a policy knows of `trace` before its first batch; arguments as for `build_batches`.

    Raises
    ------
    TraceError
        There is no MoE layer, or a layer's expert size is missing.
    """
    if len(trace.moe_layers) == 0:
        raise TraceError(f"{trace.name} has no layer with experts, so there is nothing to replay.")
    sized = not equal_sizes or bool((trace.layer_columns["expert_bytes"] >= 0).any())
    sizes = trace.expert_bytes if sized else np.ones(len(trace.moe_layers), np.int64)
    return Model(
        expert_bytes=sizes,
        layer_ids=trace.moe_layers,
        n_expert=trace.n_expert,
        top_k=trace.top_k,
        sized=sized,
        bypass=bypass,
    )


def columns_for(trace: Trace, weights: bool = False) -> list[str]:
    """Return the columns of the routings that `batches_of` takes."""
    columns = ["turn", "pass", "phase", "step", "layer", "experts"]
    if trace.has("dropped"):
        columns.append("dropped")
    return [*columns, "weights"] if weights else columns


def starts_of_batches(routing: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the row with which each batch begins, int64 [B]."""
    layer, pass_id = routing["layer"], routing["pass"]
    new_batch = np.ones(len(layer), np.bool_)
    new_batch[1:] = (layer[1:] != layer[:-1]) | (pass_id[1:] != pass_id[:-1])
    return np.flatnonzero(new_batch)


def no_batches(model: Model) -> Batches:
    """Return a run of `model` without a batch."""
    scalars = {name: np.empty(0, np.int32) for name in ("turn", "pass", "step", "layer")}
    experts = np.empty((0, model.top_k), np.uint16)
    return batches_of(model, {**scalars, "phase": np.empty(0, np.uint8), "experts": experts})


def batches_of(model: Model, routing: Mapping[str, np.ndarray]) -> Batches:
    """Group routings, those of whole batches, into batches.

    Parameters
    ----------
    model : Model
    routing : mapping of str to numpy.ndarray
        The columns that `columns_for` names, in the order of a trace.

    Raises
    ------
    TraceError
        There are too many lookups for 32-bit positions.
    """
    experts, weights = routing["experts"], routing.get("weights")
    n_rows, width = experts.shape
    n_expert = model.n_expert
    row_start = np.append(starts_of_batches(routing), n_rows)
    most_lookups = int(np.minimum(np.diff(row_start) * width, n_expert).sum())
    if most_lookups > np.iinfo(np.int32).max:
        raise TraceError(
            f"The trace holds {most_lookups} lookups; a replay in memory takes at most "
            "2,147,483,647: replay it from disk."
        )
    moe_layer = np.full(int(model.layer_ids.max(initial=0)) + 1, -1, np.int32)
    moe_layer[model.layer_ids] = np.arange(model.n_layers)

    first_row, last_row = row_start[:-1], row_start[1:] - 1
    batch_layer = moe_layer[routing["layer"][first_row]]
    phase = routing["phase"][first_row]
    keys = np.empty(most_lookups, np.int32)
    admit_rank = np.empty(most_lookups, np.uint16)
    key_weights = np.empty(0 if weights is None else most_lookups, np.float32)
    batch_start = np.zeros(len(row_start), np.int64)
    _fill(
        _read_only(experts),
        _read_only(routing.get("dropped", np.empty((0, width), np.uint8))),
        _read_only(np.empty((0, width), np.float32) if weights is None else weights),
        row_start,
        batch_layer,
        phase == DECODE,
        n_expert,
        keys,
        admit_rank,
        key_weights,
        batch_start,
        np.zeros(n_expert, np.uint16),
        np.full(n_expert, -1, np.int64),
    )
    n_lookups = batch_start[-1]
    return Batches(
        **{field.name: getattr(model, field.name) for field in fields(Model)},
        keys=keys[:n_lookups],
        admit_rank=admit_rank[:n_lookups],
        batch_start=batch_start,
        layer=batch_layer,
        turn=routing["turn"][first_row],
        pass_id=routing["pass"][first_row],
        step=routing["step"][last_row],
        phase=phase,
        weights=None if weights is None else key_weights[:n_lookups],
        rows=experts,
        row_start=row_start,
    )


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a view as of a memory-mapped column, so that the kernel is compiled for one type."""
    view = array.view()
    view.flags.writeable = False
    return view


# Each batch is read twice. Forwards, an expert seen for the first time in it gets the next rank.
# Backwards, the first sight of an expert is its last touch: it takes the last free place of the
# batch. So both orders come out of two linear passes, without sorting. `seen_in` says of each expert
# that it was seen in the forward pass of batch b (2 b), or in the backward one too (2 b + 1).
@kernel
def _fill(
    experts: np.ndarray,
    dropped: np.ndarray,
    weights: np.ndarray,
    row_start: np.ndarray,
    batch_layer: np.ndarray,
    is_decode: np.ndarray,
    n_expert: int,
    keys: np.ndarray,
    admit_rank: np.ndarray,
    key_weights: np.ndarray,
    batch_start: np.ndarray,
    rank: np.ndarray,
    seen_in: np.ndarray,
) -> None:
    stop = np.int64(0)
    for b in range(batch_layer.size):
        start = stop
        for row in range(row_start[b], row_start[b + 1]):
            for slot in range(experts.shape[1]):
                if dropped.size and dropped[row, slot] == 1:
                    continue
                expert = experts[row, slot]
                if seen_in[expert] != 2 * b:
                    seen_in[expert] = 2 * b
                    rank[expert] = stop - start
                    stop += 1
        place = stop
        for row in range(row_start[b + 1] - 1, row_start[b] - 1, -1):
            for slot in range(experts.shape[1] - 1, -1, -1):
                if dropped.size and dropped[row, slot] == 1:
                    continue
                expert = experts[row, slot]
                if seen_in[expert] == 2 * b:
                    seen_in[expert] = 2 * b + 1
                    place -= 1
                    keys[place] = batch_layer[b] * n_expert + expert
                    admit_rank[place] = rank[expert]
                    if key_weights.size:
                        key_weights[place] = weights[row, slot] if is_decode[b] else np.nan
        batch_start[b + 1] = stop

"""A trace of arrays or of a table in memory: what a notebook has at hand.

In: numpy arrays, or a pandas DataFrame. Out: a trace, as of the same arrays or table in a file.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.formats.array_run import ArrayRun
from tracekit.formats.arrays import MemoryArray
from tracekit.formats.from_arrow import ArrowRows
from tracekit.formats.given import Given
from tracekit.formats.names import named
from tracekit.formats.options import AXES, ImportOptions
from tracekit.formats.row_files import read_in_order
from tracekit.formats.source import Source, trace_of
from tracekit.formats.universal_tables import REQUIRED, table_rows
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.build import shown

NAME = "the arrays"
TABLE = "the table"


def from_arrays(
    experts: Any,
    *,
    prompt_lengths: Any = None,
    lengths: Any = None,
    layers: Any = None,
    weights: Any = None,
    logits: Any = None,
    gate_input: Any = None,
    token_ids: Any = None,
    prompt: Any = None,
    passes: Any = None,
    phase: Any = None,
    token: Any = None,
    slot_order: str | None = None,
    model: str | None = None,
    expert_bytes: Any = None,
    expert_mib: float | None = None,
    n_expert: int | None = None,
    n_layer: int | None = None,
    top_k: int | None = None,
    axes: Sequence[str] | None = None,
    chunk: int | None = None,
) -> Trace:
    """Make a trace of the experts that a model selected.

    Parameters
    ----------
    experts : int [tokens, layers, k], list of such arrays, or DataFrame
        The selected experts; a routing of -1 was not there. A list has one array a prompt. A
        DataFrame has a row for each selected expert, with the columns of the CSV form
        (docs/formats.md): `token`, `layer`, `expert`, and where known `prompt`, `slot`, `weight`,
        `phase`, `pass`; then the arrays below are left out.
    prompt_lengths : int [prompts] or int, optional
        How many of the first tokens of each prompt's run are the prompt; the others were
        generated. Without it all tokens count as generated.
    lengths : int [prompts], optional
        Tokens of each run, where `experts` holds several, one after the other.
    layers : int [layers], optional
        The model's own numbers of the layers; without them they count from 0. Layers whose
        routings are all 0 or -1 are dense.
    weights : float [tokens, layers, k], optional
        Routing weights; NaN: unknown. Where `experts` is a list, this and what follows may be one,
        too. What a masked array hides is -1 among experts, and NaN elsewhere.
    logits : float [tokens, layers, n_expert], optional
    gate_input : float [tokens, layers, n_embd], optional
    token_ids, prompt, passes, phase, token : int [tokens], optional
        Of each token: its id, its prompt, its pass, its phase (0 prefill, 1 decode), its position.
    slot_order : {"ranked", "sorted", "unknown"}, optional
        Order of the k slots; `weights` rank them.
    model : str, optional
        Name of the model.
    expert_bytes : int or int [layers], optional
        Bytes of one expert; `expert_mib` gives the same in MiB for all layers.
    n_expert, n_layer, top_k : int, optional
        Experts of a layer (by default the largest id + 1), layers of the model, experts a token.
    axes : sequence of str, optional
        ``("layers", "tokens", "k")``: the order of the axes of the arrays.
    chunk : int, optional
        Most tokens of a prefill pass; by default a prompt is one pass.

    Returns
    -------
    Trace

    Raises
    ------
    UsageError
        An argument is not as it should be.
    TraceError
        The arrays do not fit together, or a value in them is none that a trace can have.
    """
    options = ImportOptions(
        expert_mib=expert_mib,
        n_expert=n_expert,
        n_layer=n_layer,
        top_k=top_k,
        axes=None if axes is None else tuple(axes),
        chunk=chunk,
    )
    given = {
        "prompt_lengths": prompt_lengths,
        "lengths": lengths,
        "layers": layers,
        "weights": weights,
        "logits": logits,
        "gate_input": gate_input,
        "token_ids": token_ids,
        "prompt": prompt,
        "pass": passes,
        "phase": phase,
        "token": token,
        "slot_order": slot_order,
        "model": model,
        "expert_bytes": expert_bytes,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if expert_bytes is not None and expert_mib is not None:
        raise UsageError("expert_bytes and expert_mib both give the size of an expert; give one.")
    if hasattr(experts, "columns"):
        return trace_of(_of_table(experts, given, options), options)
    return trace_of(_of_arrays(experts, given, options), options)


def _of_arrays(experts: Any, given: Mapping[str, Any], options: ImportOptions) -> Source:
    if isinstance(experts, (list, tuple)) and experts and np.ndim(experts[0]) == 3:
        if "lengths" in given:
            raise UsageError("lengths are those of the arrays in the list; leave them out.")
        tokens = 0 if options.axes is None else options.axes.index("tokens")
        lengths = [np.shape(each)[tokens] for each in experts if np.ndim(each) == len(AXES)]
        given = {name: _joined(name, value, tokens) for name, value in given.items()}
        given |= {"lengths": lengths}
        experts = _joined("experts", experts, tokens)
    arrays = {name: _array(name, value) for name, value in {"experts": experts, **given}.items()}
    return ArrayRun(NAME, arrays, Given(), options, "arrays").source()


def _joined(name: str, value: Any, tokens: int) -> Any:
    """Return one array of a list that has an array for each prompt, and all else as it is."""
    if not isinstance(value, (list, tuple)) or not value or np.ndim(value[0]) == 0:
        return value
    arrays = [_array(name, each).whole() for each in value]
    try:
        return np.concatenate(arrays, axis=tokens if arrays[0].ndim == len(AXES) else 0)
    except ValueError as error:
        first = arrays[0].shape
        other = next((each.shape for each in arrays if each.shape[1:] != first[1:]), first)
        raise TraceError(
            f"{name} has an array with the shape {first} and one with {other}; the arrays of all "
            "prompts have the same axes, layers and experts a routing."
        ) from error


def _array(name: str, value: Any) -> MemoryArray:
    try:
        array = np.asarray(_without_mask(name, value))
        if array.dtype == object and array.size:
            raise UsageError(
                f"{name} is an array of Python's objects, not of numbers; give {name}.astype(int) or "
                ".astype(float)."
            )
        return MemoryArray(f"{NAME}, {name}", array)
    except (TypeError, ValueError, TraceError) as error:
        raise UsageError(f"{name} takes an array of numbers, not {shown(value)}.") from error


def _without_mask(name: str, value: Any) -> Any:
    """Return what a masked array says: an expert was not there, or a number is not known."""
    if not np.ma.is_masked(value):
        return value
    if name == "experts" and value.dtype.kind in "iu":
        return value.astype(np.int64).filled(-1)
    if value.dtype.kind == "f":
        return value.filled(np.nan)
    raise UsageError(f"{name} has masked values; give all of them.")


def _of_table(table: Any, given: Mapping[str, Any], options: ImportOptions) -> Source:
    alone = [name for name in given if name != "model"]
    if alone:
        raise UsageError(f"A DataFrame has its own columns; leave {', '.join(alone)} out.")
    names = named([column for column in table.columns if isinstance(column, str)])
    lacking = names.missing(REQUIRED)
    if lacking:
        raise UsageError(
            f"The DataFrame lacks a column for {', '.join(lacking)}; docs/formats.md lists the "
            "columns and their names."
        )
    try:
        rows = pa.Table.from_pandas(table[list(names.found.values())], preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        fault = str(error).splitlines()[0]
        raise UsageError(f"The DataFrame has a column of mixed types ({fault}).") from error
    for at, column in enumerate(rows.columns):
        if pa.types.is_dictionary(column.type):  # of a categorical column
            rows = rows.set_column(at, rows.column_names[at], column.cast(column.type.value_type))
    arrow = ArrowRows(TABLE, names, lambda row: f"{TABLE}, row {row}")
    (source,) = read_in_order([table_rows(TABLE, iter([arrow.rows(rows)]), arrow)], options)
    if "model" in given:
        source.model["name"] = given["model"]
    return source

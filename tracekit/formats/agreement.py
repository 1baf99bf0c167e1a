"""Whether a trace can be of the model whose file the user names.

In: what the trace's file says, what its routings show, and what the model's file says. Out: nothing,
or one sentence about the first thing in which they differ.
"""

from collections.abc import Mapping
from typing import Any

from tracekit.formats.options import ImportOptions
from tracekit.trace.chunks import Seen
from tracekit.trace.errors import TraceError, UsageError

_MEANINGS = {
    "n_expert": "experts in a layer",
    "n_layer": "layers",
    "top_k": "experts a token",
    "n_embd": "values in a gate input",
}


def check_agrees(name: str, said: Mapping[str, Any], seen: Seen, options: ImportOptions) -> None:
    """Compare a trace with the model of ``--model``, if one is named.

    Parameters
    ----------
    name : str
        What sentences call the trace's file.
    said : mapping
        Fields of `ModelFacts` that this file gives.
    seen : Seen
        What all its routings show.
    options : ImportOptions

    Raises
    ------
    UsageError
        A flag says another number than the model's file.
    TraceError
        The trace is of another model.
    """
    if options.model is None:
        return
    facts, model = options.model.facts, options.model.name
    for field, meaning in _MEANINGS.items():
        of_flag = getattr(options, field, None)
        if of_flag is not None and of_flag != getattr(facts, field):
            raise UsageError(
                f"--{field.replace('_', '-')} says {of_flag} {meaning}, and {model} has "
                f"{getattr(facts, field)}; leave the flag out, or name the right model."
            )
    shown = {
        "n_expert": seen.widths.get("logits", said.get("n_expert")),
        "n_layer": said.get("n_layer"),
        "top_k": seen.top_k,
        "n_embd": seen.widths.get("gate_input"),
    }
    for field, value in shown.items():
        expected = getattr(facts, field)
        if value is not None and expected is not None and value != expected:
            raise _other_model(f"{name} has {value} {_MEANINGS[field]}, and {model} has {expected}")
    if seen.largest_expert >= facts.n_expert:
        raise _other_model(
            f"{name} names expert {seen.largest_expert}, and {model} has {facts.n_expert} in a layer"
        )
    if dense := sorted(seen.layers - set(options.model.moe_layers)):
        raise _other_model(
            f"{name} has routings of layer {dense[0]}, and {model} has no experts there"
        )


def _other_model(difference: str) -> TraceError:
    return TraceError(f"{difference}, so the trace is of another model; name the right one.")

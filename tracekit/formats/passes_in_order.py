"""Passes of a file that does not number them, from the order of its rows.

In: turn, phase, step and layer of each routing, in the order of the file. Out: the pass of each, and
their order in a trace. An engine writes its rows as it computes: layer by layer, and within a layer
token by token. So a new pass begins where the layer falls back, or where turn or phase change: a chunk
of a prompt is a pass, and so are the drafted tokens that are verified together.

A file that never has two tokens of one layer in a row shows no passes of several tokens. It is of a
model with one MoE layer, or was stored token by token, or every pass had one token. There each decoded
step is a pass; and one-token passes of a prompt that follow each other are taken as one pass, since
engines evaluate prompts together.
"""

import numpy as np

from tracekit.trace.checks import Arrays
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE, PREFILL


def number_passes(place: Arrays) -> tuple[np.ndarray, np.ndarray | None]:
    """Return passes numbered from 0, and the order that sorts by (pass, layer, step).

    Parameters
    ----------
    place : mapping
        `turn`, `phase`, `step`, `layer`, each [n], in the order of the file.

    Returns
    -------
    passes : int32 [n]
        Of the routings in that order.
    order : int64 [n] or None
        Where each routing stands in the file; None if they are in order already.
    """
    turn, phase, layer = place["turn"], place["phase"], place["layer"].astype(np.int64)
    step = place["step"].astype(np.int64)
    other_run = (np.diff(turn) != 0) | (np.diff(phase) != 0)
    falls_back = np.diff(layer) < 0
    same_layer = np.diff(layer) == 0
    # Of unknown steps nobody can say whether they go back.
    steps_back = same_layer & (np.diff(step) < 0)
    begins = other_run | falls_back | steps_back
    if not (same_layer & ~begins & _between_layers(layer)).any():
        both_decode = (phase[1:] == DECODE) & ~other_run
        begins = np.where(both_decode, np.diff(step) != 0, begins)
        begins &= ~_continues_prompt(place, begins)
    passes = np.concatenate(([0], np.cumsum(begins))).astype(np.int32)
    inside = layer << 32 | (step + 1)
    if not ((np.diff(passes) == 0) & (np.diff(inside) < 0)).any():
        return passes, None
    order = np.lexsort((inside, passes))
    return passes[order], order


def _between_layers(layer: np.ndarray) -> bool:
    """Say whether there are layers to fall back between."""
    return bool((layer != layer[0]).any())


def _continues_prompt(place: Arrays, begins: np.ndarray) -> np.ndarray:
    """Say which passes of one token follow another one in their prompt, bool [n - 1] by row."""
    prompt = (place["phase"][1:] == PREFILL) & (place["phase"][:-1] == PREFILL)
    next_step = np.diff(place["step"].astype(np.int64)) == 1
    continues: np.ndarray = begins & prompt & next_step & (np.diff(place["turn"]) == 0)
    return continues


def steps_within_passes(place: Arrays, passes: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    """Return the steps of the routings in the order of the file, the unknown ones counted.

    A prompt's first token whose step is unknown follows the last step of its turn so far. A layer
    that routes fewer tokens than the first, as the last one often does, has the pass's last tokens.

    Parameters
    ----------
    place : mapping
        As for `number_passes`.
    passes, order
        What `number_passes` returned.
    """
    if (place["step"] >= 0).all():
        return place["step"]
    sorted_place = place if order is None else {n: values[order] for n, values in place.items()}
    steps = sorted_place["step"].copy()
    starts = pass_starts(passes)
    next_step: dict[int, int] = {}
    for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
        turn = int(sorted_place["turn"][start])
        if (steps[start:stop] < 0).any():
            layers = sorted_place["layer"][start:stop]
            _, layer_start, counts = np.unique(layers, return_index=True, return_counts=True)
            in_layer = np.arange(stop - start) - np.repeat(layer_start, counts)
            from_end = np.repeat(counts, counts) - in_layer
            steps[start:stop] = next_step.get(turn, 0) + counts.max() - from_end
        next_step[turn] = int(steps[start:stop].max()) + 1
    if order is None:
        return steps
    in_file = np.empty_like(steps)
    in_file[order] = steps
    return in_file

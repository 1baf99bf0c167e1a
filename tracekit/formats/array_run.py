"""A run as arrays: the selected experts [tokens, layers, k], and what else is known of it.

In: arrays by name, on disk or in memory. Out: the run, block by block: prompts and passes from their
lengths, layers from their numbers or from what the experts show.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.formats.array_columns import check_columns
from tracekit.formats.arrays import Array
from tracekit.formats.given import Given
from tracekit.formats.names import NEITHER, OF_SLOTS, WORDS, named
from tracekit.formats.options import AXES, ImportOptions
from tracekit.formats.source import Source
from tracekit.formats.tokens import (
    ASSUMED_PASSES,
    LayerAxis,
    Padding,
    Tokens,
    idle_layers,
    layer_axis,
    of_requests,
    pass_ends,
    passes_of,
    phases_of,
    routings_of,
)
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.facts import SLOT_ORDERS
from tracekit.trace.schema import DECODE

# Values of a block, over all its arrays: few, so that the writer's thread is not left waiting for it.
BLOCK_VALUES = 1 << 18
NO_PROMPTS = "every token is taken as decoded, since nothing says which belong to a prompt"
# No model has so many; a user has mixed up the axes.
MOST_LIKELY_LAYERS = 256
# Keys of an archive that are not columns, and what they hold.
KEYS = ("layers", "lengths", "prompt_lengths", "logits", "gate_input", "expert_bytes")
_TOO_LARGE = 2**63  # for int64
NUMBERS = ("n_expert", "n_layer", "top_k")
TEXTS = {"model": "name", "arch": "arch"}


class ArrayRun:
    """A run as arrays by name, of which `experts` is one.

    Parameters
    ----------
    name : str
        What sentences call it.
    arrays : mapping
        The experts under any of their names.
    given : Given
        For the sentence that names the flag without which the layers cannot be told.
    options : ImportOptions
    form : str
        What the notes of the trace call the format.

    Raises
    ------
    TraceError
        The experts are no whole numbers with three axes.
    """

    def __init__(
        self,
        name: str,
        arrays: Mapping[str, Array],
        given: Given,
        options: ImportOptions,
        form: str,
    ):
        self._name, self._arrays = name, arrays
        self._given, self._options, self._form = given, options, form
        self._of = named(list(arrays))
        self._experts = arrays[self._of["experts"]]
        if self._experts.dtype.kind not in "iu" or len(self._experts.shape) != len(AXES):
            raise TraceError(
                f"{self._experts.name} is an array of {self._experts.dtype} with the shape "
                f"{self._experts.shape}; experts are whole numbers [tokens, layers, k]: "
                "docs/formats.md has the line that makes them of floats, logits, a mask or one layer."
            )
        axes = options.axes or AXES
        self._axis = {axis: axes.index(axis) for axis in AXES}
        sizes = {axis: self._experts.shape[place] for axis, place in self._axis.items()}
        self._n_tokens, self._n_layers, self._k = (sizes[axis] for axis in AXES)
        if 0 in sizes.values():
            raise TraceError(f"{self._name} holds no routing; record it again.")

    def source(self) -> Source:
        """Say what the run was; the arrays are read as the chunks are.

        Raises
        ------
        TraceError
            An array has another shape than the experts ask for.
        UsageError
            The layers cannot be told without a flag.
        """
        tokens, inferred = self._tokens()
        layers = self._layer_axis(self._ends(tokens))
        source = Source(
            self._name,
            self._chunks(tokens, layers),
            model=self._model(layers),
            layers=self._sizes(layers),
            slot_order=self._slot_order(),
            inferred=inferred,
            notes={"format": self._form},
        )
        if self._n_layers > MOST_LIKELY_LAYERS:
            source.warnings.append(
                f"{self._name} is read as {self._n_layers} layers, as its axes are [tokens, layers, "
                "k]; if the first axis counts the layers, import it with --axes layers,tokens,k."
            )
        return source

    # ---- arrays ----------------------------------------------------------------------------

    def _has(self, key: str) -> bool:
        return key in self._arrays

    def _whole(self, key: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
        values = self._arrays[key].whole()
        if shape is not None and values.shape != shape:
            raise TraceError(
                f"{self._name}: {key} has the shape {values.shape} where {shape} is needed; write "
                "it again."
            )
        return values

    def _integers(self, key: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
        values = self._whole(key, shape)
        if (
            values.dtype.kind == "f"
            and ((np.rint(values) == values) & (np.abs(values) < _TOO_LARGE)).all()
        ):
            values = values.astype(np.int64)
        if values.dtype.kind not in "iub":
            raise TraceError(
                f"{self._name}: {key} holds {values.dtype} values and no whole numbers; write them "
                "as integers."
            )
        if values.dtype == np.uint64 and values.max(initial=0) >= _TOO_LARGE:
            raise TraceError(
                f"{self._name}: {key} holds {values.max()}, which no trace has; correct it."
            )
        return values.astype(np.int64)

    def _column(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a number for each token: texts of prompts and phases stand for one."""
        key = self._of[name]
        if self._arrays[key].dtype.kind != "U" or name not in ("prompt", "phase"):
            return self._integers(key, shape)
        texts, index = np.unique(self._whole(key, shape), return_inverse=True)
        if name == "prompt":
            return index
        numbers = np.array([WORDS[name].get(text.strip().lower(), -1) for text in texts.tolist()])
        if numbers.min() < 0:
            text = texts[numbers.argmin()]
            raise TraceError(f"{self._name}: {key} has {text[:40]!r}, {NEITHER[name]}; correct it.")
        return numbers[index]

    def _text(self, key: str) -> str:
        array = self._arrays[key]
        if array.shape != () or array.dtype.kind != "U":
            raise TraceError(
                f"{self._name}: {key} is an array of {array.dtype}, where a text is due."
            )
        return str(array.whole())

    def _counts(self, key: str) -> np.ndarray:
        values = np.atleast_1d(self._integers(key))
        if values.ndim != 1 or (values < 0).any():
            raise TraceError(f"{self._name}: {key} is no list of lengths; write it again.")
        return values

    # ---- tokens ----------------------------------------------------------------------------

    def _tokens(self) -> tuple[Tokens, dict[str, str]]:
        """Return the place of each token, and what was inferred for it."""
        shape = (self._n_tokens,)
        columns = {
            name: self._column(name, shape)
            for name in ("prompt", "token", "pass", "phase", "token_id", "kept")
            if name in self._of
        }
        lengths = self._lengths(columns)
        prompts, inferred = self._prompts(lengths)
        prompts, lengths = prompts[lengths > 0], lengths[lengths > 0]
        tokens = of_requests(lengths, prompts, self._options.chunk, token=columns.get("token_id"))
        tokens = replace(tokens, kept=columns.get("kept"))
        check_columns(self._name, tokens, columns, self._has("prompt_lengths"))
        if "token" in columns:
            tokens = replace(tokens, step=columns["token"])
        if "pass" in columns:
            inferred.pop("passes", None)
            tokens = replace(tokens, passes=columns["pass"])
        if "phase" in columns:
            inferred.pop("phases", None)
            tokens = replace(tokens, phase=columns["phase"])
            if "pass" not in columns and not self._has("prompt_lengths"):
                passes = passes_of(tokens.turn, tokens.phase, self._options.chunk)
                tokens = replace(tokens, passes=passes)
        elif "pass" in columns and not self._has("prompt_lengths"):
            inferred["phases"] = "passes of several tokens with which a turn begins are its prompt"
            tokens = replace(tokens, phase=phases_of(tokens.turn, tokens.passes))
        elif "token" in columns:
            phase = np.where(tokens.step < prompts[tokens.turn], 0, DECODE)
            tokens = replace(tokens, phase=phase)
        return tokens, inferred

    def _lengths(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return how many tokens each turn has."""
        if self._has("lengths"):
            lengths = self._counts("lengths")
            if int(lengths.sum()) != self._n_tokens:
                raise TraceError(
                    f"{self._name}: lengths add up to {lengths.sum()} tokens, but experts has "
                    f"{self._n_tokens}; correct lengths, or say the order of the axes with --axes."
                )
            return lengths
        if "prompt" in columns:
            turns = columns["prompt"]
            begins = np.flatnonzero(np.diff(turns) != 0) + 1
            return np.diff(np.concatenate(([0], begins, [self._n_tokens])))
        return np.array([self._n_tokens])

    def _prompts(self, lengths: np.ndarray) -> tuple[np.ndarray, dict[str, str]]:
        if not self._has("prompt_lengths"):
            return np.zeros_like(lengths), {"phases": NO_PROMPTS, "passes": ASSUMED_PASSES}
        prompts = self._counts("prompt_lengths")
        if len(prompts) != len(lengths):
            raise TraceError(
                f"{self._name}: prompt_lengths has {len(prompts)} prompts, but there are "
                f"{len(lengths)}; add lengths, the number of tokens of each."
            )
        too_long = (prompts > lengths) & (lengths > 0)
        if too_long.any():
            at = int(too_long.argmax())
            raise TraceError(
                f"{self._name}: the prompt of run {at} has {prompts[at]} tokens, and the run "
                f"{lengths[at]} with it; correct prompt_lengths or lengths."
            )
        return prompts, {"passes": ASSUMED_PASSES}

    # ---- layers and facts ------------------------------------------------------------------

    def _layer_axis(self, ends: list[int]) -> LayerAxis:
        if self._has("layers"):
            numbers = self._integers("layers", (self._n_layers,))
            if (np.diff(numbers) <= 0).any() or (numbers < 0).any():
                raise TraceError(
                    f"{self._name}: layers does not ascend; give the model's own numbers of the "
                    "layers in ascending order."
                )
            kept = self._not_dense(ends)
            return LayerAxis(kept, numbers[kept])
        blocks = self._in_blocks(self._experts, ends)
        return layer_axis(self._given, self._n_layers, self._k, self._options, blocks)

    def _not_dense(self, ends: list[int]) -> np.ndarray:
        """Return the places of the layers whose routings are not all ``0, 0, …``, as dense ones are."""
        places = np.arange(self._n_layers)
        if self._k == 1:
            return places
        first = next(self._in_blocks(self._experts, ends))
        if not (first == 0).all(axis=(0, 2)).any():  # mostly so, and then nothing else is read
            return places
        idle, only_none = idle_layers(self._n_layers, self._in_blocks(self._experts, ends))
        return np.flatnonzero(~idle | only_none)

    def _model(self, layers: LayerAxis) -> dict[str, Any]:
        model: dict[str, Any] = {}
        if layers.n_layer is not None:
            model["n_layer"] = layers.n_layer
        for key in NUMBERS:
            if self._has(key):
                model[key] = int(self._integers(key, ()))
        for key, name in TEXTS.items():
            if self._has(key):
                model[name] = self._text(key)
        return model

    def _slot_order(self) -> str:
        if not self._has("slot_order"):
            return "unknown"
        order = self._text("slot_order")
        if order not in SLOT_ORDERS:
            raise TraceError(
                f"{self._name}: slot_order {order[:40]!r} is none of {', '.join(SLOT_ORDERS)}; "
                "correct it."
            )
        return order

    def _sizes(self, layers: LayerAxis) -> list[dict[str, int]]:
        """Return the sizes of experts: one for all, one a layer of the axis or of the model.

        0 or less: that of the layer is not known.
        """
        if not self._has("expert_bytes"):
            return []
        sizes = self._integers("expert_bytes")
        if sizes.ndim == 0:
            sizes = np.full(self._n_layers, sizes)
        if len(sizes) == self._n_layers:
            found = sizes[layers.kept]
        elif len(sizes) > int(layers.numbers[-1]):
            found = sizes[layers.numbers]
        else:
            raise TraceError(
                f"{self._name}: expert_bytes has {len(sizes)} sizes where {self._n_layers} layers "
                "are; give one for each."
            )
        pairs = zip(layers.numbers.tolist(), found.tolist(), strict=True)
        return [{"layer": layer, "expert_bytes": size} for layer, size in pairs if size > 0]

    # ---- blocks ----------------------------------------------------------------------------

    def _ends(self, tokens: Tokens) -> list[int]:
        each = self._n_layers * self._k
        for key in ("logits", "gate_input"):
            if self._has(key):
                each += self._n_layers * (self._arrays[key].shape or (1,))[-1]
        return pass_ends(tokens, max(1, BLOCK_VALUES // each))

    def _in_blocks(self, array: Array, ends: list[int]) -> Iterator[np.ndarray]:
        """Yield blocks [block, layers, width] of an array whose axes stand as those of experts."""
        others = [axis for axis in (self._options.axes or AXES) if axis != "tokens"]
        for block in array.blocks(self._axis["tokens"], ends):
            yield block if others == ["layers", "k"] else block.swapaxes(1, 2)

    def _beside(self) -> dict[str, Array]:
        """Return the arrays beside the experts that have values for each token and layer."""
        keys = {name: self._of.found.get(name) for name in OF_SLOTS if name != "experts"}
        found = {}
        for name, key in (keys | {"logits": "logits", "gate_input": "gate_input"}).items():
            if key is None or key not in self._arrays:
                continue
            array = found[name] = self._arrays[key]
            wanted = list(self._experts.shape)
            if name not in OF_SLOTS and len(array.shape) == len(AXES):
                wanted[self._axis["k"]] = array.shape[self._axis["k"]]
            if list(array.shape) != wanted or array.dtype.kind not in "fiu":
                raise TraceError(
                    f"{self._name}: {key} is an array of {array.dtype} with the shape "
                    f"{array.shape}, where numbers {tuple(wanted)} are needed, as experts has; "
                    "write it again."
                )
        return found

    def _chunks(self, tokens: Tokens, layers: LayerAxis) -> Iterator[Routings]:
        ends = self._ends(tokens)
        arrays = self._beside()
        blocks = [self._in_blocks(array, ends) for array in (self._experts, *arrays.values())]
        whole = len(layers.kept) == self._n_layers
        start, padding = 0, Padding()
        # Where the last block is followed by nothing, an entry of an archive is whole.
        for end, *of_block in zip(ends, *blocks, strict=True):
            experts, *lists = of_block if whole else (each[:, layers.kept] for each in of_block)
            if start == 0 and _is_mask(experts):
                raise TraceError(
                    f"{self._experts.name} holds only 0 and 1, as a mask of the selected experts does; "
                    "experts are their ids: docs/formats.md has the line that makes them of a mask."
                )
            k = padding.used(experts)
            beside = {
                name: values[..., :k] if name in OF_SLOTS else values
                for name, values in zip(arrays, lists, strict=True)
            }
            part = tokens.between(start, end)
            yield routings_of(part, layers.numbers, experts[..., :k], beside, self._name)
            start = end


def _is_mask(experts: np.ndarray) -> bool:
    """Say whether lists of three or more hold only 0 and 1, so that ids would stand twice."""
    return bool(
        experts.size and experts.shape[-1] > 2 and experts.min() == 0 and experts.max() == 1
    )

"""Router logits that transformers returns (``output_router_logits=True``), saved as arrays, one a layer.

In: arrays [tokens, experts], one for each MoE layer, of a ``.npz`` or safetensors file, or the tuple as
``torch.save`` wrote it. Out: the run, as one prompt. The k largest logits of a token are the experts that it selected, unless the model adds a bias to
the scores or masks groups of experts before it selects: then nobody can tell, and it is refused.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.formats.archives import damaged, opened
from tracekit.formats.arrays import SUFFIX, Npz
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given, missing
from tracekit.formats.options import ImportOptions, ModelSizes
from tracekit.formats.source import Source, one_after_another
from tracekit.formats.tokens import of_requests, pass_ends, routings_of
from tracekit.formats.torch_files import Tensor, TorchFile
from tracekit.model_files.safetensors import Safetensors, Stored
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings

Blocks = Callable[[Sequence[int]], Iterator[np.ndarray]]

# Logits of a block; and of the longest pass, 2 GiB.
BLOCK_VALUES, MOST_VALUES = 4 << 20, 1 << 29
AS_LARGEST = (
    "the k largest logits; a model that adds a bias to the scores or masks groups of experts, as "
    "DeepSeek-V3 does, selected others"
)
IN_ORDER = "they are counted from 0 in the order of the file"
ONE_PROMPT = "all tokens are of one prompt, evaluated in one pass"
KEY = "router_logits"  # of the outputs of transformers
_FLOATS = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}
_NUMBER = re.compile(r"\d{1,5}")
_POSITION = re.compile(r"arr_\d{1,5}")


@dataclass(frozen=True)
class LayerLogits:
    """The logits of one layer.

    Attributes
    ----------
    layer : int or None
        The layer's number, if the array's name says it; else its place is all that is known.
    shape : tuple of int
        Tokens, experts.
    blocks : callable
        Maps ends of blocks along the tokens to blocks of float32.
    """

    layer: int | None
    shape: tuple[int, int]
    blocks: Blocks


@register
class RouterLogits(Format):
    """Reader of router logits of transformers, an array a layer."""

    name = "router-logits"
    summary = "router logits of transformers: .npz, safetensors or .pt, an array a layer"
    told_by = "float arrays of one shape, [tokens, experts], and a number in the name of each"
    lacks = "prompts, generated tokens, sizes"
    needs = ("--top-k",)

    def recognises(self, given: Given) -> bool:
        """Say whether every file has such arrays and no others."""
        return bool(given.files) and all(_layers(file) for file in given.files)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each is one prompt."""
        if options.given_top_k is None:
            raise missing(given, "--top-k K", "how many experts a token selects")
        if options.model is not None:
            _refuse_biased(given, options.model)
        sources = [_source(file, options, options.given_top_k) for file in given.files]
        return one_after_another(given.name, sources)


def _refuse_biased(given: Given, model: ModelSizes) -> None:
    facts = model.facts
    how = None
    if facts.n_group_used < facts.n_group:
        how = f"masks {facts.n_group - facts.n_group_used} of {facts.n_group} groups of experts"
    elif any(layer.get("selection_bias") is not None for layer in model.layers):
        how = "adds a bias to the scores"
    elif model.estimated is not None and facts.gating == "sigmoid":
        # A config.json has no biases; all families with sigmoid scores that are known have them.
        how = "adds a bias to the scores, as its family does,"
    if how is not None:
        raise TraceError(
            f"{given.name} holds router logits, and the model {how} before it selects, so the "
            "largest logits are not what it selected; record it with `tracekit record --backend "
            "transformers`."
        )


def _source(file: File, options: ImportOptions, top_k: int) -> Source:
    layers = _layers(file)
    n_tokens, n_expert = layers[0].shape
    if top_k > n_expert:
        raise TraceError(
            f"{file.path} has logits of {n_expert} experts, of which top_k = {top_k} cannot be "
            "selected; correct top_k."
        )
    numbers, inferred = _numbers(file, layers, options)
    inferred |= {"experts": AS_LARGEST, "passes": ONE_PROMPT}
    tokens = of_requests([n_tokens], [n_tokens], options.chunk)
    longest = min(n_tokens, options.chunk or n_tokens)
    if longest * n_expert * len(layers) > MOST_VALUES:
        raise missing(Given([file]), "--chunk N", f"how its {n_tokens} tokens were split in passes")
    ends = pass_ends(tokens, max(1, BLOCK_VALUES // (n_expert * len(layers))))

    def chunks() -> Iterator[Routings]:
        start = 0
        of_layers = [layer.blocks(ends) for layer in layers]
        for end, *blocks in zip(ends, *of_layers, strict=True):
            logits = np.stack(blocks, axis=1)
            unknown = np.isnan(logits).any(axis=2) | (np.isfinite(logits).sum(axis=2) < top_k)
            if unknown.any():
                token, place = np.argwhere(unknown)[0]
                raise TraceError(
                    f"{file.path}: logits of token {start + token} at layer {numbers[place]} are "
                    "nan or infinite, so what it selected is not known; save the logits again."
                )
            part = tokens.between(start, end)
            experts = largest(logits, top_k)
            yield routings_of(part, numbers, experts, {"logits": logits}, str(file.path))
            start = end

    return Source(
        str(file.path),
        chunks(),
        model={"n_expert": n_expert},
        slot_order="ranked",
        inferred=inferred,
    )


def _numbers(
    file: File, layers: list[LayerLogits], options: ImportOptions
) -> tuple[np.ndarray, dict[str, str]]:
    """Return the model's own number of each layer, and what was inferred for it."""
    said = [layer.layer for layer in layers if layer.layer is not None]
    moe = None if options.model is None else options.model.moe_layers
    if said and (moe is None or set(said) <= set(moe)):
        return np.array(said), {}
    if moe is None:
        return np.arange(len(layers)), {"layers": IN_ORDER}
    if len(moe) != len(layers):
        raise TraceError(
            f"{file.path} has logits of {len(layers)} layers, but the model has {len(moe)} with "
            "experts; give the model that was run."
        )
    return np.array(moe), {}


def largest(logits: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k largest logits, the largest first; of equal ones the lowest id.

    Parameters
    ----------
    logits : float32 [..., n_expert]
        Without NaN, and with k that are finite.
    k : int

    Returns
    -------
    numpy.ndarray
        int32 [..., k]
    """
    n_expert = logits.shape[-1]
    left = logits.reshape(-1, n_expert).copy()
    found = np.empty((len(left), k), np.int32)
    rows = np.arange(len(left))
    # For the few experts of a routing this is faster than to sort.
    for slot in range(k):
        best = left.argmax(axis=1)
        found[:, slot] = best
        left[rows, best] = -np.inf
    return found.reshape(*logits.shape[:-1], k)


# ---- files --------------------------------------------------------------------------------------


def _layers(file: File) -> list[LayerLogits]:
    """Return the logits of a file in the order of the layers; none if it holds something else."""
    if file.torch is not None:
        return _of_torch(file.torch)
    if file.members:
        return _of_npz(file)
    # A safetensors file begins with the length of its header.
    return _of_safetensors(file) if file.head[8:9] == b"{" else []


def _in_order(named: dict[str, LayerLogits]) -> list[LayerLogits]:
    """Return layers by the last number of their names, if each has one and all are of one shape."""
    numbers = [[int(n) for n in _NUMBER.findall(name)][-1:] for name in named]
    shapes = {layer.shape for layer in named.values()}
    if len(shapes) != 1 or len({*map(tuple, numbers)}) < len(named) or [] in numbers:
        return []
    places = [number for (number,) in numbers]
    if min(min(shapes)) < 1 or max(places) >= 1 << 15 or min(shapes)[1] >= 1 << 16:
        return []
    order = sorted(zip(places, named, strict=True))
    # numpy.savez calls arrays that have no names arr_0, arr_1 …
    if all(_POSITION.fullmatch(name) for name in named):
        return [named[name] for _, name in order]
    return [LayerLogits(n, named[name].shape, named[name].blocks) for n, name in order]


def _of_npz(file: File) -> list[LayerLogits]:
    if not all(name.endswith(SUFFIX) and _NUMBER.search(name) for name in file.members):
        return []
    archive = Npz(file.path)
    named = {}
    for name in archive:
        array = archive[name]
        if array.dtype.kind != "f" or len(array.shape) != 2:
            return []

        def blocks(ends: Sequence[int], name: str = name) -> Iterator[np.ndarray]:
            for block in archive[name].blocks(0, ends):
                yield block.astype(np.float32)

        named[name] = LayerLogits(None, (array.shape[0], array.shape[1]), blocks)
    return _in_order(named)


def _of_torch(saved: TorchFile) -> list[LayerLogits]:
    """Return the tensors of a tuple or a list, or of a dict by their names or layers."""
    value = saved.value
    if isinstance(value, dict) and isinstance(value.get(KEY), (list, tuple)):
        value = value[KEY]
    if isinstance(value, (list, tuple)):
        # Where dense layers have None, the place of a tensor is the number of its layer.
        called = "layer_{}" if any(each is None for each in value) else "arr_{}"
        value = {called.format(n): each for n, each in enumerate(value) if each is not None}
    named = {}
    for key, tensor in value.items() if isinstance(value, dict) else ():
        name = f"layer_{key}" if isinstance(key, int) else key
        if not (isinstance(name, str) and isinstance(tensor, Tensor) and len(tensor.shape) == 2):
            return []
        if tensor.is_integer or tensor.kind == "?":
            return []
        shape = tensor.shape[0], tensor.shape[1]
        named[name] = LayerLogits(None, shape, _tensor_blocks(saved, tensor))
    return _in_order(named)


def _tensor_blocks(saved: TorchFile, tensor: Tensor) -> Blocks:
    def blocks(ends: Sequence[int]) -> Iterator[np.ndarray]:
        with saved.reading() as read:
            values = read(tensor).astype(np.float32)
        yield from np.split(values, ends[:-1])

    return blocks


def _of_safetensors(file: File) -> list[LayerLogits]:
    with opened(file.path) as data:
        size = data.seek(0, 2)
        if not 2 <= int.from_bytes(file.head[:8], "little") <= size - 8:
            return []
        tensors = Safetensors(data, size, str(file.path)).tensors
    named = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in _FLOATS or len(tensor.shape) != 2:
            return []
        shape = tensor.shape[0], tensor.shape[1]
        named[name] = LayerLogits(None, shape, _blocks_of(file, tensor))
    return _in_order(named)


def _blocks_of(file: File, tensor: Stored) -> Blocks:
    def blocks(ends: Sequence[int]) -> Iterator[np.ndarray]:
        stored = np.dtype(_FLOATS[tensor.dtype])
        row_bytes = tensor.shape[1] * stored.itemsize
        with opened(file.path) as data, damaged(str(file.path)):
            data.seek(tensor.start)
            start = 0
            for end in ends:
                values = np.frombuffer(data.read((end - start) * row_bytes), stored)
                if tensor.dtype == "BF16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                yield values.reshape(end - start, tensor.shape[1]).astype(np.float32)
                start = end

    return blocks

"""Headers of GGUF files: what is read must be what a second reader, in plain Python, finds there."""

import random
import struct
from pathlib import Path
from typing import Any

import damage
from harness import ChangedError, refusal

from tracekit.trace import TracekitError
from tracekit_engine import binding
from tracekit_engine.model_file import ModelFile

SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32
EXPERTS, LAYERS, WIDTH = 4, 2, 8
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def text_of(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def build(keys: list[tuple[str, int, Any]], tensors: list[tuple[str, tuple[int, ...]]]) -> bytes:
    """Return a file with F32 tensors of zeros."""
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    for key, kind, value in keys:
        out.append(text_of(key) + struct.pack("<I", kind))
        out.append(text_of(value) if kind == STRING else struct.pack(f"<{SIZES[kind]}", value))
    at = 0
    for name, shape in tensors:
        out.append(text_of(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at))
        n_bytes = 4
        for n in shape:
            n_bytes *= n
        at += -(-n_bytes // ALIGNMENT) * ALIGNMENT
    head = b"".join(out)
    return head + bytes(-len(head) % ALIGNMENT) + bytes(at)


def base() -> bytes:
    keys: list[tuple[str, int, Any]] = [
        ("general.architecture", STRING, "qwen3moe"),
        ("general.name", STRING, "tiny"),
        ("qwen3moe.block_count", 4, LAYERS),
        ("qwen3moe.expert_count", 4, EXPERTS),
        ("qwen3moe.expert_used_count", 4, 2),
        ("qwen3moe.embedding_length", 4, WIDTH),
        ("qwen3moe.context_length", 4, 64),
        ("qwen3moe.attention.layer_norm_rms_epsilon", 6, 1e-6),
        ("qwen3moe.rope.freq_base", 6, 10000.0),
    ]
    tensors: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (WIDTH, 3))]
    for layer in range(LAYERS):
        for name in ("gate", "up", "down"):
            tensors.append((f"blk.{layer}.ffn_{name}_exps.weight", (WIDTH, WIDTH, EXPERTS)))
        tensors.append((f"blk.{layer}.ffn_gate_inp.weight", (WIDTH, EXPERTS)))
    return build(keys, tensors)


class _Cursor:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values[0]

    def text(self) -> bytes:
        n = self.take("Q")
        if n > len(self.data) - self.at:
            raise struct.error("a text is longer than the file")
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.take(SIZES[kind])
        inside, n = self.take("I"), self.take("Q")
        if n > len(self.data):
            raise struct.error("an array is longer than the file")
        return [self.value(inside) for _ in range(n)]


def plain(data: bytes) -> tuple[dict[bytes, Any], dict[bytes, tuple[tuple[int, ...], int]]]:
    """Return the keys and the tensors: shape, and where the data begins."""
    cursor = _Cursor(data)
    if cursor.take("4s") != b"GGUF":
        raise struct.error("it is no GGUF file")
    cursor.take("I")
    n_tensors, n_keys = cursor.take("Q"), cursor.take("Q")
    keys = {}
    for _ in range(n_keys):
        key = cursor.text()
        keys[key] = cursor.value(cursor.take("I"))
    tensors = {}
    for _ in range(n_tensors):
        name = cursor.text()
        shape = tuple(cursor.take("Q") for _ in range(cursor.take("I")))
        cursor.take("I")
        tensors[name] = shape, cursor.take("Q")
    align = keys.get(b"general.alignment", ALIGNMENT)
    begin = -(-cursor.at // align) * align
    return keys, {name: (shape, begin + at) for name, (shape, at) in tensors.items()}


def compare(model: ModelFile, data: bytes) -> None:
    """Compare a model with the bytes it was read from.

    Raises
    ------
    ChangedError
    """
    try:
        keys, tensors = plain(data)
    except (struct.error, KeyError) as error:
        raise ChangedError(f"a header was read that cannot be: {error}") from error
    arch = keys[b"general.architecture"]
    for name, found in (("block_count", model.n_layer), ("expert_count", model.n_expert),
                        ("expert_used_count", model.top_k), ("embedding_length", model.n_embd),
                        ("context_length", model.n_ctx_train)):  # fmt: skip
        said = keys.get(arch + b"." + name.encode(), 0)
        if (max(said, default=0) if isinstance(said, list) else said) != found:
            raise ChangedError(f"{name} is {found}, {said!r:.60} stands there")
    if arch.decode("utf-8", "replace") != model.arch.replace("\0", "") and b"\0" not in arch:
        raise ChangedError(f"the architecture is {model.arch!r}, {arch!r} stands there")
    if len(tensors) != len(model.tensors):
        raise ChangedError(f"{len(model.tensors)} tensors were read of {len(tensors)}")
    for (said_shape, start), tensor in zip(tensors.values(), model.tensors.values(), strict=True):
        shape = list(said_shape)
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        found_shape = [*tensor.shape]
        while len(found_shape) > 1 and found_shape[-1] == 1:
            found_shape.pop()
        if found_shape != shape or tensor.start != start:
            raise ChangedError(
                f"{tensor.name} is {tensor.shape} at {tensor.start}, not {shape} at {start}"
            )


class GgufHeaders:
    """Damages the header of a small model."""

    name = "GGUF headers"

    def __init__(self, folder: Path):
        binding.load()
        self._path = folder / "x.gguf"
        self._base = base()
        self._path.write_bytes(self._base)
        compare(ModelFile.open(self._path), self._base)
        self._head = self._base.index(b"blk.1.ffn_gate_inp.weight") + 64

    def check(self, rng: random.Random) -> str:
        data = self._draw(rng)
        self._path.write_bytes(data)
        try:
            model = ModelFile.open(self._path)
        except TracekitError as error:
            return refusal(error)
        compare(model, data)
        return "read"

    def _draw(self, rng: random.Random) -> bytes:
        head, rest = self._base[: self._head], self._base[self._head :]
        if rng.random() < 0.4:
            return damage.damaged_bytes(head, rng) + rest
        data = bytearray(head)
        for _ in range(rng.choice((1, 1, 2))):
            width = rng.choice((1, 4, 8))
            at = rng.randrange(4, len(data) - 8)
            number = rng.choice((*NUMBERS, rng.randrange(1 << 8 * width))) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
        return bytes(data) + rest

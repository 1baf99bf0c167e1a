"""What torch.save writes, written without torch: for tests of the reader that does without it, too."""

import io
import pickle
import struct
import zipfile
from dataclasses import dataclass

import numpy as np

STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


@dataclass
class T:
    """A tensor of an array; `bf16` keeps the upper halves of float32. The others make a wrong one."""

    array: np.ndarray
    bf16: bool = False
    offset: object = 0
    shape: object = None
    stride: object = None
    n_stored: object = None


@dataclass
class Named:
    """A call of a global name: ``Named("os", "system", "ls")``."""

    module: str
    name: str
    argument: object = None


class Saver:
    """Writes a pickle of protocol 2 as torch does, and gathers the storages."""

    def __init__(self, big: bool = False):
        self.out = io.BytesIO()
        self.storages: list[bytes] = []
        self._order = ">" if big else "<"

    def text(self, text: str) -> None:
        data = text.encode()
        self.out.write(b"X" + struct.pack("<I", len(data)) + data)

    def name(self, module: str, name: str) -> None:
        self.out.write(f"c{module}\n{name}\n".encode())

    def save(self, value: object) -> None:
        write = self.out.write
        if value is None:
            write(b"N")
        elif isinstance(value, bool):
            write(b"\x88" if value else b"\x89")
        elif isinstance(value, (int, float, np.integer)):
            plain = float(value) if isinstance(value, float) else int(value)
            write(pickle.dumps(plain, 2)[2:-1])
        elif isinstance(value, str):
            self.text(value)
        elif isinstance(value, dict):
            write(b"}(")
            for key, each in value.items():
                self.save(key)
                self.save(each)
            write(b"u")
        elif isinstance(value, list):
            write(b"](")
            for each in value:
                self.save(each)
            write(b"e")
        elif isinstance(value, tuple):
            write(b"(")
            for each in value:
                self.save(each)
            write(b"t")
        elif isinstance(value, Named):
            self.name(value.module, value.name)
            self.save((value.argument,))
            write(b"R")
        else:
            self.tensor(value)

    def tensor(self, tensor: T) -> None:
        write = self.out.write
        array = np.ascontiguousarray(tensor.array)
        kind = "BFloat16Storage" if tensor.bf16 else STORAGES.get(array.dtype.name)
        if tensor.bf16:
            array_bytes = (array.astype(np.float32).view(np.uint32) >> 16).astype(
                f"{self._order}u2"
            )
        else:
            array_bytes = array.astype(array.dtype.newbyteorder(self._order))
        key = str(len(self.storages))
        self.storages.append(array_bytes.tobytes())
        untyped = kind is None
        self.name("torch._utils", "_rebuild_tensor_v3" if untyped else "_rebuild_tensor_v2")
        write(b"((")
        self.text("storage")
        self.name(*(("torch.storage", "UntypedStorage") if untyped else ("torch", kind)))
        self.text(key)
        self.text("cuda:0")
        n_stored = array.nbytes if untyped else array.size
        self.save(n_stored if tensor.n_stored is None else tensor.n_stored)
        write(b"tQ")
        steps = tuple(step // array.itemsize for step in array.strides)
        self.save(tensor.offset)
        self.save(array.shape if tensor.shape is None else tensor.shape)
        self.save(steps if tensor.stride is None else tensor.stride)
        self.save(False)
        self.name("collections", "OrderedDict")
        write(b")R")
        if untyped:
            self.name("torch", array.dtype.name)
        write(b"tR")


def saved_by_torch(value: object, big: bool = False, top: str = "archive") -> bytes:
    """Return the file that torch.save makes of a value in which tensors are `T`."""
    saver = Saver(big)
    saver.out.write(b"\x80\x02")
    saver.save(value)
    return archive(saver.out.getvalue() + b".", saver.storages, big, top)


def archive(
    pickled: bytes, storages: list[bytes], big: bool = False, top: str = "archive"
) -> bytes:
    """Return the archive of a pickle and its storages."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as out:
        out.writestr(f"{top}/data.pkl", pickled)
        out.writestr(f"{top}/byteorder", "big" if big else "little")
        for key, data in enumerate(storages):
            out.writestr(f"{top}/data/{key}", data)
        out.writestr(f"{top}/version", "3\n")
    return file.getvalue()

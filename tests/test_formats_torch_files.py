"""Files of torch.save without torch: what they hold is read, and nothing in them is run."""

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch_writer
from torch_writer import Named, T, saved_by_torch

from tracekit.formats import open_any, pickles
from tracekit.formats.given import File
from tracekit.formats.torch_files import TorchFile
from tracekit.trace import TraceError


@pytest.fixture
def file(tmp_path):
    def write(content: bytes) -> TorchFile:
        path = tmp_path / "file.pt"
        path.write_bytes(content)
        found = File(path).torch
        assert found is not None
        return found

    return write


@pytest.fixture
def refusal(file):
    def read(content: bytes) -> None:
        found = file(content)
        with found.reading() as read:
            read(found.value)

    def refuse(content: bytes) -> str:
        with pytest.raises(TraceError) as error:
            read(content)
        return str(error.value)

    return refuse


VALUES = np.array([[0, 1, 2], [3, 100, 5]])


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("kind", [*torch_writer.STORAGES, "uint16", "uint32", "uint64"])
def test_a_tensor_of_each_type_is_read(kind, big, file):
    found = file(saved_by_torch({"a": T(VALUES.astype(kind))}, big))
    with found.reading() as read:
        values = read(found.value["a"])
    assert values.dtype == np.dtype(kind)
    assert np.array_equal(values, VALUES.astype(kind))


@pytest.mark.parametrize("big", [False, True])
def test_bfloat16_is_read(big, file):
    values = np.array([1.5, -2.0, 0.0078125], np.float32)
    found = file(saved_by_torch([T(values, bf16=True)], big))
    with found.reading() as read:
        assert np.array_equal(read(found.value[0]), values)


def test_a_part_of_a_storage_is_read(file):
    whole = np.arange(24)
    part = T(whole, offset=2, shape=(3, 2), stride=(6, 1))
    empty = T(whole, shape=(0, 5), stride=(5, 1))
    found = file(saved_by_torch([part, empty]))
    with found.reading() as read:
        assert read(found.value[0]).tolist() == [[2, 3], [8, 9], [14, 15]]
        assert read(found.value[1]).shape == (0, 5)


def test_other_values_are_read(file):
    value = {"a": [1, -5, 300, 1 << 40, 2.5, None, True, "ä"], 3: (1, (2,)), "b": {}, "c": []}
    assert file(saved_by_torch(value)).value == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_is_read(protocol, file):
    value = {"a": [1, 2.5, "x", {"z": (None, False)}] * 3, "b": "x" * 300}
    assert file(torch_writer.archive(pickle.dumps(value, protocol), [])).value == value


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 20},
        {"offset": -1},
        {"shape": (5, 5), "stride": (5, 1)},
        {"shape": (2, 3), "stride": (100, 1)},
        {"shape": (2, 3), "stride": (-1, 1)},
        {"shape": (1 << 61, 1 << 61), "stride": (0, 0)},
        {"shape": (1000, 3), "stride": (0, 1)},
        {"shape": (2,), "stride": (1, 1)},
        {"shape": [2, 3]},
        {"shape": (True, 3)},
        {"shape": (1,) * 40, "stride": (1,) * 40},
        {"n_stored": 1 << 40},
        {"n_stored": -1},
        {"n_stored": "6"},
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(change, refusal):
    assert "is damaged or was not written by torch.save" in refusal(
        saved_by_torch(T(np.arange(6).reshape(2, 3), **change))
    )


class Calls:
    """A pickle of it makes a directory, or whatever else is called."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def stack_global(module: str, name: str) -> bytes:
    texts = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name))
    return b"\x80\x04" + texts + b"\x93)R."


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_call_is_refused_by_name_and_not_made(protocol, tmp_path, refusal):
    made = tmp_path / "made"
    pickled = pickle.dumps({"records": [Calls(os.mkdir, str(made))]}, protocol)
    sentence = refusal(torch_writer.archive(pickled, []))
    # The old text protocol is not one of torch's: its opcodes are refused as such.
    assert ("posix.mkdir" in sentence) == (protocol > 0)
    assert not made.exists()


@pytest.mark.parametrize(
    ("pickled", "name"),
    [
        (b"\x80\x02cos\nsystem\n(X\x02\0\0\0lstR.", "os.system"),
        (b"\x80\x02cbuiltins\neval\n.", "builtins.eval"),
        (b"\x80\x02ctorch.serialization\nload\n.", "torch.serialization.load"),
        (b"\x80\x02ctorch._utils\n_rebuild_parameter\n.", "torch._utils._rebuild_parameter"),
        (b"\x80\x02ccollections\nCounter\n.", "collections.Counter"),
        (stack_global("subprocess", "Popen"), "subprocess.Popen"),
        (b"\x80\x02(ios\nsystem\n.", "os.system"),
        (b"\x80\x02(cos\nsystem\nX\x02\0\0\0lso.", "os.system"),
    ],
)
def test_any_other_name_is_refused(pickled, name, refusal):
    sentence = refusal(torch_writer.archive(pickled, []))
    assert name in sentence
    assert "nothing of it is run" in sentence


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02ctorch\nFloatStorage\n)R.",  # a name that is not called
        b"\x80\x02ctorch\nSize\n)\x81.",  # a new object of a class
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02X\x07\0\0\0storageQ.",
        b"\x80\x02P0\n.",
        b"\x80\x02}ctorch\nSize\nK\x01s.",  # a key that is no text or number
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02R.",
        b"\x80\x02h\x05.",
        b"\x80\x02t.",
        b"\x80\x02",
        b".",
        b"",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02\x8d" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x02X\xff\xff\xff\xffab.",
        b"\x80\x02B\xff\xff\xff\xffab.",
        b"I" + b"9" * 100_000 + b"\n.",
    ],
)
def test_another_pickle_is_refused(pickled, refusal):
    assert "damaged or was not written by torch.save" in refusal(torch_writer.archive(pickled, []))


def test_a_number_in_the_memo_costs_nothing(file):
    """Python's own reader would take gigabytes for this."""
    pickled = b"\x80\x02K\x07r\xff\xff\xff\x7f0j\xff\xff\xff\x7f."
    assert file(torch_writer.archive(pickled, [])).value == 7


def test_lists_without_end_are_refused(refusal, monkeypatch):
    monkeypatch.setattr(pickles, "MOST_CONTAINERS", 1000)
    assert "lists" in refusal(torch_writer.archive(b"\x80\x02(" + b"]" * 2000, []))


def test_a_long_pickle_is_refused(refusal, monkeypatch):
    monkeypatch.setattr(pickles, "MOST_BYTES", 1000)
    assert "has 2003 bytes beside" in refusal(torch_writer.archive(b"\x80\x02(" + b"N" * 2000, []))


def test_tensors_that_share_a_storage_are_not_read_without_end(file):
    """A small file of many references to one large storage."""
    saver = torch_writer.Saver()
    saver.out.write(b"\x80\x02(")
    saver.tensor(T(np.zeros(4 << 20)))
    saver.out.write(b"q\x01" + b"h\x01" * 1000 + b"l.")
    found = file(torch_writer.archive(saver.out.getvalue(), saver.storages))
    with found.reading() as read, pytest.raises(TraceError, match="share a storage"):
        [read(tensor) for tensor in found.value]


def test_compressed_entries_are_refused(refusal):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/data.pkl", b"N" * (1 << 20))
    assert "is compressed or encrypted" in refusal(content.getvalue())


def test_entries_that_claim_more_than_the_file_are_refused(refusal):
    content = saved_by_torch(T(np.arange(50)))
    at = content.rfind(b"PK\x01\x02", 0, content.rfind(b"archive/version"))
    claims = content[: at + 20] + struct.pack("<II", 1 << 30, 1 << 30) + content[at + 28 :]
    assert "claim" in refusal(claims)


def test_two_pickles_or_entries_of_one_name_are_refused(refusal):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as out:
        out.writestr("a/data.pkl", b"N.")
        out.writestr("b/data.pkl", b"N.")
    assert "2 entries that end with /data.pkl" in refusal(content.getvalue())
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as out:
        out.writestr("a/data.pkl", b"N.")
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("a/data.pkl", b"N.")
    assert "two entries of one name" in refusal(content.getvalue())


def test_a_changed_storage_is_refused(refusal):
    content = saved_by_torch(T(np.arange(100)))
    at = content.find(np.int64(50).tobytes())
    assert "is damaged or cut" in refusal(content[:at] + b"\xff" + content[at + 1 :])


OLD = bytes.fromhex("80028a0a6cfc9c46f9206aa85019") + b".\x80\x02M\xe9\x03."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (OLD, "before 1.6"),
        (pickle.dumps(Calls(os.getcwd), 4), "a bare pickle"),
        (saved_by_torch({"weight": T(VALUES)}), "torch.save with a dict with the keys weight"),
        (saved_by_torch({"a": Named("os", "system", "ls")}), "os.system"),
        (saved_by_torch((T(VALUES),)), "torch.save with a tuple"),
    ],
)
def test_a_file_of_no_format_is_told_what_it_is(content, words, tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        open_any(path)
    assert words in str(error.value)

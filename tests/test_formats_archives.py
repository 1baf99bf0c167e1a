"""Archives and arrays of others: nothing is unpickled, and nothing is allocated on a claim alone."""

import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
import runs_of_models as runs
from mutations import SENTENCE, time_limit

from tracekit.formats import arrays, open_any
from tracekit.trace import TraceError, limits

EXPERTS = np.arange(24).reshape(3, 4, 2)


@pytest.fixture
def write(tmp_path):
    def write(content: bytes, name: str = "file"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def header(text: str, version: int = 1) -> bytes:
    """Return the start of a .npy file with `text` as its header."""
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode("latin-1")


def claim(shape: str, descr: str = "<i8") -> bytes:
    return header(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n")


class Shell:
    """Pickles as a call that makes a file."""

    def __reduce__(self):
        return os.system, ("touch /tmp/should-not-be-there",)


REFUSED = {
    "objects": (
        runs.saved(np.save, np.array([Shell()], object)),
        "holds Python objects, which are never unpickled",
    ),
    "a huge shape": (claim("(1000000000, 1000000000, 1000000000)") + b"\0" * 64, "asks for 8000"),
    "another size": (claim("(3, 4, 2)") + b"\0" * 64, "has 64 bytes of values where its shape"),
    "a negative shape": (claim("(-3, -4, 2)") + b"\0" * 192, "its header is not that of an array"),
    "code as a shape": (
        claim("__import__('os').getcwd()") + b"\0" * 64,
        "its header is not that of an array",
    ),
    "a header of gigabytes": (b"\x93NUMPY\x02\0" + b"\xff" * 8, "its header claims"),
    "a version to come": (b"\x93NUMPY\x09\0" + b"\xff" * 8, "does not begin as an array"),
    "an unknown type": (claim("(1, 1, 1)", "<q9"), "its type '<q9' is not known"),
    "records": (
        header("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }"),
        "its header is not that of an array",
    ),
    "dates": (claim("(1, 1, 1)", "<M8[ns]") + b"\0" * 8, "holds datetime64"),
    "a header that is cut": (claim("(3, 4, 2)")[:30], "bytes are missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_array_that_is_none_is_refused_with_one_sentence(case, write):
    content, sentence = REFUSED[case]
    path = write(content)
    with time_limit(5), pytest.raises(TraceError) as error:
        open_any(path)
    assert sentence in str(error.value)
    assert SENTENCE.fullmatch(str(error.value))
    assert not os.path.exists("/tmp/should-not-be-there")


@pytest.mark.parametrize("case", REFUSED)
def test_in_an_archive_too(case, write):
    content, sentence = REFUSED[case]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("experts.npy", content)
    with time_limit(5), pytest.raises(TraceError) as error:
        open_any(write(file.getvalue()))
    assert sentence in str(error.value)
    assert not os.path.exists("/tmp/should-not-be-there")


def test_a_pickle_is_no_trace_and_is_not_run(write):
    path = write(pickle.dumps(Shell()))
    with pytest.raises(TraceError, match="no trace that tracekit knows"):
        open_any(path)
    assert not os.path.exists("/tmp/should-not-be-there")


def test_what_is_read_is_what_was_saved(write):
    for values in (EXPERTS, np.asfortranarray(EXPERTS), EXPERTS.astype(">i4"), EXPERTS[:, :, :1]):
        found = arrays.npy(write(runs.saved(np.save, values)))
        assert found.shape == values.shape
        assert np.array_equal(found.whole(), values)
        for axis in range(3):
            length = values.shape[axis]
            blocks = list(found.blocks(axis, sorted({1, max(1, length - 1), length})))
            assert np.array_equal(np.concatenate(blocks), np.moveaxis(values, axis, 0))


def test_a_damaged_entry_is_found_by_its_checksum(write):
    content = bytearray(runs.saved(experts=EXPERTS))
    at = content.index(EXPERTS.tobytes()[:32]) + 8
    content[at] ^= 1
    with pytest.raises(TraceError, match="Bad CRC-32"):
        open_any(write(bytes(content)))


def test_two_entries_of_one_name_are_refused(write):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("experts.npy", b"a")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("experts.npy", b"b")
    with pytest.raises(TraceError, match="has two entries of one name"):
        open_any(write(file.getvalue()))


def test_an_encrypted_entry_is_refused(write):
    content = bytearray(runs.saved(experts=EXPERTS))
    for magic, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = content.index(magic) + offset
        content[at] |= 1
    with pytest.raises(TraceError, match="encrypted"):
        open_any(write(bytes(content)))


def bomb(n_bytes: int) -> bytes:
    """Return a zip whose entry claims to be an array of `n_bytes` and unpacks to zeros."""
    start = claim(f"({n_bytes // 8}, 1, 1)")
    packer = zlib.compressobj(9, wbits=-15)
    packed, left, crc = packer.compress(start), n_bytes, zlib.crc32(start)
    zeros = bytes(1 << 20)
    while left:
        piece = zeros[: min(left, len(zeros))]
        packed += packer.compress(piece)
        crc = zlib.crc32(piece, crc)
        left -= len(piece)
    packed += packer.flush()
    size = n_bytes + len(start)
    name = b"experts.npy"
    sizes = struct.pack("<IIIHH", crc, len(packed), size, len(name), 0)
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + name
    central = (
        b"PK\x01\x02"
        + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0)
        + sizes
        + struct.pack("<HHHII", 0, 0, 0, 0, 0)
        + name
    )
    at = len(local) + len(packed)
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), at, 0)
    return local + packed + central + end


def test_a_bomb_is_refused_before_it_is_unpacked(write, monkeypatch):
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)
    with time_limit(5), pytest.raises(TraceError, match="made to fill the memory"):
        open_any(write(bomb(32 << 20)))
    packed = gzip.compress(claim("(4194304, 1, 1)") + bytes(32 << 20))
    with time_limit(5), pytest.raises(TraceError, match="made to fill the memory"):
        open_any(write(packed))


def test_nothing_is_left_open_or_on_disk(write, tmp_path):
    run = runs.made()
    for content in (runs.as_npz(run), gzip.compress(runs.as_npz(run, np.savez_compressed))):
        path = write(content)
        before = set(os.listdir("/proc/self/fd"))
        open_any(path)
        assert set(os.listdir("/proc/self/fd")) == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]

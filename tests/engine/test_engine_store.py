"""The expert store: its accounting on invented batches, and the memory it takes and gives back."""

import gc
import mmap
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.trace import TracekitError
from tracekit.trace.schema import HIT, MISS
from tracekit_engine import pages
from tracekit_engine.gguf_header import StoredTensor
from tracekit_engine.lanes import PIECE, Lanes, ReadTimes
from tracekit_engine.memory import FileMemory
from tracekit_engine.pages import PAGE
from tracekit_engine.store import ExpertStore

EXPERTS = 6
SIZES = {0: 100, 2: 130, 3: 100}


class CountingMemory:
    """Notes which slices are occupied, and fails if one is occupied twice."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}

    def occupy(self, start: int, stop: int) -> None:
        assert (start, stop) not in self.held
        self.held[start, stop] = stop - start

    def release(self, start: int, stop: int) -> None:
        del self.held[start, stop]

    def take_over(
        self, start: int, stop: int, donor: "CountingMemory", given: tuple[int, int]
    ) -> None:
        self.occupy(start, stop)
        donor.release(*given)


class CountingLanes:
    def __init__(self) -> None:
        self.bytes = 0

    def read(self, slices: list[tuple[int, int, int]]) -> ReadTimes:
        self.bytes += sum(stop - start for _, start, stop in slices)
        return ReadTimes()


def stacked() -> dict[int, list[StoredTensor]]:
    experts, at = {}, 0
    for layer, size in SIZES.items():
        parts = []
        for share in (size // 2, size - size // 2):
            parts.append(StoredTensor("w", 0, (1, EXPERTS), 0, at, at + share * EXPERTS))
            at += share * EXPERTS
        experts[layer] = parts
    return experts


BATCH = st.lists(
    st.lists(st.integers(0, EXPERTS - 1), min_size=2, max_size=2, unique=True),
    min_size=1,
    max_size=5,
)


@given(st.lists(st.tuples(st.sampled_from(list(SIZES)), BATCH), max_size=30), st.integers(0, 2100))
def test_accounting_is_that_of_a_replay(batches: list[tuple[int, list]], budget: int) -> None:
    memory, lanes = CountingMemory(), CountingLanes()
    store = ExpertStore(stacked(), {0: memory}, lanes, budget)
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    lookups = hits = read = 0
    for layer, tokens in batches:
        residency = store.load(layer, np.array(tokens))
        touched = set()
        for row, token in enumerate(tokens):
            for slot, expert in enumerate(token):
                key = (layer, expert)
                first = key not in touched
                lookups += first
                hits += first and key in cache
                read += 0 if key in cache else SIZES[layer]
                assert residency[row, slot] == (key in cache)
                touched.add(key)
                cache[key] = None
                cache.move_to_end(key)
        for key in list(cache):
            if sum(SIZES[at] for at, _ in cache) <= budget:
                break
            if key not in touched:
                del cache[key]
        held = sum(SIZES[at] for at, _ in cache)
        assert store.resident_bytes == held == sum(memory.held.values())
    totals = store.take_totals()
    assert (totals.lookups, totals.hits, totals.read_bytes) == (lookups, hits, read)
    assert lanes.bytes == read
    assert store.take_totals().lookups == 0


def test_an_expert_whose_read_failed_is_not_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, lanes = CountingMemory(), CountingLanes()
    store = ExpertStore(stacked(), {0: memory}, lanes, 10_000)
    store.load(0, np.array([[0, 1]]))

    def fail(_slices: list) -> ReadTimes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lanes, "read", fail)
        with pytest.raises(KeyboardInterrupt):
            store.load(0, np.array([[1, 2]]))
    assert store.resident_bytes == sum(memory.held.values()) == 2 * SIZES[0]
    assert store.load(0, np.array([[1, 2]])).tolist() == [[HIT, MISS]]
    assert lanes.bytes == 3 * SIZES[0]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    rng = np.random.default_rng(0)
    path.write_bytes(rng.integers(0, 256, 3 * PIECE + 12345, np.uint8).tobytes())
    return path


def replacing_its_mapping(path: Path) -> tuple[FileMemory, mmap.mmap]:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    base = np.frombuffer(mapping, np.uint8).ctypes.data
    return FileMemory(path, base), mapping


def resident_pages(memory: FileMemory) -> int:
    """Count the pages that the kernel has given to the memory, as the kernel reports them."""
    found = 0
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        n_pages = -(-memory.path.stat().st_size // PAGE)
        pagemap.seek(memory.base // PAGE * 8)
        for entry in np.frombuffer(pagemap.read(8 * n_pages), np.uint64):
            found += bool(entry >> np.uint64(63))
    return found


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("direct", [False, True])
def test_slices_are_read_into_their_place(stored: Path, lanes: int, direct: bool) -> None:
    content = stored.read_bytes()
    memory, _mapping = replacing_its_mapping(stored)
    reader = Lanes([stored], {0: memory}, lanes, direct)
    slices = [(10, 20), (PAGE - 1, PAGE + 1), (PIECE // 2, 3 * PIECE), (len(content) - 5,) * 2]
    slices[-1] = (len(content) - 5, len(content))
    times = reader.read([(0, start, stop) for start, stop in slices])
    reader.close()
    for start, stop in slices:
        assert memory.bytes[start:stop] == content[start:stop]
    own = sum(stop - start for start, stop in slices)
    assert times.moved_bytes == own if not direct else times.moved_bytes > own


def test_a_page_is_released_with_the_last_slice_on_it(stored: Path) -> None:
    memory, _mapping = replacing_its_mapping(stored)
    size = 5 * PAGE // 2  # neighbours share every second boundary page
    slices = [(e * size, (e + 1) * size) for e in range(8)]
    assert resident_pages(memory) == 0
    for start, stop in slices:
        memory.occupy(start, stop)
        memory.bytes[start:stop] = b"x" * size
    assert resident_pages(memory) == 8 * size // PAGE
    memory.release(*slices[0])
    assert resident_pages(memory) == 8 * size // PAGE - 2  # the third page is shared
    assert memory.bytes[slices[1][0] : slices[1][1]] == b"x" * size
    for start, stop in slices[1:]:
        memory.release(start, stop)
    assert resident_pages(memory) == 0


@pytest.mark.parametrize("kernel_moves", [True, False])
def test_pages_change_hands(
    stored: Path, kernel_moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_moves:
        monkeypatch.setattr(pages, "move", lambda *_: False)
    memory, _mapping = replacing_its_mapping(stored)
    first, second = (100, 100 + 9 * PAGE), (20 * PAGE + 5, 30 * PAGE)
    memory.occupy(*first)
    memory.bytes[slice(*first)] = b"x" * (first[1] - first[0])
    memory.take_over(*second, memory, first)
    assert resident_pages(memory) == (8 if kernel_moves else 0)
    memory.bytes[slice(*second)] = b"y" * (second[1] - second[0])
    assert resident_pages(memory) == 10
    assert memory.bytes[slice(*second)] == b"y" * (second[1] - second[0])
    assert not any(memory.bytes[slice(*first)])  # pages that moved leave empty ones behind
    memory.release(*second)
    memory.occupy(*first)
    memory.release(*first)
    assert resident_pages(memory) == 0


def test_a_kernel_that_hides_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.can_move(1)
    assert not pages.can_move(1 << 40)

    def denied(*_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", denied)
    assert not pages.can_move(1)


def test_a_file_cut_while_it_is_read(stored: Path) -> None:
    memory, _mapping = replacing_its_mapping(stored)
    reader = Lanes([stored], {0: memory}, 2, direct=False)
    os.truncate(stored, PIECE)
    with pytest.raises(TracekitError, match=r"was cut to 4,194,304 bytes"):
        reader.read([(0, 0, 2 * PIECE)])
    reader.close()


def test_a_read_that_fails(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, _mapping = replacing_its_mapping(stored)
    reader = Lanes([stored], {0: memory}, 3, direct=False)

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(TracekitError, match=r"read of .*weights failed: Input/output error"):
        reader.read([(0, 0, 100), (0, 200, 300), (0, 400, 500)])
    monkeypatch.undo()
    reader.read([(0, 0, 100)])  # the lanes are still there
    reader.close()


def test_a_read_that_is_interrupted(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, _mapping = replacing_its_mapping(stored)
    reader = Lanes([stored], {0: memory}, 2, direct=False)
    really, begun, interrupted = os.preadv, threading.Event(), threading.Event()

    def breaking(file: int, buffers: list, at: int) -> int:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
            interrupted.set()
            raise KeyboardInterrupt
        begun.set()
        assert interrupted.wait(10)
        return really(file, buffers, at)

    monkeypatch.setattr(os, "preadv", breaking)
    with pytest.raises(KeyboardInterrupt):
        reader.read([(0, 0, 100), (0, 200, 300)])
    monkeypatch.undo()
    begun.clear()

    def helper_last(file: int, buffers: list, at: int) -> int:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
        else:
            begun.set()
            time.sleep(0.1)
        return really(file, buffers, at)

    monkeypatch.setattr(os, "preadv", helper_last)
    reader.read([(0, 400, 500), (0, 600, 700)])
    assert memory.bytes[400:500] == stored.read_bytes()[400:500]
    assert memory.bytes[600:700] == stored.read_bytes()[600:700]
    reader.close()


def test_an_error_in_a_helper_is_raised_in_the_caller(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, _mapping = replacing_its_mapping(stored)
    reader = Lanes([stored], {0: memory}, 2, direct=False)
    really, begun = os.preadv, threading.Event()

    def faulty(file: int, buffers: list, at: int) -> int:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
            return really(file, buffers, at)
        begun.set()
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", faulty)
        with pytest.raises(MemoryError):
            reader.read([(0, 0, 100), (0, 200, 300)])
    assert reader.read([(0, 0, 100), (0, 200, 300)]).moved_bytes == 200
    reader.close()


@pytest.mark.slow
def test_a_file_that_cannot_be_opened_leaves_none_open(stored: Path) -> None:
    gc.collect()  # files of earlier tests must not be closed in between
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TracekitError, match="cannot be read: No such file"):
        Lanes([stored, stored.with_name("absent")], {}, 1, direct=False)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_more_lanes_than_threads(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, start = [], threading.Thread.start

    def few(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(TracekitError, match="no more than 3 of 8 I/O threads; give fewer"):
        Lanes([stored], {}, 8, direct=False)
    assert not any(thread.is_alive() for thread in started)

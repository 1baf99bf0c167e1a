"""Ctrl-C: while a model loads, in the middle of a pass, and what a session can do afterwards."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runs import TEXT, lane_threads

from tracekit.trace import Trace
from tracekit_engine import Generation, Options, Session, Streaming, binding, interrupts, record
from tracekit_engine.store import ExpertStore

STREAMED = Options(threads=1, streaming=Streaming(cache_bytes=1 << 20, lanes=2))


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _pythons_own_handler() -> Iterator[None]:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Loads:
    """Counts the loads of expert batches, and presses Ctrl-C in one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.presses: dict[int, int] = {}

    def note(self) -> None:
        self.count += 1
        for _ in range(self.presses.get(self.count, 0)):
            press()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    seen, load = Loads(), ExpertStore.load

    def noting(store: ExpertStore, layer: int, selected: np.ndarray) -> np.ndarray:
        seen.note()
        return load(store, layer, selected)

    monkeypatch.setattr(ExpertStore, "load", noting)
    return seen


def test_a_tolerated_one_is_counted() -> None:
    with interrupts.counted(tolerated=1) as ctrl_c:
        press()
        assert (ctrl_c.count, ctrl_c.must_stop) == (1, False)


def test_one_too_many_is_raised_at_the_end() -> None:
    done = []

    def work() -> None:
        with interrupts.counted() as ctrl_c:
            press()
            done.append(ctrl_c.must_stop)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]


def test_after_one_more_pythons_handler_is_back() -> None:
    def work() -> None:
        with interrupts.counted():
            press()
            press()
            with pytest.raises(KeyboardInterrupt):
                press()
            raise ZeroDivisionError  # takes precedence over the KeyboardInterrupt

    with pytest.raises(ZeroDivisionError):
        work()


def test_an_inner_block_shares_the_outer_count() -> None:
    with interrupts.counted(tolerated=1) as outer:
        with interrupts.counted() as inner:
            press()
        assert inner is outer


def test_an_ignored_one_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.counted() as ctrl_c:
            press()
        assert ctrl_c.count == 0
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("call", [1, 2])  # one installs the handler, the other puts it back
def test_pressed_while_handlers_change(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, install = [], signal.signal

    def pressed(number: int, handler: object) -> object:
        calls.append(handler)
        previous = install(number, handler)
        if len(calls) == call:
            raise KeyboardInterrupt
        return previous

    monkeypatch.setattr(signal, "signal", pressed)
    with pytest.raises(KeyboardInterrupt), interrupts.counted():
        pass
    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt), interrupts.counted() as ctrl_c:
        press()
    assert ctrl_c.count == 1


def test_another_thread_leaves_the_handler_alone() -> None:
    handlers = []

    def work() -> None:
        with interrupts.counted():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def test_a_load_is_ended(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama, came_back = binding.load(), []
    load = llama.llama_model_load_from_file

    def loading(path: bytes, params: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)  # the main thread, which counts it, is not this one
        while params.progress_callback(0.0, None):  # whether to go on
            time.sleep(0.001)
        came_back.append(load(path, params))
        return came_back[-1]

    monkeypatch.setattr(llama, "llama_model_load_from_file", loading)
    with pytest.raises(KeyboardInterrupt):
        Session(model)
    assert came_back == [None]


def test_a_pass_is_ended(model: Path, loads: Loads) -> None:
    with Session(model, STREAMED) as session:
        tokens = session.model.tokenize(TEXT)
        session.evaluate(tokens, want_logits=True)
        expected = session.logits()
        session.evaluate(tokens[:1], want_logits=True)
        loads.presses = {3 + 3 + 2: 1}
        with pytest.raises(KeyboardInterrupt):
            session.evaluate(tokens[:1], want_logits=True)
        assert loads.count == 3 + 3 + 2  # the third layer did not run
        assert session.position == 0
        again = session.evaluate(tokens, want_logits=True)
        assert np.array_equal(session.logits(), expected)
        captured = again.captured
        selected = np.split(captured.experts, np.cumsum([n for _, n in captured.layers])[:-1])
        assert again.store.lookups == sum(len(np.unique(experts)) for experts in selected)


def test_a_session_is_closed_completely(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama = binding.load()
    free = llama.llama_free

    def freeing(context: object) -> None:
        press()
        free(context)

    monkeypatch.setattr(llama, "llama_free", freeing)
    session = Session(model, STREAMED)
    (lane,) = lane_threads()
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert not lane.is_alive()
    with pytest.raises(ValueError, match="the model is closed"):
        _ = session.model.pointer


@pytest.mark.parametrize("times", [1, 2])
def test_a_recording(model: Path, tmp_path: Path, loads: Loads, times: int) -> None:
    out = tmp_path / "run.trace"
    loads.presses = {3 * 20 + 1: times}  # in the first layer of the 21st pass
    generation = Generation(n_decode=100, ignore_eos=True)
    if times == 1:
        done = record(model, ["a"], out, options=STREAMED, generation=generation)
        assert done.ended == "interrupted"
    else:
        with pytest.raises(KeyboardInterrupt):
            record(model, ["a"], out, options=STREAMED, generation=generation)
    trace = Trace.open(out)
    assert trace.complete == (times == 1)
    assert len(trace.steps(["step"])["step"]) == (21 if times == 1 else 20)

"""Cost of recording and speed of streamed reads, at real layer sizes, as ratios within one run.

Run by hand: ``python tests/benchmarks/record_cost.py FOLDER``. Writes a model of 6.3 GB to FOLDER
and removes it. The two sides of a ratio take turns token by token, so that other work of the machine
slows both.

- recording: the time of a token with all columns recorded, over that of the same token in a context
  without callback (all experts resident);
- reads: the speed of the engine's reads in bytes a second, over that of threads that only ``preadv``
  the same slices of the same file into buffers of their own.
"""

import argparse
import mmap
import os
import queue
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import real_size

from tracekit.figures import MIB
from tracekit.trace import ModelFacts, TraceFacts, TraceWriter
from tracekit.trace.schema import DECODE
from tracekit_engine import Options, Session, Streaming, binding
from tracekit_engine.context import make_context
from tracekit_engine.rows import Place, layer_rows, routing_rows, step_rows

PAGE = mmap.PAGESIZE


def recording(path: Path, n_tokens: int) -> float:
    """Return the median time of a recorded token over that of a plain one."""
    llama = binding.load()
    times: dict[str, list[float]] = {"plain": [], "recorded": []}
    options = Options(n_ctx=n_tokens + 1)
    with tempfile.TemporaryDirectory() as folder, Session(path, options) as session:
        no_callback = llama.ggml_backend_sched_eval_callback()
        plain = make_context(session.model, options, session.chunk, no_callback)
        layer = session.plan.layers[0]
        n_expert, n_embd = layer.router_matrix.shape
        model = ModelFacts("m", "qwen3moe", session.model.n_layer, n_expert, layer.top_k, n_embd)
        facts = TraceFacts(model, "recorded")
        sizes = {"top_k": layer.top_k, "n_expert": n_expert, "n_embd": n_embd}
        with TraceWriter(Path(folder) / "cost.trace", facts, **sizes, layer_times=True) as writer:
            writer.write_layers(layer_rows(session))
            began = time.perf_counter()
            for number, token in enumerate(tokens(n_tokens)):
                started = time.perf_counter()
                batch = llama.llama_batch_get_one((llama.llama_token * 1)(token), 1)
                if llama.llama_decode(plain, batch) != 0:
                    raise RuntimeError("llama.cpp cannot evaluate the token")
                between = time.perf_counter()
                evaluated = session.evaluate([token], want_logits=True)
                place, pieces = Place(0, number, DECODE), [session.model.piece(token)]
                writer.write_pass(
                    routing_rows(evaluated, place), step_rows(evaluated, place, pieces, began)
                )
                times["plain"].append(between - started)
                times["recorded"].append(time.perf_counter() - between)
        llama.llama_free(plain)
    medians = {name: 1e3 * statistics.median(values[5:]) for name, values in times.items()}
    ratio = medians["recorded"] / medians["plain"]
    print(
        f"recording: {medians['recorded']:.1f} ms a token recorded, {medians['plain']:.1f} ms "
        f"plain: ratio {ratio:.3f}"
    )
    return ratio


class PlainReaders:
    """Threads that read slices of a file, each into a buffer of its own."""

    def __init__(self, path: Path, count: int, direct: bool):
        self._file = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        self._direct = direct
        self._count = count
        self._work: queue.SimpleQueue[queue.SimpleQueue] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, daemon=True).start()

    def seconds(self, slices: list[tuple[int, int]]) -> float:
        """Return the time it takes to read all slices."""
        waiting: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        for each in slices:
            waiting.put(each)
        started = time.perf_counter()
        for _ in range(self._count):
            self._work.put(waiting)
        for _ in range(self._count):
            self._done.get()
        return time.perf_counter() - started

    def _run(self) -> None:
        buffer = memoryview(mmap.mmap(-1, 4 * MIB))
        while True:
            waiting = self._work.get()
            while True:
                try:
                    start, stop = waiting.get_nowait()
                except queue.Empty:
                    break
                if self._direct:
                    start, stop = start // PAGE * PAGE, -(-stop // PAGE) * PAGE
                os.preadv(self._file, [buffer[: stop - start]], start)
            self._done.put(None)


def reads(path: Path, n_tokens: int, cache_mib: int, lanes: int, direct: bool) -> float:
    """Return the engine's reading speed over that of plain threads.

    The page cache is emptied before each side reads.
    """
    streaming = Streaming(cache_mib * MIB, lanes, direct)
    plain = PlainReaders(path, lanes, direct)
    slices: list[tuple[int, int]] = []
    n_bytes = engine_s = plain_s = 0.0
    with Session(path, Options(n_ctx=n_tokens + 1, streaming=streaming)) as session:
        lanes_read = session.lanes.read

        def read_and_note(pieces: list[tuple[int, int, int]]) -> object:
            slices.extend((start, stop) for _, start, stop in pieces)
            return lanes_read(pieces)

        session.lanes.read = read_and_note
        for token in tokens(n_tokens):
            slices.clear()
            session.lanes.forget_cached()
            totals = session.evaluate([token], want_logits=True).store
            session.lanes.forget_cached()
            engine_s += totals.stall_ms / 1e3
            plain_s += plain.seconds(slices)
            n_bytes += totals.read_bytes
    ratio = plain_s / engine_s
    print(
        f"reads, {lanes} lanes, {'direct' if direct else 'buffered'}: engine "
        f"{n_bytes / engine_s / 1e9:.2f} GB/s, plain {n_bytes / plain_s / 1e9:.2f} GB/s: "
        f"ratio {ratio:.2f} ({n_bytes / n_tokens / MIB:.0f} MiB a token)"
    )
    return ratio


def tokens(count: int) -> list[int]:
    """Return random tokens, the same ones at every call."""
    return np.random.default_rng(0).integers(0, 256, count).tolist()


def main() -> None:
    """Write the model, print the ratios, remove the model."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--layers", type=int, default=18)
    arguments.add_argument("--tokens", type=int, default=60)
    arguments.add_argument("--cache-mib", type=int, default=1000)
    given = arguments.parse_args()
    path = given.folder / "real-size.gguf"
    real_size.write(path, given.layers)
    try:
        recording(path, given.tokens)
        for direct in (True, False):
            reads(path, given.tokens, given.cache_mib, 4, direct)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()

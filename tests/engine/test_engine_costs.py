"""What a recording carries of its passes: when each began, CPU time, faults, memory, evicting."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run as run_command

from tracekit import meter
from tracekit.timing.facts import facts_of_trace
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE, LAYER_TIMES, SINCE_VERSION_3
from tracekit_engine import Capture, Generation, Options, Streaming, record
from tracekit_engine.model_file import ModelFile

GENERATION = Generation(12, ignore_eos=True)


def recorded(model: Path, path: Path, options: Options) -> Trace:
    record(model, ["abcdefgh", "xy"], path, options=options, generation=GENERATION)
    return Trace.open(path)


@pytest.fixture(scope="module")
def streamed(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trace]:
    """A run with a cache of half of the experts and short chunks, on a device of known memory."""
    folder = tmp_path_factory.mktemp("costs")
    memory = folder / "meminfo"
    memory.write_text("MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  3145728 kB\n")
    file = ModelFile.open(tiny_model("qwen3moe"))
    bank = file.n_expert * sum(file.expert_bytes.values())
    options = Options(streaming=Streaming(bank // 2), chunk=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meter, "MEMORY_FILE", str(memory))
        yield recorded(tiny_model("qwen3moe"), folder / "x.trace", options)


def test_what_each_pass_costs(streamed: Trace) -> None:
    trace = streamed
    names = ["pass", "wall_ms", "stall_ms", *SINCE_VERSION_3]
    steps = trace.steps(names)
    last = np.flatnonzero(np.diff(np.append(steps["pass"], steps["pass"][-1] + 1)))
    assert len(last) < len(steps["pass"])
    for name in SINCE_VERSION_3:
        values = steps[name]
        null = np.isnan(values) if values.dtype.kind == "f" else values < 0
        assert np.array_equal(np.flatnonzero(~null), last), name
    start, wall = steps["start_s"][last], steps["wall_ms"][last]
    assert start[0] >= 0
    assert (start[:-1] + wall[:-1] / 1e3 <= start[1:]).all()
    assert steps["cpu_ms"][last].sum() > 0
    evict = steps["evict_ms"][last]
    assert (evict > 0).all()
    assert (evict + steps["stall_ms"][last] < wall).all()


def test_the_times_of_layers_are_those_of_the_pass(streamed: Trace) -> None:
    rows = streamed.routing(["pass", "layer", *LAYER_TIMES])
    of_layer = np.diff(np.append(rows["pass"] * 1000 + rows["layer"], -1)) != 0
    for name in LAYER_TIMES:
        assert np.array_equal(~np.isnan(rows[name]), of_layer)
        assert (rows[name][of_layer] > 0).all()
    steps = streamed.steps(["phase", "wall_ms", "stall_ms", "evict_ms"])
    known = ~np.isnan(steps["wall_ms"])
    waited, computed = (
        np.bincount(rows["pass"][of_layer], rows[name][of_layer]) for name in LAYER_TIMES
    )
    assert (waited + computed < 1.001 * steps["wall_ms"][known]).all()
    # A prompt's first chunk runs no token through the last layer, so that has no row to stand on.
    decoded = steps["phase"][known] == DECODE
    for_experts = (steps["stall_ms"] + steps["evict_ms"])[known]
    assert (waited >= 0.999 * for_experts)[decoded].all()


@pytest.mark.slow
def test_what_was_captured_is_kept(model: Path, tmp_path: Path) -> None:
    for number, (capture, names) in enumerate(
        (
            (Capture(), ["logits", "gate_input", "embedding"]),
            (Capture(gate_inputs=False, embeddings=False), ["logits"]),
            (Capture(False, False, False), []),
        )
    ):
        trace = recorded(model, tmp_path / f"{number}.trace", Options(capture=capture))
        assert trace.facts.captured == names


def test_timing_takes_them_from_the_trace(streamed: Trace) -> None:
    facts = facts_of_trace(streamed)
    assert (facts["ram_mib"], facts["mem_floor_mib"]) == (8192, 3072)
    assert (facts["mode"], facts["lossy"]) == ("serial", False)
    assert facts["captured"] == ("logits", "gate_input", "embedding")


def test_without_streaming_or_memory_figures(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "MEMORY_FILE", str(tmp_path / "absent"))
    trace = recorded(model, tmp_path / "x.trace", Options(capture=Capture(False, False, False)))
    assert not trace.has_steps("evict_ms")
    assert not trace.has_steps("mem_available_bytes")
    assert trace.has_steps("cpu_ms")
    assert (trace.has("compute_ms"), trace.has("wait_ms")) == (True, False)
    done = run_command("info", tmp_path / "x.trace")
    line = next(line for line in done.out.splitlines() if line.startswith("run "))
    assert "memory" not in line
    assert "nothing copied while timed" in line

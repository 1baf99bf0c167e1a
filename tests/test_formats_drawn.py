"""One drawn run in every layout: each is imported to the routing that was drawn."""

import re
from pathlib import Path

import layouts_engines  # noqa: F401  these register the layouts
import layouts_servers  # noqa: F401
import layouts_universal  # noqa: F401
import numpy as np
import pytest
from drawn_run import PREFILL, Drawn, large_run, small_run
from layouts import LAYOUTS, Layout

from tracekit.formats import ImportOptions, import_any, megatron, open_any
from tracekit.formats.given import Given
from tracekit.trace import Trace

PLACES = {"turn": "turn", "pass": "passes", "phase": "phase", "step": "step"}


@pytest.fixture(scope="module")
def small() -> Drawn:
    return small_run()


@pytest.fixture(scope="module")
def large() -> Drawn:
    return large_run()


def check(trace: Trace, run: Drawn, layout: Layout) -> None:
    """Compare a trace with all that the layout holds of the run."""
    token, place = np.nonzero(run.present)
    layer = np.array(run.layers)[place]
    order = np.lexsort((run.step[token], layer, run.passes[token]))
    token, place, layer = token[order], place[order], layer[order]
    rows = trace.routing([*PLACES, "layer", "experts"])
    assert np.array_equal(rows["layer"], layer)
    for name, called in PLACES.items():
        assert np.array_equal(rows[name], getattr(run, called)[token]), name
    assert np.array_equal(rows["experts"], run.experts[token, place])
    assert trace.complete
    assert trace.facts.slot_order == layout.order
    steps = trace.steps(["pass", "step", "token"])
    by_pass = np.lexsort((run.step, run.passes))
    assert np.array_equal(steps["pass"], run.passes[by_pass])
    if "token" in layout.holds:
        assert np.array_equal(steps["token"], run.token[by_pass])
    assert trace.has("weights") == ("weights" in layout.holds)
    if "weights" in layout.holds:
        weights = trace.routing(["weights"])["weights"]
        assert np.allclose(weights, run.weights[token, place], rtol=0, atol=layout.precision)
    for name in ("logits", "gate_input"):
        assert trace.has(name) == (name in layout.holds)
        if name in layout.holds:
            assert np.array_equal(trace.routing([name])[name], getattr(run, name)[token, place])


# Other forms of the same answers, and other names of the same columns, are tried by the slow suite.
OTHER_FORMS = re.compile(r".*, (an array|one)|(csv, names|jsonl, names) [1-9]")
SMALL = [
    pytest.param(name, marks=[pytest.mark.slow] if OTHER_FORMS.fullmatch(name) else [])
    for name in LAYOUTS
]


@pytest.mark.parametrize("name", SMALL)
def test_a_layout_holds_what_was_drawn(name: str, small: Drawn, tmp_path: Path):
    layout = LAYOUTS[name]
    given = layout.write(small, tmp_path)
    trace = open_any(given, options=ImportOptions(**layout.options(small)))
    check(trace, layout.view(small), layout)


@pytest.mark.parametrize("most_bytes", [pytest.param(1, marks=pytest.mark.slow), 600])
def test_a_prompt_that_is_too_large_at_once_is_read_in_parts(
    most_bytes: int, small: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(megatron, "_MOST_BYTES", most_bytes)
    layout = LAYOUTS["megatron, stages told by routers"]
    (folder := tmp_path / "run").mkdir()
    given = layout.write(small, folder)
    import_any(given, tmp_path / "x.trace")
    for trace in (Trace.open(tmp_path / "x.trace"), open_any(given)):
        check(trace, layout.view(small), layout)
    row_bytes = 4 * (small.k + small.n_expert + small.gate_input.shape[2])
    chunks = megatron.Megatron().source(Given.of(given), ImportOptions()).chunks
    rows = [len(chunk) for chunk in chunks if (chunk.phase == PREFILL).any()]
    assert max(rows) <= max(1, most_bytes // row_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_holds_a_large_run(name: str, large: Drawn, tmp_path: Path):
    layout = LAYOUTS[name]
    (folder := tmp_path / "run").mkdir()
    given = layout.write(large, folder)
    import_any(given, tmp_path / "x.trace", ImportOptions(**layout.options(large)))
    check(Trace.open(tmp_path / "x.trace"), layout.view(large), layout)

"""Logs of local engines: every reader gives back the run that was logged."""

from dataclasses import replace

import engine_files
import numpy as np
import pytest
from engine_files import Run, large_run, routings_of, run_of
from format_samples import EXPERTS

from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.trace import Trace, TraceError

# The format of a log, and what it has of a run.
LOGS = {
    "colibri": "",
    "mbolt": "",
    "llama_positions": "",
    "llama_records": "",
    "expert_cache_log": "decoded",
}
PROMPTS = [([40, 24], 30), ([64], 3), ([17], 40)]


@pytest.fixture
def write(tmp_path):
    def write(content: bytes) -> str:
        path = tmp_path / "run.log"
        path.write_bytes(content)
        return path

    return write


def logged(kind: str, run: Run) -> bytes:
    return getattr(engine_files, kind)(run)


# ---- what was logged is what is read ------------------------------------------------------------


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_log_gives_back_the_run(kind, is_pruned, write):
    run = run_of(EXPERTS, [([2, 1], 1), ([2], 1)], (1, 4), 8, is_pruned)
    trace = open_any(write(logged(kind, run)))
    assert routings_of(trace) == expected(kind, run)
    assert trace.complete
    assert trace.facts.slot_order == "ranked"


def expected(kind: str, run: Run) -> list[tuple]:
    """Return the routings of the run as the log has them: it may not tell a chunk of one token."""
    says_phase = kind == "llama_positions"
    passes = tuple(
        each if says_phase or len(each.tokens) > 1 else replace(each, is_prompt=False)
        for each in run.passes
    )
    return replace(run, passes=passes).routings(LOGS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("is_pruned", [False, True])
@pytest.mark.parametrize("gathered", [1, 3000, 1 << 20])
def test_a_log_of_a_large_model_gives_back_the_run(kind, is_pruned, gathered, write, monkeypatch):
    monkeypatch.setattr("tracekit.formats.engine_passes.GATHERED_SLOTS", gathered)
    monkeypatch.setattr("tracekit.formats.lines.PIECE_BYTES", 50_000)
    monkeypatch.setattr("tracekit.formats.records._PIECE", 5_000)
    run = large_run(PROMPTS, is_pruned)
    trace = open_any(write(logged(kind, run)))
    assert routings_of(trace) == run.routings(LOGS[kind])
    assert trace.moe_layers.tolist() == list(range(3, 60))
    assert trace.facts.model.n_layer == 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOGS)
def test_a_long_log_is_imported_as_it_is_opened(kind, write, tmp_path):
    path = write(logged(kind, large_run(PROMPTS * 4)))
    import_any(path, tmp_path / "out.trace")
    assert Trace.open(tmp_path / "out.trace").digest == open_any(path).digest


def test_weights_of_colibri_rank_the_slots(write):
    lines = b"0 0 1 7:0.2500 2:0.7500\n1 0 2 3:0.9000 1:0.1000\n2 0 1 7:nan 2:nan\n3 0 2 1:1.0000 0:0.0000\n"
    rows = open_any(write(lines)).routing(["experts", "weights"])
    assert rows["experts"].tolist() == [[2, 7], [3, 1], [7, 2], [1, 0]]
    assert rows["weights"][:2].tolist() == np.float32([[0.75, 0.25], [0.9, 0.1]]).tolist()
    assert np.isnan(rows["weights"][2]).all()


def test_the_number_of_experts_of_mbolt_is_said(write):
    trace = open_any(write(engine_files.mbolt(run_of(EXPERTS, [([3], 4)], (0, 1), 99))))
    assert trace.facts.model.n_expert == 99
    assert "n_expert" not in trace.facts.inferred


# ---- steps of several prompts -------------------------------------------------------------------


def test_steps_of_prompts_of_one_token_and_of_several(write):
    """Of a longer prompt the tool has no rows; of one of one token it has the step -1."""
    run = run_of(EXPERTS, [([1], 2), ([2], 2)], (1, 4), 8)
    trace = open_any(write(engine_files.llama_steps(run)))
    rows = trace.routing(["turn", "step", "phase", "experts"])
    assert rows["turn"].tolist() == [0] * 6 + [1] * 4
    assert rows["step"].tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1]
    assert rows["phase"].tolist() == [0, 0] + [1] * 8
    assert (rows["experts"] == EXPERTS[[0, 1, 2, 5, 6]].reshape(-1, 2)).all()
    assert "steps" in trace.facts.inferred


@pytest.mark.slow
def test_steps_of_a_large_model(write, monkeypatch):
    monkeypatch.setattr("tracekit.formats.lines.PIECE_BYTES", 50_000)
    run = large_run([([1], 40), ([1], 25), ([1], 60)])
    assert routings_of(open_any(write(engine_files.llama_steps(run)))) == run.routings()


# Lines of an expert-cache log are told by layers that follow each other.
@pytest.mark.parametrize("kind", [kind for kind in LOGS if kind != "expert_cache_log"])
def test_a_model_of_one_layer_has_a_pass_a_call(kind, write):
    run = run_of(EXPERTS[:, :1], [([3], 4)], (2,), 8)
    assert routings_of(open_any(write(logged(kind, run)))) == run.routings()


# ---- cut and broken logs ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOGS)
def test_the_last_pass_is_left_out_if_it_lacks_a_layer(kind, write):
    run = run_of(EXPERTS, [([3], 4)], (0, 1), 8)
    whole = logged(kind, run)
    size = 20 if kind in ("mbolt", "llama_records") else len(whole.splitlines(keepends=True)[-1])
    trace = open_any(write(whole[:-size]))
    assert routings_of(trace) == run.routings(LOGS[kind])[:-2]
    assert not trace.complete
    assert trace.warnings == [
        f"{trace.name} is incomplete: its last pass has 1 of 2 layers, and is left out."
    ]


def test_a_last_line_without_its_end_may_be_half_a_number(write):
    trace = open_any(write(b"-1,1,3,15\n-1,2,4,16\n0,1,3,15\n0,2,4,1"))
    assert routings_of(trace) == [(0, 0, False, 0, 1, (3, 15)), (0, 0, False, 0, 2, (4, 16))]
    assert len(trace.warnings) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            b"-1,1,3,5\n-1,2,4,6\n0,1,3\n",
            "{}, line 3: it has 3 numbers where others have 4; repair",
        ),
        (b"-1,1,3,5\n-1,2,4,6\n0,1,3,x\n", "{}, line 3: 'x' is no whole number; repair the line"),
        (b"0 0 1 3:0.5\n\n1 0 2 3:x\n", "{}, line 3: 'x' is no number; repair the line"),
        (b"0 1 1 3 4\n0 2 1 3 4\n0 3 2\n", "{}, line 3: it names no experts; repair the line"),
        (b"0 1 2 3 4\n0 2 2 3 4\n", "{} has no pass of one token; of others it does not say"),
    ],
)
def test_a_broken_line_is_named(content, sentence, write):
    path = write(content)
    with pytest.raises(TraceError) as error:
        open_any(path)
    assert str(error.value).startswith(sentence.format(path))


def test_an_impossible_record_is_named_by_its_byte(write):
    run = run_of(EXPERTS, [([3], 4)], (0, 1), 8)
    content = bytearray(engine_files.mbolt(run))
    content[12 + 4 : 12 + 8] = (-1).to_bytes(4, "little", signed=True)
    path = write(bytes(content))
    with pytest.raises(TraceError, match="byte 12: a record of layer 0, 3 tokens and -1 experts"):
        open_any(path)


@pytest.mark.parametrize("n_tokens", [1 << 20, (1 << 31) - 1])
def test_a_record_that_claims_more_than_the_file_is_not_read(n_tokens, write):
    run = run_of(EXPERTS, [([3], 4)], (0, 1), 8)
    content = engine_files.mbolt(run) + np.array([0, 2, n_tokens], "<i4").tobytes()
    path = write(content)
    if n_tokens > 1 << 25:
        with pytest.raises(TraceError, match="is impossible"):
            open_any(path)
    else:
        assert open_any(path).warnings == [
            f"{path} is incomplete: its last record is cut off, and left out."
        ]


def test_passes_of_several_tokens_are_left_out_and_counted(write):
    run = run_of(EXPERTS, [([3], 1), ([2], 1)], (0, 1), 8)
    trace = open_any(write(engine_files.expert_cache_log(run)))
    assert trace.routing(["step"])["step"].tolist() == [3, 3, 2, 2]
    assert trace.facts.inferred["prompts"].startswith("2 passes of several tokens are left out")


def test_an_option_is_checked_against_the_log(write):
    path = write(engine_files.colibri(run_of(EXPERTS, [([3], 4)], (0, 1), 8)))
    with pytest.raises(TraceError, match="2 experts a routing, not the top_k = 3"):
        open_any(path, options=ImportOptions(top_k=3))


def test_lines_with_all_experts_of_a_layer_are_recognised(write):
    experts = " ".join(map(str, range(1000)))
    lines = [f"0 {layer} 700 {experts}\n" for layer in (0, 1)]
    lines += [f"1 {layer} 1 7 3\n" for layer in (0, 1)]
    trace = open_any(write("".join(lines).encode()))
    assert routings_of(trace) == [(0, 0, True, 700, layer, (7, 3)) for layer in (0, 1)]

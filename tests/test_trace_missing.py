"""Rows that a trace lacks: it is read, and one sentence names what is missing."""

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cli_helpers import run
from exact_engine import session
from route_trace_files import PREAMBLE, routing, text

from tracekit.formats import open_any
from tracekit.replaying import replay
from tracekit.trace import Trace, synthesize, write_trace
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE

# Three MoE layers, of which the last routes only the last token of a prompt.
SMALL = PREAMBLE.replace("n_layer=3", "n_layer=4") + "# layer=3 expert_bytes=300 dense_bytes=73\n"


def small_turn(number: int, first: int = 0) -> list[str]:
    """Return the rows of a turn of four prompt tokens and two decoded ones, from step `first` on."""
    rows = [
        row for layer in (1, 2) for s in range(4) for row in routing(number, 0, first + s, layer)
    ]
    rows += routing(number, 0, first + 3, 3)
    return rows + [
        row for s in (4, 5) for layer in (1, 2, 3) for row in routing(number, 1, first + s, layer)
    ]


@pytest.fixture
def said(tmp_path):
    """Give a function that opens rows as a file and as a trace, and returns what is said of both."""

    def open_both(rows: list[str], preamble: str = SMALL) -> str | None:
        path = tmp_path / "run.csv"
        path.write_text(text(rows, preamble))
        trace = open_any(path)
        write_trace(trace, tmp_path / "run.trace", force=True)
        again = Trace.open(tmp_path / "run.trace")
        found = []
        for each in (trace, again):
            start = f"{each.name} lacks rows, and figures are of what is left: "
            sentences = [s.removeprefix(start) for s in each.warnings if s.startswith(start)]
            assert len(sentences) <= 1
            found.append(
                sentences[0].removesuffix("; copy or record it again.") if sentences else None
            )
        assert found[0] == found[1]
        assert len(trace.warnings) == (found[0] is not None)
        return found[0]

    return open_both


WHOLE = [*small_turn(0), *small_turn(1), *small_turn(2)]


def without(keep) -> list[str]:
    """Return the rows whose turn, phase, step, layer and slot `keep` accepts."""
    return [row for row in WHOLE if keep(*map(int, row.split(",")[:5]))]


LACKING = {
    "a routing of a prompt": (
        lambda t, p, s, layer, slot: (t, s, layer) != (1, 2, 1),
        "the prompt's routing of step 2 of turn 1 at layer 1 is missing",
    ),
    "the first routing of a prompt": (
        lambda t, p, s, layer, slot: (t, s, layer) != (0, 0, 1),
        "the prompt's routing of step 0 of turn 0 at layer 1 is missing",
    ),
    "several of them": (
        lambda t, p, s, layer, slot: p or s != 1 or (t, layer) not in ((1, 1), (2, 2)),
        "2 routings of prompts are missing, the first that of step 1 of turn 1 at layer 1",
    ),
    "a layer of a prompt": (
        lambda t, p, s, layer, slot: p or (t, layer) != (2, 2),
        "4 routings of prompts are missing, the first that of step 0 of turn 2 at layer 2",
    ),
    "a layer": (
        lambda t, p, s, layer, slot: layer != 2,
        "layer 2 has experts and no routing",
    ),
    "a prompt": (
        lambda t, p, s, layer, slot: p or t != 1,
        "turn 1 begins at step 4, not at 0",
    ),
    "all prompts": (
        lambda t, p, s, layer, slot: p,
        "turn 0 begins at step 4, not at 0 (2 more turns begin late)",
    ),
    "the first tokens of a prompt": (
        lambda t, p, s, layer, slot: t or s > 1,
        "turn 0 begins at step 2, not at 0",
    ),
    "the first turn": (
        lambda t, p, s, layer, slot: t != 0,
        "turn 0 is missing",
    ),
    "a turn": (
        lambda t, p, s, layer, slot: t != 1,
        "turn 1 is missing",
    ),
    "two turns": (
        lambda t, p, s, layer, slot: t == 2,
        "turns 0 to 1 are missing",
    ),
    "a turn and a routing": (
        lambda t, p, s, layer, slot: t != 0 and (t, s, layer) != (1, 2, 1),
        "turn 0 is missing, the prompt's routing of step 2 of turn 1 at layer 1 is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LACKING)
def test_what_is_missing_is_named_once(said, case):
    keep, sentence = LACKING[case]
    rows = without(keep)
    assert len(rows) < len(WHOLE)
    assert said(rows) == sentence


def test_a_turn_number_is_no_size(said):
    rows = small_turn(0) + small_turn(2_000_000_000)
    assert said(rows) == "turns 1 to 1999999999 are missing"


def edit_rows(path: Path, file: str, keep) -> None:
    table = pq.read_table(path / file)
    pq.write_table(table.filter(keep(table)), path / file)


@pytest.fixture
def traced(tmp_path) -> Path:
    """Two turns of a prompt of 3 tokens and 3 decoded ones, 4 layers: passes 0 to 7."""
    path = tmp_path / "run.trace"
    write_trace(synthesize(4, 8, 2, 6, n_turns=2, prefill=3), path)
    return path


def test_a_trace_without_its_first_passes(traced):
    for file in (ROUTING_FILE, STEPS_FILE):
        edit_rows(traced, file, lambda table: pc.greater(table["pass"], 1))
    assert Trace.open(traced).warnings == [
        f"{traced} lacks rows, and figures are of what is left: passes 0 to 1 are missing, turn 0 "
        "begins at step 4, not at 0; copy or record it again."
    ]


def test_a_trace_without_the_routings_of_a_prompt(traced):
    edit_rows(traced, ROUTING_FILE, lambda table: pc.not_equal(table["pass"], 4))
    (warning,) = Trace.open(traced).warnings
    assert (
        "9 routings of prompts are missing, the first that of step 0 of turn 1 at layer 0"
        in warning
    )


def test_it_is_said_once_however_often_it_is_checked(traced):
    edit_rows(traced, ROUTING_FILE, lambda table: pc.not_equal(table["pass"], 4))
    trace = Trace.open(traced)
    trace.validate()
    assert len(trace.warnings) == 1


def test_every_command_says_it_once(traced, tmp_path):
    edit_rows(traced, ROUTING_FILE, lambda table: pc.not_equal(table["pass"], 4))
    for command in (
        ["info", traced],
        ["replay", traced, "--policy", "lru"],
        ["predict", traced, "--predictor", "prev-token"],
        ["plot", "popularity", traced, "-o", tmp_path / "p.csv"],
        ["import", traced, "-o", tmp_path / "copy.trace"],
    ):
        done = run(*command)
        assert (done.code, done.err.count("lacks rows")) == (0, 1), command
    for command in (["info", traced], ["replay", traced, "--policy", "lru"]):
        assert "lacks rows" in run(*command, "--format", "json").out


# ---- what is no fault ---------------------------------------------------------------------------


def test_a_whole_file_says_nothing(said):
    assert said(WHOLE) is None


def test_a_last_layer_without_a_prompts_rows_says_nothing(said):
    """The engine evaluated the prompt but for its last token, and wanted no logits."""
    assert said(without(lambda t, p, s, layer, slot: p or layer != 3)) is None


def test_a_turn_that_goes_on_where_the_last_one_ended_says_nothing(said):
    assert said([*small_turn(0), *small_turn(1, first=6), *small_turn(2, first=12)]) is None


def test_a_turn_that_skips_steps_after_the_last_one_is_named(said):
    rows = [*small_turn(0), *small_turn(1, first=7)]
    assert said(rows) == "turn 1 begins at step 7, not at 0"


def test_a_trace_may_say_why_a_turn_begins_late(said, traced):
    rows = small_turn(0, first=100)
    assert said(rows) == "turn 0 begins at step 100, not at 0"
    why = "# begins_late=the system prompt stood in the cache\n"
    assert said(rows, SMALL + why) is None


def test_a_layer_that_never_runs_after_the_last_one_is_a_draft_head(said):
    head = SMALL.replace("n_layer=4", "n_layer=5") + "# layer=4 expert_bytes=400 dense_bytes=7\n"
    assert said(WHOLE, head) is None


def test_a_cancelled_prompt_may_end_anywhere(said):
    """It was cancelled in the middle of a layer, and begun anew."""
    first = [row for step in range(4) for row in routing(0, 0, step, 1)]
    first += [row for step in range(2) for row in routing(0, 0, step, 2)]
    assert said([*first, *small_turn(0)]) is None
    hole = first[:2] + first[4:]
    assert said([*hole, *small_turn(0)]) == (
        "3 routings of prompts are missing, the first that of step 1 of turn 0 at layer 1"
    )


def test_the_end_of_an_incomplete_trace_is_no_hole(tmp_path):
    path = tmp_path / "cut.csv"
    path.write_text(text(small_turn(0) + small_turn(1)[:14], SMALL))
    (warning,) = open_any(path).warnings
    assert "is incomplete: it is cut off at its end" in warning


@pytest.mark.parametrize("seed", range(20))
def test_sessions_of_an_exact_engine_say_nothing(seed, tmp_path):
    """Chunked prompts, drafted and rejected tokens, cancels, several turns."""
    path = tmp_path / "run.csv"
    path.write_text(session(seed).text)
    assert open_any(path).warnings == []


def test_the_samples_say_nothing(phone_traces):
    found = [
        *(phone_traces / "traces").glob("*.route.csv"),
        *(phone_traces / "traces").glob("*.trace"),
        *(phone_traces / "cases" / f"{n}.route.csv" for n in ("bypass", "cancel", "spec_min")),
        phone_traces / "cases" / "spec.route.csv.gz",
    ]
    assert len(found) == 7
    for path in found:
        assert open_any(path).warnings == []


@pytest.mark.parametrize(
    ("keep", "rate", "named"),
    [
        (lambda fields, number: True, 0.803, None),
        (lambda fields, number: not 600 <= number < 606, 0.803, "routing of step 16 of turn 0 at"),
        (lambda fields, number: fields[1] == b"1", 0.793, "turn 0 begins at step 28, not at 0"),
    ],
    ids=["whole", "six rows", "no prompt"],
)
def test_a_phones_trace_without_rows_is_replayed_with_a_word(
    phone_traces, tmp_path, keep, rate, named
):
    lines = (phone_traces / "traces" / "qwen.route.csv").read_bytes().splitlines(keepends=True)
    head = [line for line in lines if line[:1] in b"#t"]
    kept = [line for n, line in enumerate(lines[len(head) :]) if keep(line.split(b","), n)]
    path = tmp_path / "qwen.route.csv"
    path.write_bytes(b"".join(head + kept))
    result = replay(open_any(path), "lru", cache_mib=4000)
    assert result.rows[0].hit_rate_decode == pytest.approx(rate, abs=5e-4)
    found = [note for note in result.notes if "lacks rows" in note]
    assert len(found) == (named is not None)
    assert named is None or named in found[0]

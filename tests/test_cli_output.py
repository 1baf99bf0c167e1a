"""What commands write: tables, CSV, Parquet, JSON; whole or not at all."""

import json
import os
import threading
import time

import pyarrow.parquet as pq
import pytest
from cli_helpers import run, write_csv

from tracekit import figures, table
from tracekit.cli.console import Console
from tracekit.cli.output import Output, check_free, flat_records, to_csv, written_whole
from tracekit.trace import synthesize, write_trace
from tracekit.trace.errors import TracekitError, UsageError

RESULTS = [
    {"policy": "lru", "params": {}, "cache_bytes": 100, "hit_rate_decode": 0.5, "over": False},
    {
        "policy": "new",
        "params": {"k": 2},
        "cache_bytes": 100,
        "hit_rate_decode": None,
        "validation": {"lookups": 7},
    },
]
LAYERED = [
    {"policy": "lru", "cache_bytes": 9, "hits": 3, "layers": [{"layer": 0, "hits": 1}]},
    {"policy": "bound", "cache_bytes": 9, "hits": 4, "layers": None},
]


def everything(destination, results=RESULTS):
    destination.write(
        table=lambda: "a table",
        document=lambda: {"schema": "x/1", "results": results},
        records=lambda: flat_records(results, ["policy", "cache_bytes"]),
    )


def test_columns_align_and_nulls_are_dashes():
    columns = [
        table.Column("policy", lambda r: r["policy"], left=True),
        table.Column("hit rate\n%", lambda r: figures.percent(r["rate"])),
        table.Column("read\nMiB", lambda r: figures.mib(r["bytes"])),
    ]
    rows = [
        {"policy": "lru", "rate": 0.74885, "bytes": 5 << 19},
        {"policy": "belady", "rate": None, "bytes": float("nan")},
    ]
    assert table.render(columns, rows, group=lambda r: r["policy"]).split("\n") == [
        "        hit rate  read",
        "policy         %   MiB",
        "lru        74.89  2.50",
        "",
        "belady         -     -",
    ]


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 20, "3.0 MiB"),
        (2**50, "1048576.0 GiB"),
    ],
)
def test_sizes_are_written_in_the_unit_that_suits_them(n_bytes, text):
    assert figures.in_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0.0"), (2048, "0.0020"), (1 << 20, "1.00"), (100 << 20, "100.0"), (None, "-")],
)
def test_small_sizes_get_more_digits(n_bytes, text):
    assert figures.mib(n_bytes) == text


def test_csv_is_flat_with_empty_nulls():
    assert to_csv(flat_records(RESULTS, ["policy"])).splitlines() == [
        "policy,params,cache_bytes,hit_rate_decode,over,validation_lookups",
        "lru,,100,0.5,false,",
        "new,k=2,100,,,7",
    ]


def test_layers_follow_their_result_and_repeat_its_identity():
    assert flat_records(LAYERED, ["policy", "cache_bytes"]) == [
        {"policy": "lru", "cache_bytes": 9, "hits": 3, "layer": None},
        {"policy": "lru", "cache_bytes": 9, "layer": 0, "hits": 1},
        {"policy": "bound", "cache_bytes": 9, "hits": 4, "layer": None},
    ]


def test_an_interval_becomes_low_and_high():
    assert flat_records([{"ci95": [0.1, 0.2]}, {"ci95": None}], []) == [
        {"ci95_low": 0.1, "ci95_high": 0.2},
        {"ci95_low": None, "ci95_high": None},
    ]


def test_the_ending_of_the_file_chooses_the_format(tmp_path):
    for name in ("x.json", "x.csv", "x.parquet", "x.txt"):
        everything(Output(Console(quiet=True), tmp_path / name))
    assert json.loads((tmp_path / "x.json").read_text())["results"] == RESULTS
    assert (tmp_path / "x.csv").read_text().startswith("policy,")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist()[1]["params"] == "k=2"
    assert (tmp_path / "x.txt").read_text() == "a table\n"


def test_notes_go_to_stderr_where_the_format_has_no_place_for_them(tmp_path, capsys):
    for ending, noted in (("csv", "a note\n"), ("parquet", "a note\n"), ("json", ""), ("txt", "")):
        path = tmp_path / f"x.{ending}"
        Output(Console(), path).write(
            table=lambda: "",
            document=dict,
            records=lambda: flat_records(RESULTS, []),
            notes=["a note"],
        )
        assert capsys.readouterr().err == f"{noted}Wrote {path}.\n"


def test_the_format_option_beats_the_ending(tmp_path):
    everything(Output(Console(quiet=True), tmp_path / "x.csv", "json"))
    assert json.loads((tmp_path / "x.csv").read_text())["schema"] == "x/1"


def test_stdout_gets_the_table(capsys):
    everything(Output(Console(quiet=True), None))
    assert capsys.readouterr().out == "a table\n"


def test_nan_is_never_written_to_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        everything(Output(Console(quiet=True), tmp_path / "x.json"), [{"rate": float("nan")}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x", "x.txt", "x.table"])
def test_other_file_names_get_a_table(tmp_path, name):
    everything(Output(Console(quiet=True), tmp_path / name))
    assert (tmp_path / name).read_text().startswith("a table")


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"The result has no format called \.xlsx; name .* csv"):
        Output(Console(quiet=True), tmp_path / "x.xlsx")
    everything(Output(Console(quiet=True), tmp_path / "x.xlsx", "csv"))


def test_an_existing_output_is_overwritten_only_with_force(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"x\.csv exists; use --force to overwrite it, or another"):
        Output(Console(quiet=True), path)
    assert path.read_text() == "mine"
    everything(Output(Console(quiet=True), path, force=True))
    assert path.read_text().startswith("policy,")


def test_force_writes_through_a_link(tmp_path):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    everything(Output(Console(quiet=True), tmp_path / "link.csv", force=True))
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text().startswith("policy,")


def test_a_pipe_is_written_directly(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    everything(Output(Console(quiet=True), pipe, "csv"))
    reader.join()
    assert got[0].startswith("policy,")
    assert pipe.is_fifo()


def test_a_failing_write_leaves_nothing(tmp_path):
    def interrupted():
        with written_whole(tmp_path / "x") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_text("mine")

    def full():
        with written_whole(path) as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(
        TracekitError, match=r"Cannot write .*x: the disk is full; free some space\."
    ):
        full()
    assert path.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"there is no folder .*gone; make it first\."):
        check_free(tmp_path / "gone" / "x.csv", force=False)


def test_control_characters_of_a_file_do_not_reach_the_terminal(capsys):
    assert figures.printable("a\x1b[31mb\n\udc80é") == "a\\x1b[31mb\\n\\udc80é"
    Console().warn("evil\x1b]0;title\x07")
    assert capsys.readouterr().err == "Warning: evil\\x1b]0;title\\x07\n"


def test_quiet_says_nothing_and_verbose_says_more(capsys):
    Console(quiet=True, verbose=True).warn("w")
    Console(quiet=True, verbose=True).detail("d")
    assert capsys.readouterr().err == ""
    Console(verbose=True).detail("d")
    Console().detail("not this")
    Console().note("n")
    assert capsys.readouterr().err == "d\nn\n"


def test_progress_is_not_written_to_a_file(capsys):
    with Console().progress("work") as update:
        time.sleep(0.6)  # a terminal would show it by now
        update(1, 2)
    assert capsys.readouterr().err == ""


def test_progress_appears_after_half_a_second_and_is_removed(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Console().progress("work") as update:
        update(0, 4)
        assert capsys.readouterr().err == ""
        time.sleep(0.6)
        update(1, 2)
        update(2, 2)  # too soon after the other
        assert capsys.readouterr().err == f"\r\x1b[Kwork [{'#' * 15}{' ' * 15}] 1/2"
    assert capsys.readouterr().err == "\r\x1b[K"
    with Console(quiet=True).progress("work") as update:
        time.sleep(0.6)
        update(1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["replay", "predict", "info"])
def test_what_a_result_is_made_from_is_not_overwritten(tmp_path, command):
    trace = tmp_path / "run.trace"
    write_trace(synthesize(2, 8, 2, 6), trace)
    rows = (trace / "routing.parquet").read_bytes()
    out = trace / "routing.parquet"
    done = run(command, trace, "-o", out, "--format", "json", "--force")
    assert (done.code, done.err) == (
        2,
        f"Error: {out} is what the result is made from; use another name.\n",
    )
    assert out.read_bytes() == rows
    assert run(command, trace, "-o", trace / "notes.json", "-q").code == 0  # is no part of it


@pytest.mark.parametrize(
    "args", [["replay", "run.csv"], ["report", "run.csv"], ["plot", "reuse", "run.csv"]]
)
def test_an_imported_file_is_not_overwritten(tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "run.csv")
    before = (tmp_path / "run.csv").read_bytes()
    (tmp_path / "same.csv").symlink_to("run.csv")
    for name in ("run.csv", "same.csv"):
        done = run(*args, "-o", name, "--force")
        assert (done.code, done.err) == (
            2,
            f"Error: {name} is what the result is made from; use another name.\n",
        )
    assert (tmp_path / "run.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("rate", "text"), [(1, "100.00"), (0.99999, "99.999"), (0.5, "50.00"), (0, "0.00"), (None, "-")]
)
def test_only_1_is_written_as_100_percent(rate, text):
    assert figures.percent(rate) == text

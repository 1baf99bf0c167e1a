"""The command line as a process: what it imports, its exit codes, how it ends."""

import ctypes
import json
import os
import pty
import resource
import signal
import subprocess
import sys

import pytest
from cli_helpers import TRACEKIT, csv_lines, run, run_process, write_csv
from families import slow_unless

HEAVY = ("numpy", "pyarrow", "pandas", "numba", "matplotlib", "rich", "llama_cpp", "gguf")


@pytest.fixture
def small(tmp_path):
    return write_csv(tmp_path / "small.csv")


@pytest.mark.parametrize("args", [["--help"], ["replay", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(args):
    code = f"""
import sys
sys.argv = ["tracekit", *{args!r}]
from tracekit.cli import main
try:
    main()
finally:
    print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_every_command_has_help():
    rows = run("--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    commands = [line.split()[0] for line in rows.split("\n")]
    assert {"record", "replay", "predict", "import", "info", "policies"} <= set(commands)
    for command in commands:
        done = run(command, "--help")
        assert done.code == 0
        assert f"Usage: tracekit {command}" in done.out


def test_an_unknown_option_is_a_usage_error(small):
    done = run("replay", small, "--polices", "lru")
    assert done.code == 2
    assert "No such option: --polices" in done.err
    assert done.out == ""


def test_a_result_goes_to_stdout_and_the_rest_to_stderr(tmp_path):
    cut = write_csv(tmp_path / "cut.csv", [*csv_lines(), "0,1,"], end="\n")
    cut.write_bytes(cut.read_bytes()[:-1])
    done = run("replay", cut, "--format", "csv")
    assert done.code == 0
    assert done.out.startswith("policy,params,cache_bytes,")
    assert done.err.startswith(f"Warning: {cut} is incomplete: ")
    assert run("replay", cut, "--format", "csv", "-q").err == ""


def test_a_closed_pipe_ends_the_command_quietly():
    running = subprocess.Popen(
        [*TRACEKIT, "formats"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait() == 0
    running.stderr.close()


@pytest.mark.slow
def test_a_terminal_without_unicode_gets_question_marks():
    done = run_process("formats", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.code, done.err) == (0, "")
    text = run("formats").out
    assert not text.isascii()
    assert done.out == text.encode("ascii", "replace").decode()


LOADS = """
import sys, types
sys.modules["typer"] = types.ModuleType("typer")
sys.modules["typer"].__getattr__ = interrupt
"""
PREPARES = """
import typer.main
typer.main.get_params_convertors_ctx_param_name_from_function = interrupt
"""


@pytest.mark.parametrize("place", slow_unless([LOADS, PREPARES], LOADS), ids=["loads", "prepares"])
def test_ctrl_c_while_the_commands_are_loaded_prints_nothing(place):
    code = f"""
def interrupt(*_):
    raise KeyboardInterrupt
{place}
from tracekit.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_command_runs_with_stderr_closed(small):
    done = run_process("info", small, "--format", "json", preexec_fn=lambda: os.close(2))
    assert done.code == 0
    assert json.loads(done.out)  # and no note among it


@pytest.mark.parametrize("option", slow_unless(["--help", "--version"], "--help"))
def test_help_on_a_full_disk_fails_with_a_sentence(option):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*TRACEKIT, option], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "Error: Reading or writing failed: No space left on device.\n"


@pytest.mark.slow
def test_a_command_runs_with_stdout_closed(small):
    done = run_process("info", small, preexec_fn=lambda: os.close(1))
    assert (done.code, done.err) == (0, "")


@pytest.mark.slow  # the fast suite prints help there
@pytest.mark.parametrize("command", ["info", "replay"])
def test_a_full_disk_behind_stdout_gives_one_sentence(small, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*TRACEKIT, command, small], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "Error: Reading or writing failed: No space left on device.\n"


def test_a_full_disk_is_named(small):
    done = run("replay", small, "--format", "csv", "-o", "/dev/full", "-q")
    assert done.code == 1
    assert done.err == "Error: Cannot write /dev/full: the disk is full; free some space.\n"


@pytest.mark.slow  # the fast suite fills the disk of a writer: test_writer
def test_a_full_disk_leaves_nothing_half_written(small, tmp_path):
    # A limit on the size of files ends a write in the middle as a full disk does.
    out = tmp_path / "out.json"
    done = run_process(
        *("info", small, "-o", out),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.code == 1
    assert done.err == (
        f"Error: Cannot write {out}: the file would be larger than is allowed here; "
        "use another folder.\n"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["small.csv"]


@pytest.mark.slow
def test_an_import_onto_a_full_disk_leaves_nothing(tmp_path):
    big = write_csv(tmp_path / "big.csv", csv_lines(decode=500))
    done = run_process(
        *("import", big, "-o", tmp_path / "big.trace"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )
    assert done.code == 1
    assert done.err.startswith("Error: Cannot write ")
    assert done.err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["big.csv"]


def _not_even_root_writes_where_it_may_not() -> None:
    drop_capability, override_permissions = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(drop_capability, override_permissions, 0, 0, 0)


@pytest.mark.parametrize("command", slow_unless(["replay", "import"], "import"))
def test_a_read_only_folder_is_refused_before_the_work(small, tmp_path, command):
    folder = tmp_path / "kept"
    folder.mkdir()
    folder.chmod(0o555)
    out = folder / "x.csv"
    done = run_process(
        *(command, small, "-o", out), preexec_fn=_not_even_root_writes_where_it_may_not
    )
    assert done.code == 2
    assert done.err == f"Error: Cannot write {out}: the folder {folder} is not writable.\n"
    assert list(folder.iterdir()) == []


def test_an_existing_output_is_refused_before_the_work(small, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("mine")
    # The trace does not exist: it is not even looked for.
    done = run("replay", tmp_path / "gone.trace", "-o", out)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"Error: {out} exists; use --force to overwrite it, or another name.\n"
    assert out.read_text() == "mine"
    assert run("replay", small, "-o", out, "--force").code == 0
    assert out.read_text().startswith("policy,")


def _until(path_or_fd, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(path_or_fd, 1024)
    return seen


def _rest(descriptor: int) -> bytes:
    rest = b""
    try:
        while chunk := os.read(descriptor, 1024):
            rest += chunk
    except OSError:  # how Linux says that the other end of a terminal is closed
        pass
    return rest


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_sweep(tmp_path):
    big = write_csv(tmp_path / "big.csv", csv_lines(decode=3000))
    seeds = ",".join(map(str, range(5000)))
    out = tmp_path / "out.csv"
    terminal, end = pty.openpty()
    running = subprocess.Popen(
        [
            *(*TRACEKIT, "replay", big, "--policy", "random", "--param", f"random.seed={seeds}"),
            *("--cache-mib", "4,6,8,10", "-o", out),
        ],
        stderr=end,
        env={**os.environ, "NO_COLOR": "1"},
    )
    os.close(end)
    _until(terminal, b"replay [")  # a progress bar, since someone watches
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=120) == 130
    assert _rest(terminal).split(b"\x1b[K")[-1] == b"Error: Interrupted.\r\n"
    assert [p.name for p in tmp_path.iterdir()] == ["big.csv"]
    os.close(terminal)


def test_ctrl_c_while_record_loads_what_it_needs(tmp_path):
    code = f"""
import signal, sys
class Presses:
    def find_spec(self, name, *_):
        try:
            if name == "numpy":
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pass  # as where Python can only say that it ignores an exception
sys.meta_path.insert(0, Presses())
sys.argv = ["tracekit", "record", "-p", "a", "-o", {str(tmp_path / "x.trace")!r}]
from tracekit.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "Error: Interrupted.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("no_color", "coloured"), slow_unless([("", True), ("1", False)], ("", True))
)
def test_a_terminal_gets_colours_unless_no_color_is_set(tmp_path, no_color, coloured):
    terminal, end = pty.openpty()
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "xterm"}
    subprocess.run([*TRACEKIT, "info", tmp_path / "gone"], stderr=end, env=environment, check=False)
    os.close(end)
    printed = _rest(terminal)
    os.close(terminal)
    assert b"does not exist" in printed
    assert (b"\x1b[" in printed) is coloured


@pytest.mark.slow
def test_debug_shows_the_traceback_and_keeps_the_exit_code(tmp_path):
    debug = {**os.environ, "TRACEKIT_DEBUG": "1"}
    done = run_process("info", tmp_path / "gone", env=debug)
    assert done.code == 3
    assert done.err.startswith("Traceback (most recent call last):")
    assert "Traceback" not in run("info", tmp_path / "gone").err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "There is not enough memory for this (allocation failed)."),
        (MemoryError("8 EiB"), "There is not enough memory for this (8 EiB)."),
        (PermissionError(13, "Permission denied", "/x"), "Cannot use /x: Permission denied."),
        (OSError("I/O gone"), "Reading or writing failed: I/O gone."),
    ],
)
def test_an_error_of_the_system_becomes_a_sentence(monkeypatch, small, error, sentence):
    def fail(path, **how):
        raise error

    monkeypatch.setattr("tracekit.formats.open_any", fail)
    done = run("info", small)
    assert (done.code, done.out, done.err) == (1, "", f"Error: {sentence}\n")


def test_a_bug_of_the_program_raises(monkeypatch, small):
    def fail(path, **how):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tracekit.formats.open_any", fail)
    with pytest.raises(ZeroDivisionError):
        run("info", small)


@pytest.mark.slow  # imports all of tracekit
def test_every_public_name_can_be_imported():
    code = """
import sys
import tracekit
assert "numpy" not in sys.modules
from tracekit.replaying import build_batches
import tracekit.replaying.run
from tracekit.replaying import replay
assert tracekit.replay is replay, tracekit.replay
for name in tracekit.__all__:
    assert getattr(tracekit, name) is not None
    assert name in dir(tracekit)
try:
    tracekit.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "module 'tracekit' has no attribute 'nothing'\n"

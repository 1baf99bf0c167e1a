"""``tracekit record``: what it prints, where, and with which exit code."""

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from typer.testing import CliRunner, Result

from tracekit.cli.app import app
from tracekit.figures import MIB
from tracekit.trace import Trace
from tracekit_engine.model_file import ModelFile


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, ["record", *map(str, arguments)], input=stdin)
    assert "Traceback" not in result.output
    return result


def test_resident(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "my run.trace"
    result = run(model, "-p", "abc", "-p", "de", "-n", "3", "--ignore-eos", "-o", out)
    assert (result.exit_code, result.stdout) == (0, "")
    summary, command = result.stderr.splitlines()
    assert "2 turns" in summary
    assert "5 prompt and 6 decoded tokens" in summary
    assert "hit rate" not in summary
    assert command == f"tracekit replay {shlex.quote(str(out))}"
    assert Trace.open(out).facts.prompts == ["abc", "de"]


def test_streamed(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    result = run(
        model, "-p", "abc", "-n", "3", "--stream", "--cache-mib", "0.03125", "-o", out, "-v"
    )
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    cycle = 6 * ModelFile.open(model).expert_bytes[0] / MIB
    assert f"smaller than what one token touches, {cycle:.2f} MiB" in result.stderr
    assert "MiB read" in lines[-2]
    assert lines[-1] == f"tracekit replay {out} --policy lru --cache-mib 0.03125 --validate"
    engine = Trace.open(out).facts.engine
    assert (engine.cache_policy, engine.cache_bytes) == ("lru", 32768)
    assert (engine.io_threads, engine.direct_io) == (4, False)


def test_the_automatic_budget_is_named(model: Path, tmp_path: Path) -> None:
    result = run(model, "-p", "abc", "-n", "1", "--stream", "-o", tmp_path / "run.trace")
    budget = Trace.open(tmp_path / "run.trace").facts.engine.cache_bytes
    words = result.stderr.splitlines()[-1].split()
    assert round(float(words[words.index("--cache-mib") + 1]) * MIB) == budget


@pytest.mark.slow  # a process; the fast suite interrupts in this one: test_engine_interrupts
@pytest.mark.parametrize("is_first_interrupted", [False, True])
def test_ctrl_c_before_the_first_pass_leaves_an_older_trace(
    model: Path, tmp_path: Path, is_first_interrupted: bool
) -> None:
    out = tmp_path / "run.trace"
    code = f"""
import sys
from tracekit_engine import Session
evaluate, passes = Session.evaluate, int(sys.argv.pop())
def breaking(*given, **how):
    global passes
    passes -= 1
    if passes < 0:
        raise KeyboardInterrupt
    return evaluate(*given, **how)
Session.evaluate = breaking
sys.argv[1:] = ["record", {str(model)!r}, "-p", "a", "--ignore-eos", "-o", {str(out)!r}, "--force"]
from tracekit.cli import main
main()
"""

    def interrupted_after(passes: int, note: str) -> None:
        command = [sys.executable, "-c", code, str(passes)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (130, f"{note}Error: Interrupted.\n")
        assert len(Trace.open(out).steps(["step"])["step"]) == 2  # the first run's

    if is_first_interrupted:
        interrupted_after(2, f"What was recorded until then is kept in {out}, marked incomplete.\n")
    else:
        assert run(model, "-p", "a", "-n", "1", "--ignore-eos", "-o", out).exit_code == 0
    interrupted_after(0, "")


def test_text_goes_to_stdout(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    result = run(model, "-p", "abc", "-n", "4", "--ignore-eos", "--text", "-q", "-o", out)
    steps = Trace.open(out).steps(["phase", "piece"])
    decoded = b"".join(steps["piece"][steps["phase"] == 1])
    assert result.stdout_bytes == decoded + b"\n"
    assert result.stderr == ""


@pytest.mark.slow  # long enough to fill a pipe
@pytest.mark.parametrize(
    ("shell", "reason"),
    [("| true", "Broken pipe"), ("> /dev/full", "No space left on device")],
)
def test_text_that_nobody_reads(model: Path, tmp_path: Path, shell: str, reason: str) -> None:
    out = tmp_path / "run.trace"
    command = [sys.executable, "-m", "tracekit", "record", model, "-o", out]
    command += ["-p", "abc", "-n", "500", "--ignore-eos", "--text"]
    line = f"set -o pipefail; {shlex.join(map(str, command))} {shell}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    warning, *rest = done.stderr.splitlines()
    assert warning == f"Warning: The text is no longer printed ({reason}); the recording goes on."
    assert "ended: length" in rest[0]
    assert Trace.open(out).complete


@pytest.mark.slow
def test_a_closed_stdin(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracekit", "record", model, "-o", tmp_path / "run.trace"]
    line = f"{shlex.join(map(str, [*command, '--prompt-file', '-']))} <&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: Standard input is closed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # a process that records, each
@pytest.mark.parametrize(
    "streams",
    [">&- 2>&-", "2>/dev/full", ">&-", "2>&-", "2> >(true)"],
)
def test_closed_and_full_streams(model: Path, tmp_path: Path, streams: str) -> None:
    out = tmp_path / "run.trace"
    command = [sys.executable, "-m", "tracekit", "record", model, "-p", "abc", "-n", "3", "-v"]
    line = f"{shlex.join(map(str, [*command, '--text', '-o', out]))} {streams}"
    done = subprocess.run(["bash", "-c", line], check=False)
    assert done.returncode == 0
    assert Trace.open(out).complete


# Draws the progress line at every pass: a fast machine would be done before the line appears.
DRAWING_AT_ONCE = """
import itertools, types
from tracekit.cli import console, main
console.time = types.SimpleNamespace(monotonic=itertools.count().__next__)
main()
"""


@pytest.mark.slow  # a process that draws at every pass
@pytest.mark.parametrize("tokens", [150, 1000])
def test_a_terminal_that_is_closed(model: Path, tmp_path: Path, tokens: int) -> None:
    out = tmp_path / "run.trace"
    terminal, end = pty.openpty()
    command = [sys.executable, "-c", DRAWING_AT_ONCE, "record", model, "-p", "abc"]
    command += ["-n", str(tokens), "--ctx", "1024", "--ignore-eos", "-o", out]
    with subprocess.Popen(command, stderr=end, start_new_session=True) as running:
        os.close(end)
        printed = b""
        while b"turn 1/1" not in printed:
            printed += os.read(terminal, 1024)
        os.close(terminal)
        assert running.wait(timeout=120) == 0
    assert Trace.open(out).complete


def test_prompts_from_everywhere(model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('"c"\n{"prompt": "d"}\n')
    out = tmp_path / "run.trace"
    arguments = ["-p", "a", "--prompt-file", "-", "--prompts", lines, "-n", "0", "-o", out]
    assert run(model, *arguments, stdin=b"b\n").exit_code == 0
    assert Trace.open(out).facts.prompts == ["a", "b", "c", "d"]


def test_columns_left_out(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    run(model, "-p", "abc", "-n", "1", "--no-logits", "--no-gate-inputs", "-o", out)
    trace = Trace.open(out)
    assert not trace.has("logits")
    assert not trace.has("gate_input")


BAD = {
    "no prompt": ([], 2, "no prompt; give one with -p"),
    "an empty prompt": (["-p", ""], 2, "prompt is empty"),
    "streaming options alone": (["-p", "a", "--cache-mib", "5"], 2, "add --stream"),
    "an empty option alone": (["-p", "a", "--cache-mib", ""], 2, "add --stream"),
    "no lane alone": (["-p", "a", "--io-threads", "0"], 2, "add --stream"),
    "an absurd size": (["-p", "a", "--stream", "--cache-mib", "2e12"], 2, "to 1e12, or auto"),
    "one input for two": (["--prompt-file", "-", "--prompts", "-"], 2, "either --prompt-file or"),
    "direct I/O alone": (["-p", "a", "--direct-io"], 2, "add --stream"),
    "no size": (["-p", "a", "--stream", "--cache-mib", "big"], 2, "or auto, not 'big'"),
    "no number": (["-p", "a", "--stream", "--cache-mib", "nan"], 2, "or auto, not 'nan'"),
    "a negative size": (["-p", "a", "--stream", "--cache-mib", "-1"], 2, "not '-1'"),
    "too small a cache": (["-p", "a", "--stream", "--cache-mib", "0"], 2, "is too small"),
    "no lane": (["-p", "a", "--stream", "--io-threads", "0"], 2, "from 1 to 1024, not 0"),
    "a type": (["-p", "a", "--gate-dtype", "f64"], 2, "f32 or f16"),
    "a prompt too long": (["-p", "a" * 9, "--ctx", "8"], 2, "9 tokens"),
    "a negative length": (
        ["-p", "a", "-n", "-1"],
        2,
        "-n takes a whole number of 0 or more, not -1.",
    ),
    "a chat without template": (["-p", "a", "--chat"], 1, "no chat template"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence(name: str, model: Path, tmp_path: Path) -> None:
    arguments, code, sentence = BAD[name]
    result = run(model, *arguments, "-o", tmp_path / "run.trace")
    assert result.exit_code == code
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_that_was_taken_for_the_model(tmp_path: Path) -> None:
    result = run("Once upon a time", "-o", tmp_path / "run.trace")
    assert result.exit_code == 2
    assert "Once upon a time was taken for the model. There is no prompt; give" in result.stderr


def test_places_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thing").write_text("")
    for out, force, sentence in (
        (tmp_path / "file", False, "use --force"),
        (tmp_path / "folder", True, "no trace; it is not overwritten"),
        (tmp_path / "absent" / "run.trace", False, "folder is missing"),
        (tmp_path / "file" / "run.trace", False, "is a file"),
        (Path("/proc/run.trace"), False, "Cannot write"),
    ):
        result = run(model, "-p", "a", "-n", "1", "-o", out, *["--force"] * force)
        assert result.exit_code in (1, 2)
        assert sentence in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_files_that_are_not_moe_models(tmp_path: Path) -> None:
    dense = tiny_models.write(tmp_path / "dense.gguf", "llama", dense_only=True)
    for path, sentence in ((dense, "is a dense model"), (tmp_path / "no.gguf", "does not exist")):
        result = run(path, "-p", "a", "-o", tmp_path / "run.trace")
        assert result.exit_code == 1
        assert sentence in result.stderr


def test_an_architecture_llama_cpp_does_not_know(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "unknown.gguf"
    path.write_bytes(model.read_bytes().replace(b"qwen3moe", b"qwen9moe"))
    result = run(path, "-p", "a", "-o", tmp_path / "run.trace")
    assert result.exit_code == 1
    assert "unknown model architecture: 'qwen9moe'" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_model_that_lacks_a_tensor(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lacking.gguf"
    path.write_bytes(model.read_bytes().replace(b"blk.1.ffn_norm", b"blk.1.ffn_nose"))
    result = run(path, "-p", "a", "-o", tmp_path / "run.trace")
    assert result.exit_code == 1
    assert ": tensor 'blk.1.ffn_norm.weight' not found" in result.stderr


def test_the_model_is_never_overwritten(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes())
    result = run(copy, "-p", "a", "-n", "1", "-o", copy, "--force")
    assert result.exit_code == 2
    assert "is a file and no trace; it is not overwritten" in result.stderr
    assert copy.read_bytes() == model.read_bytes()

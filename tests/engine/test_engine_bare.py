"""Recording needs no more than what engine/requirements.txt lists, installed or from a checkout."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tracekit.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
NOT_NEEDED = ("pandas", "matplotlib", "numba")
IN_A_CHECKOUT = ("tracekit", "engine", "data")
INSTALLED = ("tracekit", "engine/tracekit_engine", "data")


def required() -> list[str]:
    """Return the names that the engine's requirements file lists."""
    lines = (ROOT / "engine" / "requirements.txt").read_text().splitlines()
    return [re.match(r"[\w-]+", line)[0] for line in lines if not line.startswith("#")]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(IN_A_CHECKOUT, id="checkout", marks=pytest.mark.slow),
        pytest.param(INSTALLED, id="installed"),
    ],
)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for sys.path that holds only what is needed, and tracekit itself."""
    folder = tmp_path_factory.mktemp("bare")
    for name in required():
        for file in metadata.distribution(name).files:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(
                    file.locate().parents[len(file.parts) - 2]
                    if len(file.parts) > 1
                    else file.locate()
                )
    for package in request.param:
        (folder / Path(package).name).symlink_to(ROOT / package)
    information = folder / "tracekit-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tracekit\nVersion: 0\n")
    return folder


def python(bare: Path, code: str) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path.append({str(bare)!r}); "
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_record_runs(bare: Path, model: Path, tmp_path: Path) -> None:
    for name in NOT_NEEDED:
        assert python(bare, f"import {name}").returncode == 1
    out = tmp_path / "run.trace"
    arguments = ["tracekit", "record", str(model), "-p", "abc", "-n", "5", "--stream"]
    arguments += ["--ignore-eos", "-o", str(out)]
    done = python(bare, f"sys.argv = {arguments!r}; from tracekit.cli import main; main()")
    assert done.returncode == 0, done.stderr
    assert len(Trace.open(out).steps(["step"])["step"]) == 8


def test_quantised_routers_can_be_read(bare: Path) -> None:
    done = python(bare, "from gguf import GGMLQuantizationType; from gguf.quants import dequantize")
    assert done.returncode == 0, done.stderr


def test_nothing_heavy_is_loaded(bare: Path) -> None:
    code = "import tracekit, tracekit.cli.record; tracekit.record; print(*sys.modules)"
    done = python(bare, code)
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tracekit_engine" in loaded
    assert not loaded & {*NOT_NEEDED, "llama_cpp", "gguf"}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["llama_cpp", "gguf"])
def test_the_command_without_a_package(
    package: str, bare: Path, model: Path, tmp_path: Path
) -> None:
    hide = f"sys.modules[{package!r}] = None; "
    arguments = ["tracekit", "record", str(model), "-p", "abc", "-o", str(tmp_path / "x.trace")]
    code = f"{hide}sys.argv = {arguments!r}; from tracekit.cli import main; main()"
    done = python(bare, code)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install 'tracekit[engine]'" in done.stderr

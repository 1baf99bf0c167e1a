"""The wheel, installed into an environment of its own with no checkout in reach."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tracekit.trace import Trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*arguments: object, cwd: Path) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-build-isolation"] if find_spec("hatchling") else []
    pip("wheel", "-q", "--no-deps", *options, "-w", folder, ROOT, cwd=folder)
    (path,) = folder.glob("tracekit-*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an environment with the wheel in it, and what it needs behind it on sys.path.

    The folder of the dependencies comes along by a .pth file. A .pth file in that folder is not
    read then, so an editable tracekit there stays out of reach.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip("--python", folder, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site_packages(folder) / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return folder


def site_packages(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def test_the_wheel_holds_two_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    version = wheel.name.split("-")[1]
    assert tops == {"tracekit", "tracekit_engine", f"tracekit-{version}.dist-info"}


def test_everything_comes_from_site_packages(environment: Path, tmp_path: Path) -> None:
    code = """
import sys, tracekit, tracekit.replaying.run as run
print(*sys.path, sep="\\n")
print()
for found in (tracekit, run, tracekit.record, tracekit.Session, tracekit.engine.Options):
    module = sys.modules[getattr(found, "__module__", found.__name__)]
    print(module.__file__)
"""
    paths, _, files = run(environment / "bin/python", "-c", code, cwd=tmp_path).partition("\n\n")
    assert not {str(ROOT), str(ROOT / "engine")} & set(paths.splitlines())
    assert len(files.splitlines()) == 5
    for file in files.splitlines():
        assert Path(file).is_relative_to(site_packages(environment))


def test_the_command_runs(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin/tracekit"
    assert "Usage: tracekit" in run(command, "--help", cwd=tmp_path)
    table = run(command, "replay", "bundled:tiny-moe-64e.trace", cwd=tmp_path)
    assert "12 MoE layers × 64 experts" in table
    run(command, "record", "-p", "Once", "-n", "2", "-o", "run.trace", cwd=tmp_path)
    assert Trace.open(tmp_path / "run.trace").complete

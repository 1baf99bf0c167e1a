"""Files of the current folder run only if they are named, or by what was named."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import TRACEKIT, run, run_process, write_csv
from families import slow_unless

from tracekit.own_modules import import_own
from tracekit.policies import load_policy

LOUD = "import pathlib\npathlib.Path('ran').write_text(__name__)\n"
POLICY = """
from tracekit.policies import LRU

class Mine(LRU):
    name = "mine"
    summary = "as lru"
"""
# Modules that libraries of tracekit look for, though they need not be installed.
LOOKED_FOR = (
    "scipy",
    "yaml",
    "IPython",
    "bottleneck",
    "numexpr",
    "cuda",
    "tbb",
    "coverage",
    "cffi",
)
INSTALLED = ("numpy", "numba", "pandas", "typer", "pyarrow", "matplotlib", "jinja2", "llvmlite")


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a trace and files that say that they ran."""
    for name in (*LOOKED_FOR, *INSTALLED):
        (tmp_path / f"{name}.py").write_text(LOUD)
    write_csv(tmp_path / "x.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


INSTALLED_COMMAND = "import sys; del sys.path[0]; from tracekit.cli import main; main()"
PROGRAMS = {"module": TRACEKIT, "command": (sys.executable, "-c", INSTALLED_COMMAND)}


@pytest.mark.parametrize("program", slow_unless(PROGRAMS, "module"))
def test_files_beside_a_trace_do_not_run(program, folder):
    (folder / "mine.py").write_text(POLICY)
    words = [*PROGRAMS[program], "replay", "x.csv", "--policy", "lru,mine:Mine", "--format", "csv"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("Error")) == (0, 0)
    assert "\nmine,," in done.stdout
    assert not (folder / "ran").exists()


def test_what_a_named_module_imports_is_found_beside_it(folder):
    (folder / "helper_of_mine.py").write_text("from even_later import NAME\n")
    (folder / "even_later.py").write_text("NAME = 'mine'\n")
    (folder / "only_when_used.py").write_text("VALUE = 7\n")
    (folder / "package_of_mine").mkdir()
    (folder / "package_of_mine/__init__.py").write_text("")
    (folder / "package_of_mine/policy.py").write_text(
        POLICY
        + "    import helper_of_mine\n"
        + "    def later(self):\n        import only_when_used\n        return only_when_used.VALUE\n"
    )
    policy = load_policy("package_of_mine.policy:Mine")
    assert policy.later() == 7
    assert str(folder) not in sys.path
    assert "" not in sys.path


def test_others_do_not_find_what_is_beside_a_named_module(folder):
    (folder / "quiet_one.py").write_text("")
    import_own("quiet_one")
    (folder / "not_named.py").write_text(LOUD)
    with pytest.raises(ModuleNotFoundError):
        import not_named  # noqa: F401
    assert not (folder / "ran").exists()


def test_the_folder_is_the_one_at_the_time(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of_folder_{name}.py").write_text("")
    monkeypatch.chdir(tmp_path / "one")
    import_own("of_folder_one")
    monkeypatch.chdir(tmp_path / "two")
    import_own("of_folder_two")
    with pytest.raises(ModuleNotFoundError):
        import_own("of_folder_one_and_a_half")


def test_a_folder_that_was_removed_holds_no_module(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = run("replay", write_csv(tmp_path / "x.csv"), "--policy", "no_such_module:Mine")
    assert done.code == 2
    assert "No module named 'no_such_module'" in done.err


@pytest.mark.slow
def test_numba_takes_no_configuration_from_the_current_folder(folder):
    (folder / "yaml.py").unlink()
    cache = folder / "chosen"
    (folder / ".numba_config.yaml").write_text(f"cache_dir: {cache}\ndisable_jit: 1\n")
    done = run_process("replay", "x.csv", "--policy", "lru", "--cache-mib", "4")
    assert done.code == 0
    assert done.err == ""
    assert not cache.exists()
    (folder / ".numba_config.yaml").write_text("[" * 99)
    assert run_process("replay", "x.csv", "--policy", "lru").code == 0
    (folder / "mine.py").write_text("import numba\n" + POLICY)
    assert run_process("replay", "x.csv", "--policy", "mine:Mine").code == 0

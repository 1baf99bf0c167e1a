"""What a command imports and compiles: only what it needs, since that is most of a short one's time."""

import subprocess
import sys

import numba
import pytest
from cli_helpers import run, run_process, write_csv
from families import slow_unless

BUNDLED = "bundled:tiny-moe-64e.trace"
# numba is for what replays or scores, pandas for frames, matplotlib for pictures.
LATE = ("numba", "llvmlite", "pandas", "matplotlib", "pyarrow.dataset", "pyarrow.compute", "scipy")
LATE += ("dask", "distributed")  # and these for who asks for a cluster
RUN = f"""
import sys
sys.argv = ["tracekit", *sys.argv[1:]]
from tracekit.cli import main
try:
    main()
finally:
    print("loaded:", *(name for name in {LATE!r} if name in sys.modules))
"""
# Runs several commands one after the other, and says what is loaded after each.
RUN_EACH = f"""
import sys
from tracekit.cli import main
for command in sys.argv[1:]:
    sys.argv = ["tracekit", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
    print("loaded:", *(name for name in {LATE!r} if name in sys.modules))
"""


WITHOUT_NUMBA = [
    "--help",
    "formats",
    "policies",
    "policies follow",
    "info x.trace",
    f"info {BUNDLED}",
    "import x.csv -o csv.trace --force",
    "export x.trace -o again.csv --force",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One trace in several formats."""
    made = tmp_path_factory.mktemp("start")
    for name in ("x.csv", "x.npz", "x.parquet"):
        assert run("export", BUNDLED, "-o", str(made / name)).code == 0
    assert run("import", str(made / "x.csv"), "-o", str(made / "x.trace")).code == 0
    return made


def loaded_by(folder, command: str) -> list[str]:
    """Run a command in `folder`, as a process; return which of `LATE` it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command.split()], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    "command",
    slow_unless(
        [
            *WITHOUT_NUMBA,
            "policies lru x.trace",
            "policies recall",
            "info x.csv",
            "import x.npz -o npz.trace",
            "export x.trace -o again.npz",
            "export x.trace -o again.parquet",
            "export x.trace -o again.oracleGeneral.bin",
        ],
    ),
)
def test_a_command_that_replays_nothing_imports_no_numba(folder, command):
    assert loaded_by(folder, command) == []


@pytest.mark.slow  # every command
def test_commands_that_replay_nothing_import_no_numba_one_after_the_other(folder):
    """What a command imports stays loaded, so the first that imports too much is seen."""
    commands = [*WITHOUT_NUMBA, "import x.parquet -o parquet.trace --force"]
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *commands], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    loaded = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert dict(zip(commands, loaded, strict=True)) == {
        command: ["pyarrow.compute"] * ("x.parquet" in command) for command in commands
    }


@pytest.mark.slow
def test_a_format_imports_what_it_reads_with(folder):
    assert loaded_by(folder, "import x.parquet -o alone.trace") == ["pyarrow.compute"]


@pytest.mark.slow
def test_a_replay_imports_no_frames_and_no_pictures(folder):
    loaded = loaded_by(folder, "replay x.csv --policy lru,belady,bound")
    assert not {"pandas", "matplotlib", "pyarrow.dataset", "scipy.linalg", "distributed"} & {
        *loaded
    }


@pytest.mark.slow
def test_a_sweep_on_this_machine_imports_no_dask(folder):
    study = (
        'title = "x"\n[traces.x]\nfile = "x.trace"\n[[run]]\npolicies = ["lru"]\ncache_mib = [4]\n'
    )
    (folder / "study.toml").write_text(study)
    assert not {"dask", "distributed", "matplotlib"} & {*loaded_by(folder, "sweep study.toml")}


@pytest.mark.slow
@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
@pytest.mark.parametrize(("policy", "kernel"), [("lru", "_lru"), ("s3-fifo", "_s3_fifo")])
def test_only_what_a_replay_runs_is_compiled(tmp_path, monkeypatch, policy, kernel):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    given = write_csv(tmp_path / "x.csv")
    assert run_process("replay", given, "--policy", policy, "--cache-mib", "4").code == 0
    compiled = {file.name.split("-")[0] for file in (tmp_path / "cache").rglob("*.nbc")}
    of_the_bound = {"_next_use", "_most_kept"}
    assert {name.rpartition(".")[2] for name in compiled} - of_the_bound == {"_fill", kernel}


@pytest.mark.slow
def test_machine_code_from_disk_waits_for_no_compiler(folder):
    """What numba needs to compile takes longer to load than a small replay runs."""
    words = "replay x.csv --policy lru,belady,bound"
    loaded_by(folder, words)
    code = RUN.replace("print(", "print('compiler:', 'numba.np.linalg' in sys.modules); print(")
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], capture_output=True, text=True, cwd=folder
    )
    assert "compiler: False" in done.stdout

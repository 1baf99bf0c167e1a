"""The engine from Python: ``tracekit.record``, ``tracekit.Session`` and ``tracekit.engine``, lazily."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from families import slow_unless

import tracekit
from tracekit import engine

HEAVY = ("numpy", "pyarrow", "pandas", "numba", "llama_cpp", "gguf", "tracekit_engine")
RECORD, SESSION = "record(path, 'abc', 'x.trace')", "Session(path)"
OPTIONS = ("Capture", "Generation", "Options", "Prompt", "Sampling", "Streaming")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_names_are_the_engines() -> None:
    package = engine.load()
    assert tracekit.record is package.record
    assert tracekit.Session is package.Session
    for name in OPTIONS:
        assert getattr(engine, name) is getattr(package, name)
        assert name in dir(engine)
    assert set(engine.__all__) == {*package.__all__, "load"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'tracekit\.engine' has no attribute 'Optoins'"):
        engine.Optoins  # noqa: B018


def test_imports_stay_light() -> None:
    code = "import sys, tracekit, tracekit.engine; tracekit.engine; print(*sys.modules)"
    assert not {name.partition(".")[0] for name in python(code).split()} & {*HEAVY}


@pytest.mark.slow
@pytest.mark.parametrize("first", ["tracekit.record", "tracekit.engine.Options"])
def test_arrow_gives_freed_memory_back(first: str) -> None:
    code = f"import tracekit; {first}; import pyarrow; print(pyarrow.default_memory_pool()"
    assert python(f"{code}.backend_name)") == "system\n"


@pytest.mark.parametrize(
    ("package", "call"),
    slow_unless(
        product(["llama_cpp", "gguf", "numpy", "tracekit_engine"], [RECORD, SESSION]),
        ("llama_cpp", RECORD),
    ),
)
def test_a_missing_package_is_one_sentence(
    package: str, call: str, model: Path, tmp_path: Path
) -> None:
    code = f"""
import os, sys
sys.modules[{package!r}] = None
os.chdir({str(tmp_path)!r})
import tracekit
path = {str(model)!r}
try:
    tracekit.{call}
except tracekit.TracekitError as error:
    print(error)
"""
    (sentence,) = python(code).splitlines()
    name = package.replace("llama_cpp", "llama-cpp-python")
    assert sentence.startswith(f"Recording needs {name}, which is not installed here")
    assert "pip install " in sentence
    assert list(tmp_path.iterdir()) == []

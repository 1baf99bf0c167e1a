"""Fixtures of the engine's tests; all of these tests need llama-cpp-python."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="the engine's tests need the extra: tracekit[engine]")

import tiny_models


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a function that returns an architecture's tiny model, written at the first call."""
    folder = tmp_path_factory.mktemp("models")

    def model(arch: str) -> Path:
        path = folder / f"{arch}.gguf"
        return path if path.exists() else tiny_models.write(path, arch)

    return model


@pytest.fixture
def model(tiny_model: Callable[[str], Path]) -> Path:
    """A tiny model, for tests that do not care which."""
    return tiny_model("qwen3moe")

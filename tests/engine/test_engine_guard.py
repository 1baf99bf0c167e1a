"""Where llama.cpp would end the process there is a sentence instead, and the process goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_models

from tracekit import datasets
from tracekit.trace import TracekitError, UsageError
from tracekit_engine import Options, Session, binding, header_numbers
from tracekit_engine.model_file import ModelFile

NAN = float("nan")
ASSERTIONS = {
    "loading": ({"rope.scaling.type": "abc"}, r"load .*: llama-model\.cpp:\d+: GGML_ASSERT\(hp"),
    "graph": ({"rope.dimension_count": 7}, r"run .*: qwen3moe\.cpp:\d+: GGML_ASSERT\(n_embd"),
    "pass": ({"attention.layer_norm_rms_epsilon": NAN}, r"run .*: ops\.cpp:\d+: GGML_ASSERT\(eps"),
}


@pytest.mark.parametrize("when", ASSERTIONS)
def test_an_assertion_that_fails(
    when: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_numbers, "check", lambda *_: None)
    odd, sentence = ASSERTIONS[when]
    path = tiny_models.write(tmp_path / "odd.gguf", "qwen3moe", odd=odd)
    with pytest.raises(TracekitError, match=rf"^llama\.cpp cannot {sentence}.* failed\.$"):
        Session(path, Options(threads=2))
    with Session(model) as session:  # what is left behind does not disturb another session
        session.evaluate([1], want_logits=True)


@pytest.mark.slow
def test_the_process_ends_in_good_order(tmp_path: Path) -> None:
    odd = {"rope.dimension_count": 7}
    path = tiny_models.write(tmp_path / "odd.gguf", "qwen3moe", odd=odd)
    command = ["record", str(path), "-p", "a", "-o", str(tmp_path / "run.trace")]
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", *command], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.startswith(f"Error: llama.cpp cannot run {path} (qwen3moe): ")


def test_ctrl_c_waits_for_guarded_work() -> None:
    done = []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        binding.guarded(work)
    assert done == [True]


@pytest.mark.slow
def test_the_most_experts_that_the_graph_has_room_for() -> None:
    path = datasets.model_path()
    with pytest.raises(UsageError, match=r"64 experts per token") as caught:
        Session(path, Options(n_expert_used=64))
    most = int(re.search(r"--n-expert-used (\d+)\.", str(caught.value))[1])
    assert ModelFile.open(path).top_k < most < 63
    with pytest.raises(UsageError, match=rf"it has room for {most}:"):
        Session(path, Options(n_expert_used=most + 1))
    with Session(path, Options(n_expert_used=most)) as session:
        assert session.evaluate([1, 2, 3], want_logits=True).captured.experts.shape[1] == most


def test_experts_used_that_cannot_be_chosen(tmp_path: Path) -> None:
    odd = {"expert_used_count": [2, 2, 2]}
    path = tiny_models.write(tmp_path / "layers.gguf", "qwen3moe", odd=odd)
    with pytest.raises(TracekitError, match=r"goes on using 2 experts per token of .*, not 3"):
        Session(path, Options(n_expert_used=3))

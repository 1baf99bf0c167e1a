"""Tiny models whose headers give one number at random: each runs, or is refused with one sentence.

``python tests/fuzz/model_numbers.py CASES [SEED]`` prints what came out, and each case that ended its
process, hung, or raised anything but a sentence; the exit code is 1 if there was one.
"""

import os
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

import tiny_models

from tracekit.trace import TracekitError
from tracekit_engine import Options, Session, Streaming, binding

SECONDS = 20
WHOLE = [0, 1, 2, 3, 5, 7, 33, 255, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
FLOATS = [0.0, -1.0, 1e-45, 1e-30, 0.5, 1.5, 1e10, 3e38, float("inf"), -float("inf"), float("nan")]
MORE_WHOLE = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "expert_count",
    "expert_used_count",
    "expert_group_count",
    "expert_group_used_count",
    "nextn_predict_layers",
    "attention.sliding_window",
    "vocab_size",
    "leading_dense_block_count",
    "expert_shared_count",
    "rope.scaling.original_context_length",
    "expert_gating_func",
    "attention.indexer.top_k",
    "hash_layer_count",
]
MORE_FLOATS = [
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "expert_weights_scale",
    "rope.scaling.yarn_log_multiplier",
    "attention.clamp_kqv",
]


def a_case(rng: random.Random) -> tuple[str, str, object]:
    """Draw an architecture, a key and its value."""
    arch = rng.choice(list(tiny_models.MODELS))
    own = tiny_models.MODELS[arch].keys
    whole = {key for key, value in own.items() if type(value) is int} | {*MORE_WHOLE}
    floats = {key for key, value in own.items() if type(value) is float} | {*MORE_FLOATS}
    key = rng.choice(sorted(whole | floats))
    value: object = rng.choice(WHOLE if key in whole else FLOATS)
    if rng.random() < 0.1:
        value = [value] * tiny_models.MODELS[arch].layers
    return arch, key, value


def outcome(path: Path, streamed: bool) -> str:
    """Run the model in a process of its own; return how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # llama.cpp prints where it aborts
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        try:
            options = Options(threads=1, n_ctx=64, streaming=Streaming() if streamed else None)
            with Session(path, options) as session:
                session.evaluate([1, 2, 3], want_logits=True)
                session.evaluate([4], want_logits=True)
            text = "ran"
        except TracekitError as error:
            text = "refused" if "\n" not in str(error) else f"several lines: {error}"
        except BaseException as error:
            text = f"raised {error!r}"
        os.write(writing, text.encode()[:1000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode("utf-8", "replace")
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hung" if number == signal.SIGALRM else f"died of signal {number}"
    return text or "said nothing"


def main(cases: int, seed: int = 0) -> int:
    """Run that many cases."""
    binding.load()
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        while counts.total() < cases:
            arch, key, value = a_case(rng)
            try:
                tiny_models.write(path, arch, odd={key: value})
            except Exception:  # the writer has no type for it
                continue
            found = outcome(path, rng.random() < 0.3)
            counts[found.split()[0]] += 1
            if found not in ("ran", "refused"):
                print(f"{arch} {key} = {value}: {found}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return int(counts["ran"] + counts["refused"] < cases)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

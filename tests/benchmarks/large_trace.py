"""Write a large trace: skewed routing that drifts, by the writer that imports use.

    python tests/benchmarks/large_trace.py big.trace --lookups 100000000

Each layer prefers a few experts, and which ones changes slowly from token to token. A turn has a
prompt of 512 tokens in one pass and 4,096 decoded tokens. A lookup takes about a byte on disk, and the
memory that writing takes does not depend on how many there are.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tracekit.formats.source import Source, write_source
from tracekit.trace.chunks import Routings
from tracekit.trace.schema import DECODE, PREFILL

TOP_K, EXPERTS, LAYERS = 8, 128, 56
PROMPT, GENERATED, BLOCK = 512, 4096, 512
EXPERT_BYTES = 3 << 20


def routings(lookups: int, layers: int, seed: int = 0) -> Iterator[Routings]:
    """Yield blocks of whole passes until there are `lookups` selected experts."""
    rng = np.random.default_rng(seed)
    taste = 1.1 * rng.standard_normal((layers, EXPERTS), dtype=np.float32)
    n_tokens = max(1, lookups // (layers * TOP_K))
    turn = step = 0
    while n_tokens:
        is_prompt = step < PROMPT
        count = min(n_tokens, BLOCK, (PROMPT if is_prompt else PROMPT + GENERATED) - step)
        taste += 0.15 * rng.standard_normal(taste.shape, dtype=np.float32)
        taste *= 0.99
        # The k smallest of exponential variables: a draw without replacement, by weight.
        drawn = rng.standard_exponential((count, layers, EXPERTS), dtype=np.float32)
        order = np.argpartition(drawn * np.exp(-2 * taste), TOP_K, axis=2)[:, :, :TOP_K]
        steps = np.repeat(np.arange(step, step + count), layers)
        n_rows = count * layers
        yield Routings(
            turn=np.full(n_rows, turn),
            passes=np.zeros(n_rows, np.int64) if is_prompt else steps,
            phase=np.full(n_rows, PREFILL if is_prompt else DECODE),
            step=steps,
            layer=np.tile(np.arange(layers), count),
            experts=order.reshape(n_rows, TOP_K),
        )
        n_tokens -= count
        step += count
        if step == PROMPT + GENERATED:
            turn, step = turn + 1, 0


def write(path: Path, lookups: int, layers: int = LAYERS) -> None:
    """Write the trace, in bounded memory."""
    model = {"name": "made up", "arch": "made up", "n_layer": layers, "n_expert": EXPERTS}
    source = Source(str(path), routings(lookups, layers), model=model, slot_order="ranked")
    source.expert_bytes = EXPERT_BYTES
    write_source(source, path, force=True)


def main() -> None:
    """Write the trace that the command line asks for."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("trace", type=Path)
    arguments.add_argument("--lookups", type=lambda text: int(float(text)), default=10**8)
    arguments.add_argument("--layers", type=int, default=LAYERS)
    given = arguments.parse_args()
    write(given.trace, given.lookups, given.layers)
    n_bytes = sum(file.stat().st_size for file in given.trace.iterdir())
    print(f"{given.trace}: {given.lookups:,} lookups, {n_bytes / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()

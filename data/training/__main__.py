"""``python -m training --work DIR``: from Debian packages to the GGUF, in one command."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from .corpus import collect
from .export import export
from .model import Shape
from .tokens import train_tokenizer, write_tokens
from .train import Schedule, Text, evaluate, train

SEED = 0
N_STEP = 3000
NAME = "tiny-moe-64e-q8_0"


def prepare(work: Path, n_vocab: int) -> None:
    """Write the tokenizer and the token streams of both texts, unless they lie there already."""
    facts_path = work / "corpus.json"
    if facts_path.exists():
        return
    corpus = collect(work, SEED)
    tokenizer = train_tokenizer(corpus.train, n_vocab, SEED)
    tokenizer.save(str(work / "tokenizer.json"))
    facts = {}
    for name, documents in (("train", corpus.train), ("validation", corpus.validation)):
        n_token = write_tokens(tokenizer, documents, work / f"{name}.bin")
        n_byte = sum(len(document.encode()) for document in documents)
        facts[name] = {"documents": len(documents), "bytes": n_byte, "tokens": n_token}
    print(facts, flush=True)
    facts_path.write_text(json.dumps(facts, indent=1))


def read_text(work: Path, name: str) -> Text:
    """Read what `prepare` wrote; ``name`` is ``train`` or ``validation``."""
    facts = json.loads((work / "corpus.json").read_text())
    return Text(np.fromfile(work / f"{name}.bin", dtype=np.uint16), facts[name]["bytes"])


def main() -> None:
    """Run every step; what the text gathering left in the work folder is used again."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for all that is written")
    parser.add_argument("--steps", type=int, default=N_STEP)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)

    shape, schedule = Shape(), Schedule(n_step=arguments.steps)
    prepare(work, shape.n_vocab)
    text, validation = read_text(work, "train"), read_text(work, "validation")
    model = train(shape, schedule, text, validation, SEED, work / "model.pt")
    for name, stream in (("train", text), ("validation", validation)):
        for window in (schedule.window, schedule.long_window):
            loss = evaluate(model, stream, window, schedule.step_tokens, max_batches=40)
            print(
                f"{name}, windows of {window} tokens: {loss:.4f} nats/token,"
                f" {stream.bits_per_byte(loss):.4f} bits/byte",
                flush=True,
            )
    export(model, Tokenizer.from_file(str(work / "tokenizer.json")), work / f"{NAME}.gguf")


if __name__ == "__main__":
    main()

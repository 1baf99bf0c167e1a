"""A byte-level BPE tokenizer, and the texts as token streams."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"  # id 0; it also stands before every document


def train_tokenizer(documents: Sequence[str], vocab_size: int, seed: int) -> Tokenizer:
    """Learn the merges from a third of the documents (more do not change the result visibly).

    Its splitting is GPT-2's, which llama.cpp knows as ``gpt-2``.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample = random.Random(seed).sample(list(documents), len(documents) // 3)
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def write_tokens(tokenizer: Tokenizer, documents: Sequence[str], path: Path) -> int:
    """Write the documents as one stream of uint16 tokens; returns how many there are."""
    stream: list[int] = []
    for encoding in tokenizer.encode_batch(list(documents)):
        stream.append(0)
        stream += encoding.ids
    np.array(stream, dtype=np.uint16).tofile(path)
    return len(stream)


def merges(tokenizer: Tokenizer) -> list[str]:
    """Return the learned merges, each as ``"left right"``, in order."""
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) for pair in learned]

"""Make the bundled model: text, tokenizer, training, GGUF. Run ``python -m training`` in ``data/``."""

"""A lean streaming engine that records: llama.cpp computes, this watches the router and reads.

It runs where memory is short, so it needs numpy, pyarrow, gguf and llama-cpp-python only.
"""

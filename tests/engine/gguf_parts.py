"""Parts of a GGUF file that tests write: keys and a small vocabulary."""

from gguf import GGUFWriter


def add_keys(writer: GGUFWriter, arch: str, keys: dict[str, object]) -> None:
    """Add the keys of an architecture; GGUF's type follows from the value's."""
    for name, value in keys.items():
        key = f"{arch}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def add_vocabulary(writer: GGUFWriter) -> int:
    """Add a byte-level BPE vocabulary and return its size: a token for each byte, and end of text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(rest)}
    tokens = [letters[byte] for byte in range(256)] + ["<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3])
    writer.add_token_merges(["q q"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)
    return len(tokens)

"""Read what a model's file says, by what is in it and not by its name."""

from pathlib import Path

from tracekit.model_files.gguf import MAGIC
from tracekit.model_files.paths import check_file
from tracekit.model_files.sizes import ModelSizes
from tracekit.trace.errors import TraceError

_HEAD_BYTES = 64


def read_model(path: Path, top_k: int | None = None) -> ModelSizes:
    """Return what the files of a model say of its experts and routers.

    Parameters
    ----------
    path : Path
        A GGUF file (of a split model the first), a safetensors file, a folder of safetensors
        files, or a ``config.json``.
    top_k : int, optional
        Experts that a token uses, where the files do not say it.

    Raises
    ------
    TraceError
        It is none of these, is damaged, has no experts, or does not say how many a token uses.
    """
    try:
        if path.is_dir():
            from tracekit.model_files.safetensors_model import read_folder

            return read_folder(path, top_k)
        check_file(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(MAGIC):
            from tracekit.model_files.gguf_model import read_gguf

            return read_gguf(path)
        # A safetensors file begins with the length of its header; text is no such length.
        if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= path.stat().st_size:
            from tracekit.model_files.safetensors_model import read_file

            return read_file(path, top_k)
        if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            from tracekit.model_files.config import read_config

            return read_config(path, top_k)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error
    raise TraceError(
        f"{path} is no model's file; name a GGUF file, a safetensors file or a folder of them, or a "
        "config.json."
    )

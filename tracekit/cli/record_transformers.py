"""``tracekit record --backend transformers``: run a model folder in torch and record its routing.

Options go in; tracekit.hooks records. What was recorded goes to stderr.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.figures import counted
from tracekit.trace.errors import TracekitError, UsageError

if TYPE_CHECKING:
    from tracekit.engine import Prompt

BACKENDS = ("llama.cpp", "transformers")


def check_backend(backend: str, model: Path | None, others: Mapping[str, Any]) -> bool:
    """Say whether to record from transformers.

    Parameters
    ----------
    backend : str
    model : Path or None
    others : mapping
        By flag, options that only llama.cpp has, with what was given for them.

    Raises
    ------
    UsageError
        The backend is not known; or an option, or the model, is none of it.
    """
    if backend not in BACKENDS:
        raise UsageError(f"--backend takes {' or '.join(BACKENDS)}, not {backend!r}.")
    is_folder = model is not None and model.is_dir()
    if backend != "transformers":
        if is_folder:
            raise UsageError(
                f"{model} is a folder; name a GGUF file, or add --backend transformers."
            )
        return False
    for flag, given in others.items():
        if given is not None and given is not False:
            raise UsageError(
                f"{flag} is an option of llama.cpp, which --backend transformers does not have; "
                "leave it out."
            )
    if not is_folder:
        wrong = "" if model is None else f" {model} is none:"
        raise UsageError(
            f"--backend transformers needs the folder of a model;{wrong} name the one with its "
            "config.json."
        )
    return True


def record_folder(
    console: Console,
    model: Path,
    turns: "Sequence[Prompt]",
    output: Path,
    *,
    threads: int | None,
    is_printed: bool,
    **how: Any,
) -> None:
    """Load the model in the folder `model` and record it; `how` goes to `record_transformers`.

    Raises
    ------
    UsageError
        Something is at `output`.
    TracekitError
        torch or transformers is missing, or the folder holds no model that is recorded.
    """
    from tracekit.hooks import record_transformers
    from tracekit.trace.folder import check_target

    check_target(output, how["force"])  # before a large model is loaded
    loaded, tokenizer = _load(model, threads)

    def show(turn: int, text: str) -> None:
        if is_printed:
            print(text, flush=True)

    try:
        recorded = record_transformers(
            loaded,
            tokenizer,
            [turn.text or [{"role": r, "content": c} for r, c in turn.messages] for turn in turns],
            output,
            command=["tracekit", *sys.argv[1:]],
            on_turn=show,
            **how,
        )
    except KeyboardInterrupt:
        note_what_is_left(console, output)
        raise
    for warning in recorded.warnings:
        console.warn(warning)
    console.note(
        f"Recorded {counted(recorded.n_turns, 'turn')} to {output}: {recorded.n_prefilled} prompt "
        f"and {recorded.n_decoded} decoded tokens; ended: {recorded.ended}."
    )
    console.note(f"Next: {shlex.join(['tracekit', 'predict', str(output)])}")


def note_what_is_left(console: Console, path: Path) -> None:
    """Say that an interrupted recording has left an incomplete trace, if it has."""
    from tracekit.trace.storage import read_facts

    with suppress(TracekitError):
        if not read_facts(path).complete:
            console.note(f"What was recorded until then is kept in {path}, marked incomplete.")


def _load(folder: Path, threads: int | None) -> tuple[Any, Any]:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise TracekitError(
            f"Recording from transformers needs {error.name or error}, which is not installed here; "
            "install it with: pip install 'tracekit[hf]'"
        ) from error
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        fault = str(error).strip().partition("\n")[0][:300].rstrip(".")
        raise TracekitError(
            f"transformers cannot load {folder}: {fault}; name a folder with config.json, weights "
            "and tokenizer."
        ) from error
    return model.eval(), tokenizer

"""What the options of ``tracekit record`` mean to the engine: how it runs the model, and on what.

In: the values that typer read. Out: the engine's own `Options`, and prompts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.cli.options import MAX_MIB
from tracekit.figures import MIB
from tracekit.trace.build import shown, spelt
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from tracekit.engine import Options, Prompt, Streaming


def options_of(given: Mapping[str, Any]) -> "Options":
    """Return how the engine loads the model and evaluates tokens.

    Parameters
    ----------
    given : mapping
        By the names of the command's parameters: `threads`, `n_expert_used`, `chunk`, `stream`,
        `cache_mib`, `io_threads`, `direct_io`, `no_logits`, `no_gate_inputs`, `gate_dtype`.

    Raises
    ------
    UsageError
        A value is none that the option takes, or an option needs ``--stream``.
    """
    from tracekit.engine import Capture, Options

    gate_inputs = not given["no_gate_inputs"]
    streamed = (given[name] for name in ("stream", "cache_mib", "io_threads", "direct_io"))
    return Options(
        threads=given["threads"],
        n_expert_used=given["n_expert_used"],
        chunk=given["chunk"],
        streaming=_streaming(*streamed),
        capture=Capture(not given["no_logits"], gate_inputs, gate_inputs, given["gate_dtype"]),
    )


def _streaming(
    stream: bool, cache_mib: str | None, io_threads: int | None, direct_io: bool
) -> "Streaming | None":
    from tracekit.engine import Streaming

    if not stream:
        for option, given in (
            ("--cache-mib", cache_mib),
            ("--io-threads", io_threads),
            ("--direct-io", direct_io),
        ):
            if given is not None and given is not False:
                raise UsageError(f"{option} says how experts are streamed; add --stream.")
        return None
    lanes = 4 if io_threads is None else io_threads
    if cache_mib is None or cache_mib == "auto":
        return Streaming(None, lanes, direct_io)
    try:
        size = spelt(cache_mib, float)
    except ValueError:
        size = -1.0
    if not 0 <= size <= MAX_MIB:
        raise UsageError(
            f"--cache-mib takes a size in MiB from 0 to 1e12, or auto, not {shown(cache_mib)}."
        )
    return Streaming(round(size * MIB), lanes, direct_io)


def prompts_of(
    texts: list[str], file: Path | None, jsonl: Path | None, model: Path | None
) -> "list[Prompt]":
    """Return the prompts, each of which is a turn.

    Parameters
    ----------
    texts : list of str
    file, jsonl : Path or None
        A file whose text is a prompt, and one with a prompt in each line; ``-`` is stdin.
    model : Path or None
        What was given for the model: a prompt that is not quoted may be taken for it.

    Raises
    ------
    UsageError
        There is none, or both files are stdin.
    TracekitError
        A file cannot be read.
    """
    from tracekit.engine import Prompt, load

    load()  # finds tracekit_engine in a checkout that is not installed
    from tracekit_engine.prompts import from_file, from_jsonl

    if str(file) == str(jsonl) == "-":
        raise UsageError("Standard input is either --prompt-file or --prompts; name a file.")
    turns = [Prompt(text) for text in texts]
    if file is not None:
        turns.append(from_file(file))
    if jsonl is not None:
        turns += from_jsonl(jsonl)
    if not turns:
        hint = f"{model} was taken for the model. " if model and not model.exists() else ""
        raise UsageError(f"{hint}There is no prompt; give one with -p, --prompt-file or --prompts.")
    return turns

"""``tracekit record --rounds``: two configurations recorded in turns, for ``tracekit compare``.

In: what the command was given, and by which options the second configuration differs. Out: a trace of
each run, and the command that compares them. The runs take turns A B B A, so that a device that grows
warmer and slower does so for both.
"""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tracekit.cli.console import INTERRUPTED
from tracekit.cli.record_options import options_of
from tracekit.cli.record_task import Task
from tracekit.figures import joined
from tracekit.trace.build import shown
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from tracekit.engine import Options

ORDER = "ABBA"
MOST_ROUNDS = 1000
PAUSE_S = 10.0
MOST_PAUSE_S = 86400.0
# How experts are read and what is copied changes neither the tokens nor their routing.
MAY_DIFFER = (
    "threads",
    "stream",
    "cache_mib",
    "io_threads",
    "direct_io",
    "no_logits",
    "no_gate_inputs",
    "gate_dtype",
)
_NO_OUTPUT = "as the first configuration"  # -o has to be given


@dataclass(frozen=True)
class Rounds:
    """How often two configurations are recorded in turns.

    Attributes
    ----------
    count : int
        Runs of each configuration.
    second : dict
        What the second configuration was given, as `options_of` takes it.
    pause_s : float
        Seconds between two runs.
    """

    count: int
    second: dict[str, Any]
    pause_s: float

    def outputs(self, output: Path) -> list[tuple[str, Path]]:
        """Return the configuration and the trace of each run, in the order they run.

        Parameters
        ----------
        output : Path
            ``run.trace`` gives ``run-a1.trace``, ``run-b1.trace``, ``run-b2.trace`` …
        """
        suffix = output.suffix if output.suffix == ".trace" else ""
        stem = output.name.removesuffix(suffix)
        counts = {"A": 0, "B": 0}
        found = []
        for letter in islice(cycle(ORDER), 2 * self.count):
            counts[letter] += 1
            name = f"{stem}-{letter.lower()}{counts[letter]}{suffix}"
            found.append((letter, output.with_name(name)))
        return found


def rounds_of(
    context: typer.Context,
    given: Mapping[str, Any],
    *,
    rounds: int | None,
    versus: str | None,
    pause: float | None,
    text: bool,
) -> Rounds | None:
    """Return how to record in turns; None if that is not asked for.

    Parameters
    ----------
    context : typer.Context
        Of the command, whose options `versus` may name.
    given : mapping
        What the first configuration was given, as `options_of` takes it.
    rounds, versus, pause, text
        What was given for these options.

    Raises
    ------
    UsageError
        An option is missing, not for this, or out of range; or the second configuration differs in
        what makes other tokens, or in nothing.
    """
    if rounds is None:
        for flag, value in (("--versus", versus), ("--pause", pause)):
            if value is not None:
                raise UsageError(f"{flag} is for runs in turns; add --rounds N, or leave it out.")
        return None
    if versus is None:
        raise UsageError(
            "--rounds takes turns with a second configuration; add --versus '--cache-mib 2000', say, "
            "or --versus '' to record the same one twice."
        )
    if not 1 <= rounds <= MOST_ROUNDS:
        raise UsageError(f"--rounds takes a whole number from 1 to {MOST_ROUNDS}, not {rounds}.")
    if pause is not None and not 0 <= pause <= MOST_PAUSE_S:
        raise UsageError(f"--pause takes 0 to {MOST_PAUSE_S:.0f} seconds, not {pause:g}.")
    if text:
        raise UsageError("--text prints the text of one run; leave it out with --rounds.")
    second = {**given, **_differing(context, versus)}
    if versus.strip() and second == given:
        raise UsageError(
            f"--versus {shown(versus)} changes nothing; to record the same configuration twice, as a "
            "check, give --versus ''."
        )
    for each in (given, second):
        if each["stream"] and each["cache_mib"] in (None, "auto"):
            raise UsageError(
                "The automatic cache size differs from run to run, so runs could not be compared; give "
                "each configuration of --rounds its --cache-mib N."
            )
    return Rounds(rounds, second, PAUSE_S if pause is None else pause)


def _differing(context: typer.Context, versus: str) -> dict[str, Any]:
    """Return the values of the options that `versus` names, by the names of the parameters."""
    flags = {
        each.name: each.opts[-1] if each.param_type_name == "option" else f"the {each.name}"
        for each in context.command.params
    }
    choice = joined([flags[name] for name in MAY_DIFFER])
    try:
        words = shlex.split(versus)
    except ValueError as error:
        raise UsageError(
            f"--versus {shown(versus)} cannot be split into options; close its quotes."
        ) from error
    if {"-h", "--help"} & {*words}:
        raise UsageError(f"--versus takes {choice}; --help is for the command itself.")
    try:
        second = context.command.make_context("--versus", ["-o", _NO_OUTPUT, *words])
    except UsageError as error:
        raise UsageError(f"--versus: {error}") from error
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own class, which has no public name
            raise
        fault = error.format_message().rstrip(".")
        raise UsageError(f"--versus {shown(versus)}: {fault}; it takes {choice}.") from error
    asked = {
        name: value
        for name, value in second.params.items()
        if getattr(second.get_parameter_source(name), "name", "") == "COMMANDLINE"
        and not (name == "output" and str(value) == _NO_OUTPUT)
    }
    for name in asked:
        if name not in MAY_DIFFER:
            raise UsageError(
                f"--versus cannot change {flags[name]}: both configurations run the same model on the "
                f"same prompts, so that their tokens can be compared; it takes {choice}."
            )
    return asked


def record_in_turns(task: Task, options: "Options", rounds: Rounds, output: Path) -> None:
    """Record both configurations in turns, and say how to compare them.

    Parameters
    ----------
    task : Task
    options : Options
        Of the first configuration.
    rounds : Rounds
    output : Path
        What the traces' names begin with.

    Raises
    ------
    UsageError
        A trace is there already; nothing is recorded then.
    TracekitError
        A run failed; those before it are finished.
    """
    from tracekit.trace.folder import check_target

    if output.name in ("", ".."):
        raise UsageError(f"{output} is no name for traces; give one, such as run.trace.")
    runs = rounds.outputs(output)
    for _, path in runs:
        check_target(path, task.force)
    of_letter = dict(
        zip("AB", _in_equal_chunks(task, options, options_of(rounds.second)), strict=True)
    )
    finished: list[Path] = []
    try:
        for number, (letter, path) in enumerate(runs, 1):
            pause_s = rounds.pause_s if finished else 0.0
            waits = f" begins in {pause_s:g} s" if pause_s else ""
            task.console.note(f"Run {number} of {len(runs)}, configuration {letter}{waits}.")
            time.sleep(pause_s)
            if task.record(of_letter[letter], path).ended == "interrupted":
                task.console.note(f"{path} is shorter than the others, and cannot be compared.")
                raise typer.Exit(INTERRUPTED)
            finished.append(path)
    except BaseException:
        if finished:
            task.console.note(f"Finished before: {joined([str(path) for path in finished])}.")
        raise
    task.console.note(shlex.join(["tracekit", "compare", *(str(path) for path in finished)]))


def _in_equal_chunks(task: Task, *both: "Options") -> "Sequence[Options]":
    """Return options that evaluate a prompt in the same chunks: sums then round alike in both."""
    from tracekit_engine.budget import check_given_budget, largest_chunk
    from tracekit_engine.model_file import ModelFile
    from tracekit_engine.options import MOST_CTX

    file = ModelFile.open(task.model)
    for each in both:
        check_given_budget(file, each)
    chunk = min(largest_chunk(file, replace(each, n_ctx=MOST_CTX)) for each in both)
    return [replace(each, chunk=chunk) for each in both]

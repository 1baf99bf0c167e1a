"""The ``tracekit`` command: its subcommands, and how each failure becomes a sentence.

In come the words of the command line; each command's own module does the work.
"""

import io
import os
import signal
import sys
import traceback
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from tracekit.cli.console import INTERRUPTED, say_error, silence
from tracekit.trace.errors import TracekitError

# Each is a function in a module of the same name, which is loaded when the command is needed.
COMMANDS = (
    "record",
    "replay",
    "predict",
    "advise",
    "compare",
    "sweep",
    "plot",
    "report",
    "import",
    "export",
    "formats",
    "info",
    "policies",
)


def _command(name: str) -> Any:
    """Load a command; its module imports numpy, numba and pandas only when the command runs."""
    own_name = f"{name}_" if iskeyword(name) else name
    module = import_module(f"tracekit.cli.{own_name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, epilog=getattr(module, "EPILOG", None))(getattr(module, own_name))
    return get_command(alone)


def _sentence(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"There is not enough memory for this ({str(error) or 'allocation failed'})."
    if isinstance(error, OSError):
        if error.filename is None:
            return f"Reading or writing failed: {error.strerror or error}."
        return f"Cannot use {error.filename}: {error.strerror}."
    return str(error)


def _place_in_own_code(error: Exception) -> str | None:
    """Return the place in a user's own policy or predictor that raised `error`, if one did."""
    from tracekit.registry import is_users_file

    own = [f for f in traceback.extract_tb(error.__traceback__) if is_users_file(f.filename)]
    return f"{own[-1].name}() in {own[-1].filename}, line {own[-1].lineno}," if own else None


class Commands(TyperGroup):
    """The group of subcommands. An exception of one becomes a sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all subcommands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Load a subcommand. For an unknown name all are loaded: typer suggests the nearest."""
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.add_command(_command(name))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand of `ctx`."""
        try:
            result = super().invoke(ctx)
            print(end="", flush=True)
            return result
        except KeyboardInterrupt:
            # A second Ctrl-C ends the process at once, without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            say_error("Interrupted.")
            code = INTERRUPTED
        except BrokenPipeError:
            silence(1)  # the reader of a pipe is gone: `tracekit replay … | head`
            code = 0
        except (TracekitError, OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno and error.filename is None:
                silence(1)
            if os.environ.get("TRACEKIT_DEBUG") == "1":
                traceback.print_exc()
            say_error(_sentence(error))
            code = error.exit_code if isinstance(error, TracekitError) else 1
        except Exception as error:
            where = _place_in_own_code(error)
            if where is None or os.environ.get("TRACEKIT_DEBUG") == "1":
                raise
            say_error(
                f"{where} raised {type(error).__name__}: {error}; TRACEKIT_DEBUG=1 shows the "
                "traceback."
            )
            code = 1
        raise typer.Exit(code)


app = typer.Typer(
    name="tracekit",
    cls=Commands,
    help="Record how a Mixture-of-Experts model routes its tokens, and replay the trace "
    "through expert predictors and cache policies.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the trace failed validation, "
    "130 interrupted. TRACEKIT_DEBUG=1 shows tracebacks, NO_COLOR=1 turns colours off.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from tracekit.version import version as installed

        print(f"tracekit {installed()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def _open_streams() -> None:
    """Open /dev/null for each closed stream (``2>&-``).

    Otherwise the next file that is opened would get its number, and the text meant for the stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def main() -> None:
    """Run the command line."""
    _open_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An encoding without × and ≤ gets a ? instead of a traceback.
        sys.stdout.reconfigure(errors="replace")
    if os.environ.get("_TRACEKIT_COMPLETE") == "complete_bash":
        from tracekit.cli import completion

        completion.join_bash_words(os.environ)
    try:
        app(prog_name="tracekit")
    except OSError as error:  # --help and --version print outside of `Commands.invoke`
        silence(1)
        say_error(_sentence(error))
        sys.exit(1)

"""The command line: one thin file a command; parse, call, print."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, loaded here so that Ctrl-C meanwhile is no traceback either."""
    try:
        from tracekit.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()

"""What does a user type? One thin file a command: it parses, calls and prints."""

import sys

__all__ = ["main"]


def main() -> None:
    """Load and run the command line; a Ctrl-C while it loads gives no traceback either."""
    try:
        from tracekit.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)

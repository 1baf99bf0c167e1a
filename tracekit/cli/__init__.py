"""The command line: one thin file a command; parse, call, print."""

from tracekit.cli.app import main

__all__ = ["main"]

"""Errors that a user can mend, each one plain sentence; the command line maps them to exit codes."""


class TracekitError(Exception):
    """A task failed for a reason the user can act on (exit code 1)."""

    exit_code = 1


class UsageError(TracekitError):
    """What was asked for cannot be: a wrong option, an unknown name (exit code 2)."""

    exit_code = 2


class TraceError(TracekitError):
    """A trace, or a file to import, is not what it should be (exit code 3)."""

    exit_code = 3


class MissingDataError(TraceError):
    """A sound trace does not carry what was asked of it (exit code 1)."""

    exit_code = 1

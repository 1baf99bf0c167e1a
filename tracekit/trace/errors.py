"""Errors that a user can put right, each one plain sentence, and the exit codes that they mean."""


class TracekitError(Exception):
    """A task failed for a reason the user can act on (exit code 1)."""

    exit_code = 1


class UsageError(TracekitError):
    """The request is wrong: an option that is not valid, an unknown name (exit code 2)."""

    exit_code = 2


class TraceError(TracekitError):
    """A trace, or a file to import, is damaged or not valid (exit code 3)."""

    exit_code = 3


class MissingDataError(TraceError):
    """A valid trace lacks the data that a question needs (exit code 1)."""

    exit_code = 1

"""Which version of tracekit this is."""


def version() -> str:
    """Return the version of the installed package, as in ``0.1.0``."""
    from importlib.metadata import version as installed  # it takes a while to import

    return installed("tracekit")

"""The layouts in which `drawn_run.Drawn` is written: what each is called, holds and needs.

The modules ``layouts_*`` register them. They are written from descriptions of the layouts, and know no
reader.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drawn_run import Drawn

Writer = Callable[[Drawn, Path], Path | list[Path]]


def _same(run: Drawn) -> Drawn:
    return run


def _none(run: Drawn) -> dict:
    return {}


def chunks(run: Drawn) -> dict:
    """Return the option that says how prompts were split, for layouts that do not."""
    return {"chunk": run.chunk}


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes
    ----------
    write : callable
        Writes a run to a folder and returns what a user would name.
    view : callable
        Returns what of a run the layout holds, its slots in the order that a trace has.
    options : callable
        Returns what the user has to say, as `ImportOptions` takes it.
    order : {"ranked", "sorted", "unknown"}
        What the trace says of its slots.
    holds : tuple of str
        Of weights, logits, gate_input, token.
    precision : float
        How far weights may be off.
    """

    write: Writer
    view: Callable[[Drawn], Drawn] = _same
    options: Callable[[Drawn], dict] = _none
    order: str = "unknown"
    holds: tuple[str, ...] = ()
    precision: float = 1e-6


LAYOUTS: dict[str, Layout] = {}


def layout(name: str, **more: object) -> Callable[[Writer], Writer]:
    """Register a writer as the layout `name`."""

    def register(write: Writer) -> Writer:
        assert name not in LAYOUTS, name
        LAYOUTS[name] = Layout(write, **more)
        return write

    return register

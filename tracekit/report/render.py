"""The page: a template, its styles and scripts, and the policy that keeps the page to itself."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from tracekit.figures import visible

STYLES = ("page.css", "matrix.css")
SCRIPTS = ("blobs.js", "cells.js", "board.js", "strip.js", "panel.js", "start.js")


def _part(name: str) -> str:
    return (files("tracekit.report") / "page" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _visible(value: Any) -> Any:
    """Return a text of `content` as a reader can see it; what this package made itself stays."""
    return visible(value) if type(value) is str else value


@cache
def _template() -> Template:
    """Return the page's template; a process that writes several pages compiles it once."""
    environment = Environment(
        loader=FunctionLoader(_part),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")


def render(**content: Any) -> str:
    """Return the page with `content` in it.

    Everything that comes from a trace is escaped by the template. Should something slip through
    after all, the page's policy runs no script and no style but the page's own, and lets nothing
    be loaded or sent. Characters that nobody sees, and those that turn a text around, are shown as
    escapes.
    """
    css = "\n".join(map(_part, STYLES))
    scripts = [_part(name) for name in SCRIPTS]
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src {_hash(css)}",
            f"script-src {' '.join(map(_hash, scripts))}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return _template().render(css=css, scripts=scripts, content_policy=policy, **content)

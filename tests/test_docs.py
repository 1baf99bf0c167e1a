"""The reference pages are what the code says."""

import importlib
import sys
from pathlib import Path

import pytest

from tracekit.cli.app import COMMANDS

DOCS = Path(__file__).resolve().parents[1] / "docs"
GENERATED = ("commands.md", "policies.md", "predictors.md", "plots.md", "columns.md", "formats.md")


@pytest.fixture(scope="module")
def make():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("make")
    finally:
        sys.path.remove(str(DOCS))


def test_every_page_is_known(make):
    assert tuple(make.PAGES) == GENERATED


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_is_what_the_code_says(make, name):
    kept = (DOCS / name).read_text(encoding="utf-8")
    assert kept == make.PAGES[name](), f"docs/{name} is out of date; run: python docs/make.py"


def test_every_command_has_a_section(make):
    page = make.PAGES["commands.md"]()
    for command in COMMANDS:
        assert f"## tracekit {command}\n" in page

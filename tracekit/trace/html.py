"""A trace as a notebook shows it: a small table of what it holds.

In: an open trace. Out: HTML in which every text is escaped, as the names in a trace may be anybody's.
"""

from collections.abc import Iterator
from html import escape
from typing import Protocol

import numpy as np

from tracekit.trace.errors import TraceError
from tracekit.trace.facts import TraceFacts

MIB = 2**20
# What a trace may carry beside the experts of a routing.
OPTIONAL = ("weights", "residency", "dropped", "logits", "gate_input")


class _Described(Protocol):
    """What the table needs of a trace."""

    facts: TraceFacts
    name: str
    warnings: list[str]

    @property
    def complete(self) -> bool: ...
    @property
    def n_expert(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def n_decoded(self) -> int: ...
    @property
    def n_turns(self) -> int: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def moe_layers(self) -> np.ndarray: ...
    @property
    def bank_bytes(self) -> int: ...
    @property
    def token_cycle_bytes(self) -> int: ...
    @property
    def budget_bytes(self) -> int | None: ...

    def has(self, column: str) -> bool: ...


def trace_html(trace: _Described) -> str:
    """Return a table of two columns: what is known of `trace`, and its warnings."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _lines(trace)
    )
    return f"<table>{rows}</table>"


def _lines(trace: _Described) -> Iterator[tuple[str, str]]:
    facts, model = trace.facts, trace.facts.model
    yield "trace", f"{trace.name} ({facts.source}, {'' if trace.complete else 'in'}complete)"
    yield "model", f"{model.name} ({', '.join(filter(None, [model.arch, model.quantisation]))})"
    yield (
        "experts",
        f"{trace.n_expert} in each of {len(trace.moe_layers)} MoE layers, {trace.top_k} used per token",
    )
    yield "decoded tokens", f"{trace.n_decoded:,}, of {trace.n_turns:,} turns"
    yield "routings", f"{trace.n_rows:,}"
    try:
        yield "expert bank", _mib(trace.bank_bytes)
        yield "token cycle", f"{_mib(trace.token_cycle_bytes)} (what one token touches)"
    except TraceError:  # the size of some expert is not given
        yield "expert bank", "sizes unknown"
    if trace.budget_bytes is not None:
        yield "recorded cache", _mib(trace.budget_bytes)
    yield "carries", ", ".join(["experts", *(name for name in OPTIONAL if trace.has(name))])
    for warning in trace.warnings:
        yield "warning", warning


def _mib(size: int) -> str:
    return f"{size / MIB:,.4g} MiB"

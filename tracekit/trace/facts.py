"""What ``trace.json`` says of a trace: the model, the engine, how it was run, whether it is complete.

In: a JSON object, or values given by a recorder or importer. Out: frozen dataclasses whose values are
of their types and fit together. This module knows nothing of the rows of a trace.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeGuard, TypeVar

from tracekit.trace.agreement import Agreement
from tracekit.trace.build import build, on_one_line, shown
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import SCHEMA_VERSION

GATINGS = ("softmax", "sigmoid", "logits", "sqrt-softplus")
SOURCES = ("recorded", "imported", "synthetic")
SLOT_ORDERS = ("ranked", "sorted", "unknown")
# What may be copied out of a model while it runs, and what sentences call it.
CAPTURES = {"logits": "logits", "gate_input": "gate inputs", "embedding": "embeddings"}
# Of all layers together. A replay keeps some numbers of each; Kimi K2 has 23,424.
MOST_EXPERTS = 1 << 20

_SCHEMA = "tracekit.trace/"
_SHA256 = re.compile("[0-9a-f]{64}")
Part = TypeVar("Part", "ModelFacts", "EngineFacts", Agreement, "KeptDigest")


@dataclass(frozen=True)
class ModelFacts:
    """The model, as far as a replay needs to know it.

    Attributes
    ----------
    gating : str or None
        The score that selection ranks by: ``softmax``, ``sigmoid`` or ``sqrt-softplus`` of the
        logits, or the ``logits`` themselves (a softmax after selection, as gpt-oss has it). None
        where the source of the trace does not say.
    n_group, n_group_used : int
        Expert groups, and how many of them stay unmasked before top-k (1, 1: no groups).
    norm_eps : float or None
        Epsilon of the RMS norm before routing.
    """

    name: str
    arch: str
    n_layer: int
    n_expert: int
    top_k: int
    n_embd: int | None = None
    quantisation: str | None = None
    gating: str | None = None
    n_group: int = 1
    n_group_used: int = 1
    norm_eps: float | None = None
    file_bytes: int | None = None


@dataclass(frozen=True)
class EngineFacts:
    """The engine that ran the model, and its expert cache (None: all experts resident)."""

    name: str
    version: str | None = None
    cache_policy: str | None = None
    cache_bytes: int | None = None
    io_threads: int | None = None
    direct_io: bool | None = None
    compute_threads: int | None = None


@dataclass(frozen=True)
class KeptDigest:
    """The digest of a trace as it was written, and by what a reader knows that it is of these files.

    Attributes
    ----------
    sha256 : str
        As `tracekit.trace.digest.digest` computes it.
    sizes_sha256 : str
        Of the model's and the experts' sizes alone.
    routing_bytes : int
        Size of ``routing.parquet``.
    """

    sha256: str
    sizes_sha256: str
    routing_bytes: int


@dataclass(frozen=True)
class TraceFacts:
    """The content of ``trace.json``.

    Attributes
    ----------
    source : {"recorded", "imported", "synthetic"}
    complete : bool
        False while a recording runs, and after it was killed.
    ended : str or None
        Why a recording ended: ``"length"``, ``"end of text"``, ``"interrupted"`` …
    prompts : list of str
        One per turn, as given.
    sampling : dict
        ``{"temperature": 0.0, …}``.
    notes : dict
        Everything else that an importer or a recorder found worth keeping.
    slot_order : {"ranked", "sorted", "unknown"}
        Whether the slots of a routing stand heaviest first, in the order of their expert ids, or in
        one that the source of the trace does not say.
    inferred : dict
        By name, what the source of the trace did not say and how it was inferred:
        ``{"n_expert": "the largest expert id + 1"}``.
    agreement : Agreement or None
        Whether a replay gives what the engine recorded; None if nobody has compared them.
    digest : KeptDigest or None
        Of the files; None of an incomplete trace, and of one written by an older version.
    captured : list of str or None
        Which of `CAPTURES` were copied out of the model while its passes were timed: what that took is
        part of their times. None: not known.
    """

    model: ModelFacts
    source: str
    engine: EngineFacts | None = None
    complete: bool = False
    ended: str | None = None
    created: str | None = None
    prompts: list[str] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    command: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    slot_order: str = "ranked"
    inferred: dict[str, str] = field(default_factory=dict)
    agreement: Agreement | None = None
    digest: KeptDigest | None = field(default=None, compare=False)
    captured: list[str] | None = None

    @property
    def current_agreement(self) -> Agreement | None:
        """The agreement; None if it is of another budget than the facts give by now."""
        budget = self.engine.cache_bytes if self.engine else None
        is_current = self.agreement is not None and self.agreement.budget_bytes == budget
        return self.agreement if is_current else None

    def with_budget(self, cache_bytes: int) -> "TraceFacts":
        """Return the facts with the engine's cache budget."""
        engine = replace(self.engine or EngineFacts(name="unknown"), cache_bytes=cache_bytes)
        return replace(self, engine=engine)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to write, schema version first."""
        return {"schema": f"{_SCHEMA}{SCHEMA_VERSION}", **asdict(self)}

    @classmethod
    def from_json(cls, data: object, where: str) -> "TraceFacts":
        """Read the JSON object `data` found in file `where`.

        Raises
        ------
        TraceError
            `data` does not describe a trace, or has a newer schema than this version reads.
        """
        if not is_trace_json(data):
            raise TraceError(f"{where} does not describe a trace: it names no tracekit schema.")
        _check_version(data["schema"], where)
        parts: dict[str, object] = {"model": _part(ModelFacts, data, "model", where)}
        if data.get("engine") is not None:
            parts["engine"] = _part(EngineFacts, data, "engine", where)
        if data.get("agreement") is not None:
            parts["agreement"] = _part(Agreement, data, "agreement", where)
        if data.get("digest") is not None:
            parts["digest"] = _part(KeptDigest, data, "digest", where)
        facts = build(cls, {**data, **parts}, where, TraceError)
        facts.check(where)
        return facts

    def check(self, where: str) -> None:
        """Check that the numbers are possible for a model; `where` names their source.

        Raises
        ------
        TraceError
        """
        _check_model(self.model, where)
        _check_numbers(self, where)
        _check_word("gating", self.model.gating, (None, *GATINGS), where)
        _check_word("source", self.source, SOURCES, where)
        _check_word("slot_order", self.slot_order, SLOT_ORDERS, where)
        if self.digest is not None and not _SHA256.fullmatch(self.digest.sha256):
            raise TraceError(
                f"{where}: digest {shown(self.digest.sha256)} is no sha256; take it out, and "
                "`tracekit info --verify` writes the true one."
            )
        for name in self.captured or ():
            _check_word("captured", name, tuple(CAPTURES), where)


def parse_json(text: str | bytes) -> object:
    """Return what JSON says in which every number is finite.

    Raises
    ------
    NotFiniteError
        A number is ``Infinity``, ``NaN``, or too large for a float: Python would read and write them.
    ValueError, RecursionError
        It is no JSON, or too much of it.
    """

    def refuse(token: str) -> float:
        raise NotFiniteError(f"{on_one_line(token, 40)} is no finite number")

    def finite(token: str) -> float:
        number = float(token)
        return number if math.isfinite(number) else refuse(token)

    return json.loads(text, parse_constant=refuse, parse_float=finite)


class NotFiniteError(ValueError):
    """A number in a JSON text is not finite."""


def is_trace_json(data: object) -> TypeGuard[dict[str, Any]]:
    """Say whether `data` is a JSON object that names a schema of tracekit's traces."""
    schema = data.get("schema") if isinstance(data, dict) else None
    return isinstance(schema, str) and schema.startswith(_SCHEMA)


def _check_version(schema: str, where: str) -> None:
    version = schema.removeprefix(_SCHEMA)
    if not (version.isdecimal() and len(version) < 10):
        raise TraceError(f"{where}: schema {shown(schema)} has no version number.")
    if int(version) > SCHEMA_VERSION:
        raise TraceError(
            f"{where} has schema version {version}, newer than the {SCHEMA_VERSION} that this "
            "tracekit reads; upgrade tracekit."
        )


def _part(cls: type[Part], data: dict[str, Any], name: str, where: str) -> Part:
    """Read the JSON object under `name`."""
    values = data.get(name)
    if not isinstance(values, dict):
        raise TraceError(
            f"{where}, {name}: a JSON object is missing; record or import the trace again."
        )
    return build(cls, values, f"{where}, {name}", TraceError)


def _check_model(model: ModelFacts, where: str) -> None:
    for name, most in (("n_layer", 1 << 15), ("n_expert", 1 << 16), ("n_embd", 1 << 24)):
        value = getattr(model, name)
        if value is not None and not 1 <= value <= most:
            raise TraceError(f"{where}: {name} = {shown(value)} is no size of a model; correct it.")
    if model.n_layer * model.n_expert > MOST_EXPERTS:
        raise TraceError(
            f"{where}: {model.n_layer:,} layers of {model.n_expert:,} experts are more than the "
            f"{MOST_EXPERTS:,} experts that tracekit counts one by one; correct n_layer or n_expert."
        )
    if not 1 <= model.top_k <= model.n_expert:
        raise TraceError(
            f"{where}: top_k = {shown(model.top_k)} experts of {model.n_expert} cannot be "
            "selected; correct top_k or n_expert."
        )
    if not (1 <= model.n_group_used <= model.n_group and model.n_expert % model.n_group == 0):
        raise TraceError(
            f"{where}: {shown(model.n_group_used)} of {shown(model.n_group)} expert groups do not "
            f"divide {model.n_expert} experts; correct n_group or n_group_used."
        )


def _check_numbers(facts: TraceFacts, where: str) -> None:
    """Check the ranges of the numbers that no other number bounds."""
    for owner, name, most in (
        (facts.model, "norm_eps", 1),
        (facts.model, "file_bytes", (1 << 63) - 1),
        (facts.engine, "cache_bytes", (1 << 62) - 1),
        (facts.engine, "io_threads", 1 << 20),
        (facts.engine, "compute_threads", 1 << 20),
        (facts, "seed", (1 << 64) - 1),
    ):
        value = None if owner is None else getattr(owner, name)
        if value is not None and not 0 <= value <= most:
            raise TraceError(
                f"{where}: {name} = {shown(value)} is not from 0 to {most:,}; correct it."
            )


def _check_word(name: str, value: str | None, known: Sequence[str | None], where: str) -> None:
    if value not in known:
        words = ", ".join(word for word in known if word is not None)
        raise TraceError(f"{where}: {name} {shown(value)} is none of {words}; correct it.")

"""What ``trace.json`` says of a trace: the model, the engine, how it was run, whether it is whole."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tracekit.trace.errors import TraceError
from tracekit.trace.schema import SCHEMA_VERSION

GATINGS = ("softmax", "sigmoid", "logits", "sqrt-softplus")
SOURCES = ("recorded", "imported", "synthetic")


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
class TraceFacts:
    """The content of ``trace.json``.

    Attributes
    ----------
    source : {"recorded", "imported", "synthetic"}
    complete : bool
        False while a recording runs and after it was killed.
    ended : str or None
        Why a recording ended: ``"length"``, ``"end of text"``, ``"interrupted"`` …
    prompts : list of str
        One per turn, as given.
    sampling : dict
        ``{"temperature": 0.0, …}``.
    notes : dict
        Whatever else an importer or a recorder found worth keeping.
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to write, schema version first."""
        return {"schema": f"tracekit.trace/{SCHEMA_VERSION}", **asdict(self)}

    @classmethod
    def from_json(cls, data: Any, where: str) -> "TraceFacts":
        """Read the JSON object `data` found in file `where`.

        Raises
        ------
        TraceError
            `data` is not a trace's facts, or of a newer schema than this version reads.
        """
        if not isinstance(data, dict) or not str(data.get("schema", "")).startswith(
            "tracekit.trace/"
        ):
            raise TraceError(f"{where} does not describe a trace: it names no tracekit schema.")
        version = data["schema"].removeprefix("tracekit.trace/")
        if not (version.isdecimal() and len(version) < 10):
            raise TraceError(f"{where}: schema {data['schema']!r} has no version number.")
        if int(version) > SCHEMA_VERSION:
            raise TraceError(
                f"{where} has schema version {version}, newer than the {SCHEMA_VERSION} that this "
                "tracekit reads; upgrade tracekit."
            )
        parts = {"model": _typed(ModelFacts, data.get("model"), f"{where}, model")}
        if data.get("engine") is not None:
            parts["engine"] = _typed(EngineFacts, data["engine"], f"{where}, engine")
        facts = _typed(cls, {**data, **parts}, where)
        facts.check(where)
        return facts

    def check(self, where: str) -> None:
        """Check that the numbers are those of a model; `where` names their source.

        Raises
        ------
        TraceError
        """
        model = self.model
        for name, most in (("n_layer", 1 << 15), ("n_expert", 1 << 16), ("n_embd", 1 << 24)):
            value = getattr(model, name)
            if value is not None and not 1 <= value <= most:
                raise TraceError(f"{where}: {name} = {value} is no size of a model; correct it.")
        if not 1 <= model.top_k <= model.n_expert:
            raise TraceError(
                f"{where}: top_k = {model.top_k} experts of {model.n_expert} cannot be selected; "
                "correct top_k or n_expert."
            )
        if not (1 <= model.n_group_used <= model.n_group and model.n_expert % model.n_group == 0):
            raise TraceError(
                f"{where}: {model.n_group_used} of {model.n_group} expert groups do not divide "
                f"{model.n_expert} experts; correct n_group or n_group_used."
            )
        for name, value, known in (
            ("gating", model.gating, (None, *GATINGS)),
            ("source", self.source, SOURCES),
        ):
            if value not in known:
                words = ", ".join(str(k) for k in known if k is not None)
                raise TraceError(f"{where}: {name} {value!r} is none of {words}; correct it.")
        budget = self.engine.cache_bytes if self.engine else None
        if budget is not None and not 0 <= budget < 1 << 62:
            raise TraceError(
                f"{where}: a cache of {budget} bytes is no budget; correct cache_bytes."
            )


def fits(value: Any, hint: Any) -> bool:
    """Say whether `value`, as JSON gives it, is of the annotated type `hint`."""
    if isinstance(hint, UnionType):
        return any(fits(value, option) for option in get_args(hint))
    plain = get_origin(hint) or hint
    if plain is Any:
        return True
    if plain is list:
        (element,) = get_args(hint)
        return isinstance(value, list) and all(fits(v, element) for v in value)
    if plain is dict:
        key, element = get_args(hint)
        return isinstance(value, dict) and all(
            fits(k, key) and fits(v, element) for k, v in value.items()
        )
    if plain in (int, float):
        number = isinstance(value, (int, float) if plain is float else int)
        return number and not isinstance(value, bool)
    return isinstance(value, plain)


def _typed(cls: type, data: Any, where: str) -> Any:
    """Make a `cls` of the JSON object `data`, refusing values of another type than annotated."""
    if not isinstance(data, Mapping):
        raise TraceError(f"{where}: a JSON object is missing; record or import the trace again.")
    hints = get_type_hints(cls)
    values = {}
    for f in fields(cls):
        if f.name not in data:
            continue
        if not fits(data[f.name], hints[f.name]):
            wanted = getattr(hints[f.name], "__name__", None) or str(hints[f.name])
            raise TraceError(
                f"{where}: {f.name} = {str(data[f.name])[:60]!r} is not of type {wanted}; correct it."
            )
        values[f.name] = data[f.name]
    try:
        return cls(**values)
    except TypeError as error:  # a field without a default is missing
        lacks = str(error).partition("argument")[2].strip(": s")
        raise TraceError(f"{where} lacks {lacks}; add it.") from error

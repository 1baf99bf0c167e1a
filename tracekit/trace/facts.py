"""What ``trace.json`` says of a trace: the model, the engine, how it was run, whether it is whole."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

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
        if not version.isdecimal():
            raise TraceError(f"{where}: schema {data['schema']!r} has no version number.")
        if int(version) > SCHEMA_VERSION:
            raise TraceError(
                f"{where} has schema version {version}, newer than the {SCHEMA_VERSION} that this "
                "tracekit reads; upgrade tracekit."
            )
        try:
            known = {f.name for f in fields(cls)}
            values = {name: value for name, value in data.items() if name in known}
            values["model"] = ModelFacts(**data["model"])
            if data.get("engine") is not None:
                values["engine"] = EngineFacts(**data["engine"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise TraceError(f"{where} is not as a trace's facts should be: {error}.") from error

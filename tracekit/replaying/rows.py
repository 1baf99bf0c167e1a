"""A row of the result: totals, rates, peaks, layers, a policy's own counters."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from tracekit.figures import MIB, Declared, Figure, Unit, columns_of
from tracekit.policies.base import Policy
from tracekit.policies.bound import Bound
from tracekit.policies.model import Model
from tracekit.policies.prefetch import LATE
from tracekit.replaying.times import RowTime

DEMAND = Figure(
    "demand_bytes_decode",
    Unit.BYTES,
    "bytes that decoded tokens still wait for, whatever is read ahead",
)


@dataclass(frozen=True)
class Identity:
    """What a row is of: the policy, its parameters and its budget."""

    policy: Annotated[str, Declared(Unit.NAME, "the policy's name")]
    params: Annotated[Mapping[str, Any], Declared(Unit.MAPPING, "the policy's parameters, by name")]
    cache_bytes: Annotated[
        int | None,
        Declared(Unit.BYTES, "the cache budget; null where sizes of experts are not known"),
    ]
    cache_mib: Annotated[float | None, Declared(Unit.MIB, "the cache budget")]
    cache_fraction: Annotated[
        float, Declared(Unit.FRACTION, "the cache budget as a share of all experts")
    ]
    cache_slots: Annotated[
        int | None,
        Declared(
            Unit.COUNT,
            "the cache budget in experts of every MoE layer; null where it was given in bytes",
        ),
    ]
    under_token_cycle: Annotated[
        bool, Declared(Unit.FLAG, "the budget is smaller than one token cycle")
    ]
    bypass: Annotated[
        bool, Declared(Unit.FLAG, "the engine may drop at once what it has just used")
    ]


@dataclass(frozen=True)
class LayerIdentity:
    """What a row is of: a MoE layer."""

    layer: Annotated[int, Declared(Unit.COUNT, "the model's own number of the layer")]


@dataclass(frozen=True)
class Totals:
    """What was looked up, hit and read; of decoded tokens alone, and of prompts and those."""

    lookups: Annotated[
        int, Declared(Unit.COUNT, "expert lookups: one per distinct expert of a layer load")
    ]
    hits: Annotated[int | None, Declared(Unit.COUNT, "lookups that found the expert resident")]
    hit_rate_cumulative: Annotated[
        float | None, Declared(Unit.FRACTION, "hits of all lookups, prompts included")
    ]
    lookups_decode: Annotated[int, Declared(Unit.COUNT, "expert lookups of decoded tokens")]
    hits_decode: Annotated[int | None, Declared(Unit.COUNT, "hits of decoded tokens")]
    hit_rate_decode: Annotated[
        float | None, Declared(Unit.FRACTION, "hits of the lookups of decoded tokens")
    ]
    read_bytes: Annotated[int | None, Declared(Unit.BYTES, "bytes read in all")]
    read_bytes_decode: Annotated[int | None, Declared(Unit.BYTES, "bytes read for decoded tokens")]


# A dataclass takes the fields of its last base first: a row begins with what it is of.
@dataclass(frozen=True)
class LayerRow(Totals, LayerIdentity):
    """The figures of one MoE layer."""


@dataclass(frozen=True)
class Validation:
    """How many lookups of decoded tokens were compared with the recording, and how many differ."""

    lookups: Annotated[int, Declared(Unit.COUNT, "lookups whose residency the engine recorded")]
    mismatches: Annotated[int, Declared(Unit.COUNT, "those that the replay answers otherwise")]


@dataclass(frozen=True)
class Row(Totals, Identity):
    """The figures of one policy at one budget.

    Attributes
    ----------
    replayed : Policy
        The policy itself: its kind, and the declarations of its counters.
    budget : int
        The cache budget in bytes; in experts where their sizes are not known.
    counters : mapping of str to int, float or None
        The policy's own totals.
    kept_to_budget : bool
        No batch left more resident than the budget, or, without `bypass`, than itself alone where
        that is larger.
    kept_to_budget_decode : bool
        The same of the decode batches after each turn's first decoded token.
    kept_to_shares : bool
        The same of every layer and its share of the budget.
    bound : Bound or None
        The bound of the class that the policy is of, where it holds for this row.
    layers : tuple of LayerRow or None
        The figures of each MoE layer; None if they were not asked for.
    """

    bound_class: Annotated[
        str | None,
        Declared(
            Unit.NAME,
            "which policies its bound is of: `demand`, those that read on demand; `layer-shares`, those "
            "whose layers do so within their shares; `reads-ahead`, those that also read ahead what the "
            "next load asks for",
        ),
    ]
    bound_hit_rate_cumulative: Annotated[
        float | None, Declared(Unit.FRACTION, "the cumulative hit rate that this bound allows")
    ]
    bound_hit_rate_decode: Annotated[
        float | None, Declared(Unit.FRACTION, "the decode hit rate that this bound allows")
    ]
    gap_to_bound: Annotated[
        float | None, Declared(Unit.FRACTION, "how much higher the bound's cumulative hit rate is")
    ]
    gap_to_bound_decode: Annotated[
        float | None, Declared(Unit.FRACTION, "how much higher the bound's decode hit rate is")
    ]
    peak_resident_bytes: Annotated[
        int | None,
        Declared(Unit.BYTES, "the most that was resident after the eviction of any batch"),
    ]
    peak_resident_bytes_decode: Annotated[
        int | None, Declared(Unit.BYTES, "the same, after the first decoded token of each turn")
    ]
    over_budget: Annotated[bool | None, Declared(Unit.FLAG, "the peak was above the budget")]
    over_budget_decode: Annotated[
        bool | None,
        Declared(Unit.FLAG, "the peak after the first decoded token was above the budget"),
    ]
    replayed: Policy = field(repr=False, compare=False)  # its name and parameters are compared
    budget: int
    counters: Mapping[str, int | float | None] = field(default_factory=dict)
    kept_to_budget: bool = True
    kept_to_budget_decode: bool = True
    kept_to_shares: bool = True
    bound: Bound | None = field(default=None, repr=False)
    layers: tuple[LayerRow, ...] | None = None
    validation: Validation | None = None
    time: RowTime | None = None
    flash_ms_per_token_decode: Annotated[
        float | None,
        Declared(Unit.MS, "how long flash is busy for a decoded token, at the rate that was given"),
    ] = None
    flash_ms_per_pass_decode: Annotated[
        float | None,
        Declared(Unit.MS, "the same for a decode pass, which may verify several drafted tokens"),
    ] = None

    @property
    def is_bound(self) -> bool:
        """Whether the figures are proven limits, and no run."""
        return self.replayed.gives_limits

    @property
    def counter_figures(self) -> tuple[Figure, ...]:
        """The declarations of `counters`; a policy of the user's own may have declared none."""
        declared = {figure.name: figure for figure in (*self.replayed.counters, DEMAND)}
        return tuple(
            declared.get(name, Figure(name, Unit.COUNT, "a counter of the policy's own", True))
            for name in self.counters
        )

    @property
    def compares_with_lru(self) -> bool:
        """Whether its decode hit rate is of the same lookups, at the same budget, as that of LRU."""
        return self.is_bound or (self.kept_to_budget_decode and not self.replayed.lossy)

    def under(self, bound: Bound | None, limit: "Row | None") -> "Row":
        """Return this row with the `limit` of its `bound`, and its distance, where that holds for it.

        A policy that reads ahead has a distance only if it is of the class: if none of its wrong
        guesses was hit later.
        """
        kept = self.kept_to_shares if self.replayed.in_shares else self.kept_to_budget
        if bound is None or limit is None or not kept:
            return self
        row = replace(
            self,
            bound=bound,
            bound_class=bound.kind,
            bound_hit_rate_cumulative=limit.hit_rate_cumulative,
            bound_hit_rate_decode=limit.hit_rate_decode,
        )
        if self.counters.get(LATE):
            return row
        return replace(
            row,
            gap_to_bound=_difference(limit.hit_rate_cumulative, self.hit_rate_cumulative),
            gap_to_bound_decode=_difference(limit.hit_rate_decode, self.hit_rate_decode),
        )

    def without_bytes(self) -> "Row":
        """Return this row with no figure in bytes: the sizes of experts are not known."""
        of_bytes = {figure.name for figure in self.counter_figures if figure.unit is Unit.BYTES}
        return replace(
            self,
            **_no_bytes(COLUMNS),
            counters={n: None if n in of_bytes else v for n, v in self.counters.items()},
            layers=self.layers
            and tuple(replace(layer, **_no_bytes(LAYER_COLUMNS)) for layer in self.layers),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the figures as JSON has them, without those of the layers."""
        record = {figure.name: getattr(self, figure.name) for figure in RECORD}
        record |= self.counters
        if self.validation is not None:
            record["validation"] = asdict(self.validation)
        if self.time is not None:
            record |= self.time.to_record()
        return record


COLUMNS = columns_of(Row)
LAYER_COLUMNS = columns_of(LayerRow)


def _no_bytes(columns: Sequence[Figure]) -> dict[str, Any]:
    return {each.name: None for each in columns if each.unit in (Unit.BYTES, Unit.MIB)}


NO_BOUND: dict[str, Any] = dict.fromkeys(
    (
        "bound_class",
        "bound_hit_rate_cumulative",
        "bound_hit_rate_decode",
        "gap_to_bound",
        "gap_to_bound_decode",
    )
)
# What every record has; the time that flash is busy only where a rate was given.
RECORD = tuple(figure for figure in COLUMNS if figure.unit is not Unit.MS)


def identity(policy: Policy, model: Model, budget: int) -> dict[str, Any]:
    """Return the fields of `Identity`, and `Row.budget`."""
    return {
        "policy": policy.name,
        "params": asdict(policy.params),
        "cache_bytes": budget,
        "cache_mib": budget / MIB,
        "cache_fraction": budget / model.bank_bytes if model.bank_bytes else 0.0,
        "cache_slots": model.slots(budget) if model.in_slots else None,
        "budget": budget,
        "under_token_cycle": budget < model.token_cycle_bytes,
        "bypass": model.bypass,
    }


def totals(of_all: Sequence[int | None], of_decode: Sequence[int | None]) -> dict[str, Any]:
    """Return the fields of `Totals`: lookups, hits and bytes read of all, and of decoded tokens."""
    return {
        "lookups": of_all[0],
        "hits": of_all[1],
        "hit_rate_cumulative": _rate(of_all[1], of_all[0]),
        "lookups_decode": of_decode[0],
        "hits_decode": of_decode[1],
        "hit_rate_decode": _rate(of_decode[1], of_decode[0]),
        "read_bytes": of_all[2],
        "read_bytes_decode": of_decode[2],
    }


def _rate(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else part / whole


def _difference(high: float | None, low: float | None) -> float | None:
    return None if high is None or low is None else high - low

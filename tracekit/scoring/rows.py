"""From a tally to a row of the result: counts, rates and intervals, overall and by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from tracekit.figures import Declared, Figure, Unit, columns_of
from tracekit.predictors import TOKEN, Horizon, Predictor
from tracekit.scoring.tally import Tally
from tracekit.scoring.training import Entry
from tracekit.stats.bootstrap import Bootstrap

Interval = tuple[float, float]


@dataclass(frozen=True)
class Identity:
    """What a row is of: a predictor at a horizon."""

    predictor: Annotated[str, Declared(Unit.NAME, "the predictor's name")]
    horizon: Annotated[
        Horizon | None,
        Declared(
            Unit.COUNT,
            "MoE layers ahead that it looks, or `token`: before the token has begun; null for a "
            "predictor without a horizon",
        ),
    ]


@dataclass(frozen=True)
class LayerIdentity:
    """What a row is of: a MoE layer."""

    layer: Annotated[int, Declared(Unit.COUNT, "the model's own number of the layer")]


@dataclass(frozen=True)
class Accuracy:
    """How much of the routings that were scored the predictor named.

    Attributes
    ----------
    recall, mass_named : mapping of int to float or None
        By the number of experts named.
    """

    routings: Annotated[int, Declared(Unit.COUNT, "decode routings that were scored")]
    slots: Annotated[int, Declared(Unit.COUNT, "experts that these routings selected")]
    hits: Annotated[int, Declared(Unit.COUNT, "selected experts among the first k named")]
    slot_accuracy: Annotated[float | None, Declared(Unit.FRACTION, "hits of the slots")]
    exact: Annotated[
        int, Declared(Unit.COUNT, "routings with all k selected experts among the first k named")
    ]
    exact_rate: Annotated[float | None, Declared(Unit.FRACTION, "exact routings of those scored")]
    unscored: Annotated[
        int, Declared(Unit.COUNT, "decode routings that the predictor could not rank")
    ]
    near_ties: Annotated[
        int | None,
        Declared(
            Unit.COUNT,
            "routings with a miss whose k-th and next logit are all but equal; null where no logits "
            "are ranked",
        ),
    ]
    gate_mass: Annotated[
        float | None,
        Declared(
            Unit.FRACTION, "router weight that the first k named carry; null without known weights"
        ),
    ]
    recall: Annotated[
        Mapping[int, float | None],
        Declared(Unit.MAPPING, "selected experts among the first M named, by M"),
    ]
    mass_named: Annotated[
        Mapping[int, float | None],
        Declared(Unit.MAPPING, "router weight that the first M named carry, by M"),
    ]
    ci95_low: Annotated[
        float | None,
        Declared(
            Unit.FRACTION,
            "lower end of the 95 % interval of the slot accuracy; null for too few tokens",
        ),
    ]
    ci95_high: Annotated[float | None, Declared(Unit.FRACTION, "upper end of that interval")]

    @property
    def ci95(self) -> Interval | None:
        """The 95 % interval of the slot accuracy; None where there is too little to draw from."""
        if self.ci95_low is None or self.ci95_high is None:
            return None
        return self.ci95_low, self.ci95_high


# A dataclass takes the fields of its last base first: a row begins with what it is of.
@dataclass(frozen=True)
class LayerRow(Accuracy, LayerIdentity):
    """The figures of one MoE layer."""

    def to_record(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return _nested(self, LAYER_COLUMNS)

    def to_flat(self) -> dict[str, Any]:
        """Return the figures as CSV and frames have them: ``recall_8``, ``ci95_low``."""
        return _flat(self, LAYER_COLUMNS)


@dataclass(frozen=True)
class Fit:
    """What a predictor learned from, and what that cost."""

    rows: Annotated[
        int,
        Declared(
            Unit.COUNT,
            "decoded tokens it learned from, those of held-out turns counted too; of a predictor that "
            "learns while the run goes on, all tokens, those of prompts too",
        ),
    ]
    size_bytes: Annotated[
        int | None,
        Declared(Unit.BYTES, "size of what a device would have to carry; null: not known"),
    ]
    seconds: Annotated[
        float, Declared(Unit.SECONDS, "time spent learning, reading the trace excluded")
    ]

    def to_record(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return {figure.name: getattr(self, figure.name) for figure in FIT_COLUMNS}


@dataclass(frozen=True)
class Row(Accuracy, Identity):
    """The figures of one predictor at one horizon.

    Attributes
    ----------
    scored : type
        The class of the predictor: what kind it is.
    tally : Tally
        The counts behind the figures.
    layers : tuple of LayerRow
        The figures of each MoE layer.
    fit : Fit or None
        None for a predictor that learns nothing.
    """

    scored: type[Predictor] = field(repr=False)
    tally: Tally = field(repr=False)
    layers: tuple[LayerRow, ...] = field(repr=False)
    fit: Fit | None = None

    @property
    def label(self) -> str:
        """The predictor's name, with its horizon if that is not 1."""
        return label_of(self.predictor, self.horizon)

    @property
    def short_label(self) -> str:
        """What heads its column of a table: ``stale+2`` is stale-gate at horizon 2."""
        name = self.scored.short_name or self.predictor
        return name if self.horizon in (None, 1) else f"{name}+{self.horizon}"

    def to_record(self) -> dict[str, Any]:
        """Return the figures as JSON has them, without those of the layers."""
        fit = {} if self.fit is None else {"fit": self.fit.to_record()}
        return _nested(self, COLUMNS) | fit

    def to_flat(self) -> dict[str, Any]:
        """Return the figures as CSV and frames have them, without those of the layers."""
        fit = {} if self.fit is None else self.fit.to_record()
        return _flat(self, COLUMNS) | {f"fit_{name}": value for name, value in fit.items()}


COLUMNS = columns_of(Row)
LAYER_COLUMNS = columns_of(LayerRow)
FIT_COLUMNS = columns_of(Fit)


def _nested(row: Accuracy, columns: Sequence[Figure]) -> dict[str, Any]:
    record = {figure.name: getattr(row, figure.name) for figure in columns}
    for name in ("recall", "mass_named"):
        record[name] = {str(m): rate for m, rate in record[name].items()}
    low, high = record.pop("ci95_low"), record.pop("ci95_high")
    return record | {"ci95": None if low is None else [low, high]}


def _flat(row: Accuracy, columns: Sequence[Figure]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for figure in columns:
        value = getattr(row, figure.name)
        if figure.unit is Unit.MAPPING:
            flat |= {f"{figure.name}_{m}": rate for m, rate in value.items()}
        else:
            flat[figure.name] = value
    return flat


def label_of(predictor: str, horizon: Horizon | None) -> str:
    """Name a predictor, with its horizon if that is not 1."""
    if horizon == TOKEN:
        return f"{predictor} before the token"
    return predictor if horizon in (None, 1) else f"{predictor} at horizon {horizon}"


def row_of(
    entry: Entry, tally: Tally, layer_ids: np.ndarray, bootstrap: Bootstrap, per_layer: bool
) -> Row:
    """Reduce `tally`, which `entry` got, to a row.

    Parameters
    ----------
    entry : Entry
    tally : Tally
    layer_ids : int16 [L]
        The model's own numbers of the MoE layers.
    bootstrap : Bootstrap
    per_layer : bool
        Give intervals for each layer too.
    """
    logits = entry.predictor.gives_logits
    slots = tally.unit_routings * tally.top_k
    low, high = bootstrap.interval(
        tally.unit_hits.sum(axis=1, keepdims=True), slots.sum(axis=1, keepdims=True)
    )
    of_layers = np.full((2, len(layer_ids)), np.nan)
    if per_layer:
        of_layers[:] = bootstrap.interval(tally.unit_hits, slots)
    return Row(
        predictor=entry.predictor.name,
        horizon=entry.horizon,
        **_accuracy(tally, slice(None), logits, low[0], high[0]),
        scored=type(entry.predictor),
        tally=tally,
        layers=tuple(
            LayerRow(
                layer=int(number), **_accuracy(tally, slice(i, i + 1), logits, *of_layers[:, i])
            )
            for i, number in enumerate(layer_ids)
        ),
        fit=_fit(entry),
    )


def _fit(entry: Entry) -> Fit | None:
    lesson, path = entry.lesson, entry.path
    if lesson is not None:
        seconds = lesson.seconds + (path.seconds if path else 0)
        return Fit(lesson.rows, lesson.learner.size_bytes, round(seconds, 3))
    if path is not None:
        return Fit(path.tokens, path.predictor.size_bytes, round(path.seconds, 3))
    return None


def _accuracy(tally: Tally, layers: slice, logits: bool, low: float, high: float) -> dict[str, Any]:
    k = tally.top_k
    routings = int(tally.routings[layers].sum())
    weighed = int(tally.weighed[layers].sum())
    at_k = tally.named.index(k)
    hits = tally.hits[:, layers].sum(axis=1).tolist()
    mass = tally.mass[:, layers].sum(axis=1).tolist()
    exact = int(tally.exact[layers].sum())
    return {
        "routings": routings,
        "slots": routings * k,
        "hits": hits[at_k],
        "slot_accuracy": _ratio(hits[at_k], routings * k),
        "exact": exact,
        "exact_rate": _ratio(exact, routings),
        "unscored": int(tally.unscored[layers].sum()),
        # Counts and ids tie all the time; only between logits is that rounding.
        "near_ties": int(tally.near_ties[layers].sum()) if logits else None,
        "gate_mass": _ratio(mass[at_k], weighed),
        "recall": {m: _ratio(hits[i], routings * k) for i, m in enumerate(tally.named)},
        "mass_named": {m: _ratio(mass[i], weighed) for i, m in enumerate(tally.named)},
        "ci95_low": None if np.isnan(low) else float(low),
        "ci95_high": None if np.isnan(high) else float(high),
    }


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None

"""What scoring predictors gives: rows, frames, JSON and the text report."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.display import draw
from tracekit.figures import Unit
from tracekit.predictors import Horizon
from tracekit.routing.routers import rounded_routers
from tracekit.scoring import text as texts
from tracekit.scoring.rows import LAYER_COLUMNS, Row
from tracekit.stats.bootstrap import Bootstrap
from tracekit.table import Part, as_html, as_text
from tracekit.trace import Trace, provenance
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class PredictResult:
    """Accuracies of predictors on one trace.

    Attributes
    ----------
    rows : list of Row
        One per predictor and horizon, in the order asked for, with the figures of each MoE layer in
        ``Row.layers``.
    config : dict
        What was asked for: predictors, horizons, named, train, params, seed.
    notes : list of str
        Plain sentences: predictors left out and why; what each fit cost and where it fell back.
    trace : Trace
    layer_ids : int16 [L]
        Model numbers of the MoE layers.
    n_tokens : int
        Decoded tokens of the trace.
    per_layer : bool
        The layers have intervals, and stand in the JSON.
    """

    rows: list[Row]
    config: dict[str, Any]
    notes: list[str]
    trace: Trace
    layer_ids: np.ndarray
    n_tokens: int
    per_layer: bool
    bootstrap: Bootstrap = field(repr=False)

    @property
    def top_k(self) -> int:
        """Experts of a routing."""
        return self.trace.top_k

    @property
    def n_expert(self) -> int:
        """Experts of a layer."""
        return self.trace.n_expert

    @property
    def rounded_routers(self) -> dict[int, str]:
        """The types of routers for which the engine rounds the product, by layer."""
        return rounded_routers(self.trace)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows as the JSON has them, with their layers; None where nothing is scored."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        return row.to_record() | {"layers": [layer.to_record() for layer in row.layers]}

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per predictor and horizon; rates are fractions, NaN where nothing was scored."""
        return self._frame([row.to_flat() for row in self.rows])

    @property
    def layers(self) -> "pd.DataFrame":
        """One row per predictor, horizon and MoE layer."""
        return self._frame(
            [
                {"predictor": row.predictor, "horizon": row.horizon, **layer.to_flat()}
                for row in self.rows
                for layer in row.layers
            ]
        )

    def _frame(self, rows: list[dict[str, Any]]) -> "pd.DataFrame":
        import pandas as pd

        fractions = [figure.name for figure in LAYER_COLUMNS if figure.unit is Unit.FRACTION]
        mappings = [figure.name for figure in LAYER_COLUMNS if figure.unit is Unit.MAPPING]
        fractions += [f"{name}_{m}" for name in mappings for m in self.config["named"]]
        # A column without any figure would be one of objects.
        return pd.DataFrame(rows).astype(dict.fromkeys(fractions, "float64"))

    def row(self, predictor: str, horizon: Horizon | None = None) -> Row:
        """Return the row of one predictor; of those with a horizon, the first if none is given.

        Raises
        ------
        UsageError
            It was not scored.
        """
        for row in self.rows:
            if row.predictor == predictor and horizon in (None, row.horizon):
                return row
        raise UsageError(f"{predictor} at horizon {horizon} is not in this result.")

    def record(self, predictor: str, horizon: Horizon | None = None) -> dict[str, Any]:
        """Return what `row` gives, as JSON has it."""
        return self._record(self.row(predictor, horizon))

    def difference(
        self, predictor: str, baseline: str, horizon: Horizon | None = None
    ) -> tuple[float, float, float]:
        """Return how much better `predictor` is than `baseline`, on the routings both scored.

        Parameters
        ----------
        predictor, baseline : str
        horizon : int or "token", optional
            For those that have one; the first scored if not given.

        Returns
        -------
        tuple of float
            Difference of the slot accuracies, and its 95 % interval (paired bootstrap; NaN where
            there is too little to draw from).
        """
        a, b = (self.row(name, horizon).tally for name in (predictor, baseline))
        # Units of a layer that both scored in full.
        both = (a.unit_routings == b.unit_routings) & (a.unit_routings > 0)
        hits_a, hits_b = a.unit_hits * both, b.unit_hits * both
        slots = (a.unit_routings * both).sum(axis=1, keepdims=True) * self.top_k
        sums = [h.sum(axis=1, keepdims=True) for h in (hits_a, hits_b)]
        low, high = self.bootstrap.interval(sums[0], slots, against=sums[1])
        return float((sums[0] - sums[1]).sum() / slots.sum()), float(low[0]), float(high[0])

    def __repr__(self) -> str:
        return f"<PredictResult of {self.trace.name}: {', '.join(r.label for r in self.rows)}>"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``tracekit.predict/1``; null where the table prints ``-``."""
        return {
            "schema": "tracekit.predict/1",
            "config": self.config,
            "provenance": self.provenance,
            "notes": [*self.trace.warnings, *self.notes],
            "results": self.records if self.per_layer else [r.to_record() for r in self.rows],
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """Which trace this is of, and which version made it."""
        return provenance(self.trace)

    def headline(self) -> str:
        """Return one line: slot accuracy, and in parentheses whole routings, of each predictor."""
        return texts.headline(self.rows)

    def sentences(self) -> list[str]:
        """Return what the figures say, in plain sentences; a control below 100 % comes first."""
        return texts.sentences(self.rows, rounded=self.rounded_routers)

    def plot(self, *, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the accuracy by layer; as `tracekit.plots.plot_predictability`, see there."""
        return draw(self, ax=ax, **style)

    def to_text(self) -> str:
        """Return the whole report."""
        return as_text(self._parts())

    def _repr_html_(self) -> str:
        return as_html(self._parts())

    def _parts(self) -> list[Part]:
        return texts.report_parts(
            self.rows,
            self.n_tokens,
            self.config["named"],
            self.top_k,
            self.notes,
            self.rounded_routers,
        )

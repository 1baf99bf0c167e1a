"""What scoring predictors gives: frames, JSON and the text report."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit.display import draw
from tracekit.scoring import text as texts
from tracekit.scoring.tally import Tally
from tracekit.scoring.training import Entry
from tracekit.stats.bootstrap import Bootstrap
from tracekit.trace import Trace, provenance
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class PredictResult:
    """Accuracies of predictors on one trace.

    Attributes
    ----------
    config : dict
        What was asked for: predictors, horizons, named, train, seed.
    notes : list of str
        Plain sentences: predictors left out and why; what each fit cost and where it fell back.
    top_k, n_tokens : int
        Experts of a routing; decoded tokens of the trace.
    layer_ids : int16 [L]
        Model numbers of the MoE layers.
    """

    def __init__(
        self,
        trace: Trace,
        entries: Sequence[Entry],
        layer_ids: np.ndarray,
        bootstrap: Bootstrap,
        n_tokens: int,
        per_layer: bool,
        left_out: Sequence[str],
        config: dict[str, Any],
    ):
        self.config = {
            "predictors": list(dict.fromkeys(e.predictor.name for e in entries))
        } | config
        self.top_k = trace.top_k
        self.n_expert = trace.n_expert
        self.layer_ids = layer_ids
        self.n_tokens = n_tokens
        self.per_layer = per_layer
        self._entries = {(e.predictor.name, e.horizon): e for e in entries}
        self._bootstrap = bootstrap
        self.trace = trace
        self.notes = [*left_out, *texts.fit_sentences(entries)]
        if self.top_k == self.n_expert:
            self.notes.append(
                f"Every routing selects all {self.n_expert} experts, so any guess is right."
            )

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One dict per predictor and horizon, as the JSON has them; None where nothing is scored."""
        return [self._record(entry) for entry in self._entries.values()]

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per predictor and horizon; rates are fractions, NaN where nothing was scored."""
        import pandas as pd

        return pd.DataFrame([_flat(record) for record in self.records])

    @property
    def layers(self) -> "pd.DataFrame":
        """One row per predictor, horizon and MoE layer."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"predictor": r["predictor"], "horizon": r["horizon"], **_flat(layer)}
                for r in self.records
                for layer in r["layers"]
            ]
        )

    def record(self, predictor: str, horizon: int | None = None) -> dict[str, Any]:
        """Return the record of one predictor; of those with a horizon, the first if none is given.

        Raises
        ------
        UsageError
            It was not scored.
        """
        for found in self.records:
            if found["predictor"] == predictor and horizon in (None, found["horizon"]):
                return found
        raise UsageError(f"{predictor} at horizon {horizon} is not in this result.")

    def difference(
        self, predictor: str, baseline: str, horizon: int | None = None
    ) -> tuple[float, float, float]:
        """Return how much better `predictor` is than `baseline`, on the routings both scored.

        Parameters
        ----------
        predictor, baseline : str
        horizon : int, optional
            Of those that have one; the first scored if not given.

        Returns
        -------
        tuple of float
            Difference of the slot accuracies, and its 95 % interval (paired bootstrap; NaN where
            there is too little to draw from).
        """
        a, b = (self._tally(name, horizon) for name in (predictor, baseline))
        # Units of a layer that both scored in full.
        both = (a.unit_routings == b.unit_routings) & (a.unit_routings > 0)
        hits_a, hits_b = a.unit_hits * both, b.unit_hits * both
        slots = (a.unit_routings * both).sum(axis=1, keepdims=True) * self.top_k
        sums = [h.sum(axis=1, keepdims=True) for h in (hits_a, hits_b)]
        low, high = self._bootstrap.interval(sums[0], slots, against=sums[1])
        return float((sums[0] - sums[1]).sum() / slots.sum()), float(low[0]), float(high[0])

    def _tally(self, predictor: str, horizon: int | None) -> Tally:
        found = self.record(predictor, horizon)
        return self._entries[found["predictor"], found["horizon"]].tally

    def _record(self, entry: Entry) -> dict[str, Any]:
        tally, k = entry.tally, self.top_k
        slots = tally.unit_routings * k
        total = self._bootstrap.interval(
            tally.unit_hits.sum(axis=1, keepdims=True), slots.sum(axis=1, keepdims=True)
        )
        record = {"predictor": entry.predictor.name, "horizon": entry.horizon}
        ties = entry.predictor.gives_logits
        record |= _rates(tally, slice(None), k, ties)
        record["ci95"] = _pair(total[0][0], total[1][0])
        if entry.fit:
            fit = entry.fit
            record["fit"] = {
                "rows": fit.rows,
                "size_bytes": fit.size_bytes,
                "seconds": round(fit.seconds, 3),
            }
        low, high = (
            self._bootstrap.interval(tally.unit_hits, slots)
            if self.per_layer
            else np.full((2, len(self.layer_ids)), np.nan)
        )
        record["layers"] = [
            {"layer": int(number)}
            | _rates(tally, slice(i, i + 1), k, ties)
            | {"ci95": _pair(low[i], high[i])}
            for i, number in enumerate(self.layer_ids)
        ]
        return record

    def __repr__(self) -> str:
        return f"<PredictResult of {self.trace.name}: {', '.join(map(texts.label, self.records))}>"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``tracekit.predict/1``; null where the table prints ``-``."""
        hidden = () if self.per_layer else ("layers",)
        return {
            "schema": "tracekit.predict/1",
            "config": self.config,
            "provenance": self.provenance,
            "notes": [*self.trace.warnings, *self.notes],
            "results": [
                {key: value for key, value in record.items() if key not in hidden}
                for record in self.records
            ],
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """Which trace this is of, and which version made it."""
        return provenance(self.trace)

    def headline(self) -> str:
        """Return one line: slot accuracy, and in parentheses whole routings, of each predictor."""
        return texts.headline(self.records)

    def sentences(self) -> list[str]:
        """Return what the figures say, in plain sentences; a control below 100 % comes first."""
        return texts.sentences(self.records)

    def plot(self, *, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the accuracy by layer; as `tracekit.plots.plot_predictability`, see there."""
        return draw(self, ax=ax, **style)

    def to_text(self) -> str:
        """Return the whole report."""
        return texts.text(self.records, self.n_tokens, self.config["named"], self.top_k, self.notes)


def _rates(tally: Tally, layers: slice, k: int, ties: bool) -> dict[str, Any]:
    routings = int(tally.routings[layers].sum())
    weighed = int(tally.weighed[layers].sum())
    at_k = tally.named.index(k)
    hits = tally.hits[:, layers].sum(axis=1)
    mass = tally.mass[:, layers].sum(axis=1)
    return {
        "routings": routings,
        "slots": routings * k,
        "hits": int(hits[at_k]),
        "slot_accuracy": _ratio(int(hits[at_k]), routings * k),
        "exact": int(tally.exact[layers].sum()),
        "exact_rate": _ratio(int(tally.exact[layers].sum()), routings),
        "unscored": int(tally.unscored[layers].sum()),
        # Counts and ids tie all the time; only between logits is that rounding.
        "near_ties": int(tally.near_ties[layers].sum()) if ties else None,
        "gate_mass": _ratio(float(mass[at_k]), weighed),
        "recall": {str(m): _ratio(int(hits[i]), routings * k) for i, m in enumerate(tally.named)},
        "mass_named": {str(m): _ratio(float(mass[i]), weighed) for i, m in enumerate(tally.named)},
    }


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _pair(low: float, high: float) -> list[float] | None:
    return None if np.isnan(low) else [float(low), float(high)]


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for key, value in record.items():
        if key == "layers":
            continue
        if key == "ci95":
            flat["ci95_low"], flat["ci95_high"] = value or (np.nan, np.nan)
        elif isinstance(value, dict):
            flat |= {f"{key}_{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat

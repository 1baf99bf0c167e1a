"""What a replay gives: records, frames, JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.replay.table import replay_text
from tracekit.table import counted, settings
from tracekit.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

_NULLABLE = {
    "hits": "Int64",
    "hits_decode": "Int64",
    "read_bytes": "Int64",
    "read_bytes_decode": "Int64",
    "peak_resident_bytes": "Int64",
    "peak_resident_bytes_decode": "Int64",
    "over_budget": "boolean",
    "over_budget_decode": "boolean",
    "hit_rate_cumulative": "float64",
    "hit_rate_decode": "float64",
    "gap_to_bound": "float64",
    "gap_to_bound_decode": "float64",
}


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Figures of policies at cache budgets, on one trace.

    Attributes
    ----------
    records : list of dict
        One per policy, parameters and budget, as the JSON has them: sizes in bytes, rates as
        fractions, None where there is no figure.
    config : dict
        What was asked for.
    notes : list of str
        Plain sentences that a reader needs: an interrupted recording, the token cycle and the
        budgets under it, policies that overran their budget.
    trace : Trace
    """

    records: list[dict[str, Any]]
    config: dict[str, Any]
    notes: list[str]
    trace: Trace

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per policy, parameters and budget; `params` as text, ``seed=0``.

        `gap_to_bound` is how much higher the bound's cumulative hit rate is, `gap_to_bound_decode`
        its decode hit rate: NaN where the bound says nothing (a policy over its budget, one that
        reads ahead, one that skips experts).
        """
        return _frame(
            [
                {name: value for name, value in _flat(record).items() if name != "layers"}
                for record in self.records
            ]
        )

    @property
    def layers(self) -> "pd.DataFrame | None":
        """One row per policy, parameters, budget and MoE layer; None if not asked for."""
        if not self.config["per_layer"]:
            return None
        identity = ("policy", "params", "cache_bytes", "cache_mib")
        return _frame(
            [
                {name: _flat(record)[name] for name in identity} | layer
                for record in self.records
                for layer in record["layers"]
            ]
        )

    @property
    def provenance(self) -> dict[str, Any]:
        """Which trace this is of, and which version made it."""
        import tracekit

        return {
            "tracekit": tracekit.__version__,
            "trace": self.trace.name,
            "trace_digest": self.trace.digest,
            "model": self.trace.facts.model.name,
            "source": self.trace.facts.source,
            "complete": self.trace.complete,
        }

    def __repr__(self) -> str:
        rows = counted(len(self.records), "row")
        return (
            f"<ReplayResult of {self.trace.name}: {rows} of {', '.join(self.config['policies'])}>"
        )

    def to_text(self) -> str:
        """Return the table that the command line prints, with what its marks mean."""
        return replay_text(self)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``tracekit.replay/1``."""
        return {
            "schema": "tracekit.replay/1",
            "config": self.config,
            "provenance": self.provenance,
            "notes": self.notes,
            "results": self.records,
        }


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat = dict(record)
    flat["params"] = settings(record["params"])
    for name, value in flat.pop("validation", {}).items():
        flat[f"validation_{name}"] = value
    return flat


def _frame(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(rows)
    return frame.astype({name: kind for name, kind in _NULLABLE.items() if name in frame})

"""What a replay gives: rows, frames, JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tracekit.display import draw
from tracekit.figures import Figure, Unit, counted
from tracekit.replaying.labels import labels_of
from tracekit.replaying.rows import COLUMNS, LAYER_COLUMNS, Row
from tracekit.replaying.text import replay_parts
from tracekit.replaying.times import TIME_COLUMNS
from tracekit.table import Part, as_html, as_text
from tracekit.trace import Trace, provenance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# pandas has no null in its plain types of whole numbers and truth values.
_NULLABLE_TYPES = {
    Unit.NAME: "object",
    Unit.COUNT: "Int64",
    Unit.BYTES: "Int64",
    Unit.FLAG: "boolean",
    Unit.FRACTION: "float64",
    Unit.MS: "float64",
    Unit.MIB: "float64",
    Unit.PER_SECOND: "float64",
}
# Null only in a result without any size.
_SIZES = ("cache_bytes", "cache_mib")


@dataclass(frozen=True, eq=False)
class ReplayResult:
    """Figures of policies at cache budgets, on one trace.

    Attributes
    ----------
    rows : list of Row
        One per policy, parameters and budget, in the order asked for.
    config : dict
        What was asked for.
    notes : list of str
        Plain sentences that a reader needs: an interrupted recording, the token cycle and the
        budgets under it, policies that overran their budget.
    trace : Trace
    """

    rows: list[Row]
    config: dict[str, Any]
    notes: list[str]
    trace: Trace

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows as the JSON has them: sizes in bytes, rates as fractions, None for no figure."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        record = row.to_record()
        if self.config["flash_mib_s"] is not None:
            record["flash_ms_per_token_decode"] = row.flash_ms_per_token_decode
            record["flash_ms_per_pass_decode"] = row.flash_ms_per_pass_decode
        if row.layers is not None:
            record["layers"] = [asdict(layer) for layer in row.layers]
        return record

    @property
    def frame(self) -> "pd.DataFrame":
        """One row per policy, parameters and budget.

        `params` is a mapping, and `label` what the table calls the row: the policy, and the
        parameters that tell it apart. `gap_to_bound` is how much higher the bound's cumulative hit
        rate is, `gap_to_bound_decode` its decode hit rate, and `bound_class` which policies that
        bound is of: NaN where it says nothing (a policy over its budget, one that skips experts,
        one whose wrong guesses are hit later).
        """
        rows = []
        for row, label in zip(self.rows, labels_of(self.rows), strict=True):
            flat = self._record(row)
            flat.pop("layers", None)
            for name, value in flat.pop("validation", {}).items():
                flat[f"validation_{name}"] = value
            rows.append({"policy": row.policy, "label": label, **flat})
        counters = [figure for row in self.rows for figure in row.counter_figures]
        return _frame(rows, [*COLUMNS, *TIME_COLUMNS, *counters])

    @property
    def layers(self) -> "pd.DataFrame | None":
        """One row per policy, parameters, budget and MoE layer; None if not asked for."""
        if not self.config["per_layer"]:
            return None
        return _frame(
            [
                {
                    "policy": row.policy,
                    "label": label,
                    "params": row.params,
                    "cache_bytes": row.cache_bytes,
                    "cache_mib": row.cache_mib,
                    "cache_fraction": row.cache_fraction,
                    **asdict(layer),
                }
                for row, label in zip(self.rows, labels_of(self.rows), strict=True)
                for layer in row.layers or ()
            ],
            LAYER_COLUMNS,
        )

    @property
    def provenance(self) -> dict[str, Any]:
        """Which trace this is of, and which version made it."""
        return provenance(self.trace)

    def __repr__(self) -> str:
        rows = counted(len(self.rows), "row")
        return (
            f"<ReplayResult of {self.trace.name}: {rows} of {', '.join(self.config['policies'])}>"
        )

    def _parts(self) -> list[Part]:
        return replay_parts(self.trace, self.rows, self.notes, self.config)

    def to_text(self) -> str:
        """Return the table that the command line prints, with what its marks mean."""
        return as_text(self._parts())

    def _repr_html_(self) -> str:
        return as_html(self._parts())

    def plot(self, *, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the hit rates over the budgets; as `tracekit.plots.plot_curves`, see there."""
        return draw(self, ax=ax, **style)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``tracekit.replay/1``."""
        return {
            "schema": "tracekit.replay/1",
            "config": self.config,
            "provenance": self.provenance,
            "notes": self.notes,
            "results": self.records,
        }


def _frame(rows: Sequence[Mapping[str, Any]], columns: Iterable[Figure]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(rows)
    types = {
        f.name: _NULLABLE_TYPES[f.unit]
        for f in columns
        if f.nullable and f.name in frame and (f.name not in _SIZES or frame[f.name].isna().any())
    }
    return frame.astype(types)

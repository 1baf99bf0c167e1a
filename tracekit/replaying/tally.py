"""From cells to a row of the result: what a policy did at one budget, added up piece by piece.

In go the batches of each piece and its cell; out comes a row. Nothing here grows with the run.
"""

import numpy as np

from tracekit.policies.base import Batches, Cell, Limit, Policy
from tracekit.policies.bound import Bound
from tracekit.policies.model import Model
from tracekit.policies.totals import Totals
from tracekit.replaying.kept import kept_to_budget, most_by_shares
from tracekit.replaying.reads import reads_of
from tracekit.replaying.rows import COLUMNS, DEMAND, NO_BOUND, LayerRow, Row, identity, totals
from tracekit.trace.errors import UsageError


def row_of(policy: Policy, batches: Batches, cell: Cell | Limit | Totals, per_layer: bool) -> Row:
    """Reduce `cell`, which `policy` gave for `batches`, to a row.

    Raises
    ------
    UsageError
        The policy has a counter of a name that every row has.
    """
    tally = Tally(policy, batches, cell.budget_bytes, per_layer)
    tally.add(batches, cell)
    return tally.row()


class Tally:
    """The figures of one policy at one budget, of all pieces so far.

    Parameters
    ----------
    policy : Policy
    model : Model
    budget : int
        In bytes.
    per_layer : bool
        Figures of each layer too.
    """

    def __init__(self, policy: Policy, model: Model, budget: int, per_layer: bool):
        self._policy = policy
        self._model = model
        self._budget = budget
        # Lookups, hits and bytes read of each layer: of all batches, and of those of decoded tokens.
        self._sums = np.zeros((6, model.n_layers), np.int64)
        self._per_layer = per_layer
        self._limit: Limit | None = None
        self._counters: dict[str, int | float | None] = {}
        self._demand_bytes = 0
        self._peak = 0
        self._peak_decode: int | None = None
        self._kept = self._kept_decode = self._kept_shares = True
        self._resident = 0
        self._resident_of_layer = np.zeros(model.n_layers, np.int64)

    def add(self, batches: Batches, cell: Cell | Limit | Totals) -> None:
        """Add the next piece.

        Raises
        ------
        UsageError
            The policy has a counter of a name that every row has.
        """
        if isinstance(cell, Limit):
            self._limit = cell
            nothing = np.zeros_like(batches.lookups_by_kind)
            self._add(batches.lookups_by_kind, nothing, nothing)
            return
        if isinstance(cell, Totals):
            self._add_totals(batches, cell)
            return
        if cell.lookups is None and cell.read_bytes is None:
            self._add_demand(batches, batches.by_kind(cell.hits))
        else:
            reads = reads_of(batches, cell)
            by_kind = [
                batches.by_kind(each) for each in (reads.lookups, cell.hits, reads.read_bytes)
            ]
            self._add(*by_kind)
        self._counters = _counters(self._policy, cell)
        if self._policy.speculative:
            demand_bytes = reads_of(batches, cell).demand_bytes
            self._demand_bytes += int(demand_bytes[batches.counted_decode].sum())
        self._add_peaks(batches, cell)
        if self._policy.in_shares:
            self._add_shares(batches, cell)
        if len(batches):
            self._resident = int(cell.resident_bytes[-1])

    def _add(self, *by_kind: np.ndarray) -> None:
        """Add lookups, hits and bytes read, each by the kind of the batch and its layer."""
        for j, (_, other, decode) in enumerate(by_kind):
            self._sums[2 * j] += other + decode
            self._sums[2 * j + 1] += decode

    def _add_demand(self, batches: Batches, hits: np.ndarray) -> None:
        """Add the hits, int64 [3, L], of a policy that reads what misses, and no more."""
        lookups = batches.lookups_by_kind
        self._add(lookups, hits, (lookups - hits) * batches.expert_bytes)

    def _add_totals(self, batches: Batches, found: Totals) -> None:
        """Add a whole run of a policy that keeps to its budget."""
        other = found.hits - found.hits_decode
        self._add_demand(batches, np.stack([np.zeros_like(other), other, found.hits_decode]))
        self._peak, self._peak_decode = found.peak_bytes, found.peak_bytes_decode

    def _add_peaks(self, batches: Batches, cell: Cell) -> None:
        resident = cell.resident_bytes
        later = batches.after_first_decode
        most = int(resident.max(initial=0))
        if most > self._budget:
            kept = kept_to_budget(batches, cell)
            self._kept &= bool(kept.all())
            self._kept_decode &= bool(kept[later].all())
        if batches.warming is not None:
            most = int(resident[batches.counted].max(initial=0))
        self._peak = max(self._peak, most)
        in_peak = later & batches.counted_decode
        if in_peak.any():
            self._peak_decode = max(int(resident[in_peak].max()), self._peak_decode or 0)

    def _add_shares(self, batches: Batches, cell: Cell) -> None:
        """Note whether a layer held more than its share; a batch changes only what its layer holds."""
        change = np.diff(cell.resident_bytes, prepend=self._resident)
        most = most_by_shares(batches, cell.budget_bytes)
        for layer in range(batches.n_layers):
            which = batches.layer == layer
            held = self._resident_of_layer[layer] + np.cumsum(change[which])
            self._kept_shares &= not (held > most[which]).any()
            self._resident_of_layer[layer] += change[which].sum()

    def row(self) -> Row:
        """Return the figures of all pieces so far."""
        policy, limit = self._policy, self._limit
        figures = [int(total) for total in self._sums.sum(axis=1)]
        of_all, of_decode = figures[0::2], figures[1::2]
        if limit is not None:
            of_all = [of_all[0], limit.hits, limit.read_bytes]
            of_decode = [of_decode[0], limit.hits_decode, limit.read_bytes_decode]
        peak, peak_decode = self._peak, self._peak_decode
        counters = dict(self._counters)
        if policy.speculative:
            counters[DEMAND.name] = self._demand_bytes
        kind = policy.kind if limit is not None and isinstance(policy, Bound) else None
        return Row(
            **identity(policy, self._model, self._budget),
            **totals(of_all, of_decode),
            **NO_BOUND | {"bound_class": kind},
            peak_resident_bytes=None if limit else peak,
            peak_resident_bytes_decode=None if limit else peak_decode,
            over_budget=None if limit else peak > self._budget,
            over_budget_decode=(
                None if limit or peak_decode is None else peak_decode > self._budget
            ),
            replayed=policy,
            counters=counters,
            kept_to_budget=self._kept,
            kept_to_budget_decode=self._kept_decode,
            kept_to_shares=self._kept_shares,
            layers=self._layers() if self._per_layer else None,
        )

    def _layers(self) -> tuple[LayerRow, ...]:
        # There is no limit of one layer.
        known = 6 if self._limit is None else 2
        of_layers = [[*each[:known], *[None] * (6 - known)] for each in self._sums.T.tolist()]
        return tuple(
            LayerRow(layer=layer, **totals(figures[0::2], figures[1::2]))
            for layer, figures in zip(self._model.layer_ids.tolist(), of_layers, strict=True)
        )


def _counters(policy: Policy, cell: Cell) -> dict[str, int | float | None]:
    """Return a policy's own totals as plain numbers, None for NaN."""
    taken = {figure.name for figure in COLUMNS} | {"layers", "validation"}
    if taken & set(cell.counters):
        raise UsageError(
            f"Policy {policy.name!r} has a counter {min(taken & set(cell.counters))!r}, as every "
            "result has; give it another name."
        )
    plain = {name: np.asarray(value).item() for name, value in cell.counters.items()}
    return {name: None if value != value else value for name, value in plain.items()}

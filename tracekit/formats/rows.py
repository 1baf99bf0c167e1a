"""From rows of a table to routings: a row for each selected expert, or for each routing.

In: rows by the names of `names.ALIASES`, piece by piece. Out: chunks of whole passes. Rows of one pass
may stand in any order; a pass whose rows stand far apart in the file is refused.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracekit.formats.grouping import Grouped, LineOf, Rows, Together, grouped, joined
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source
from tracekit.formats.tokens import ASSUMED_PASSES, Padding, phases_of
from tracekit.formats.turns import Turns
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.schema import DECODE

# So many slots are gathered before passes are cut off; a longer pass is gathered as a whole.
GATHERED_SLOTS = 1 << 20
MOST_LAYERS = 1 << 15
ALL_DECODED = "every token is taken as decoded, since nothing says which belong to a prompt"
FROM_PASSES = "passes of several tokens with which a turn begins are its prompt"
_SORT = (
    "correct the rows; if they are mixed, sort them by token and layer, or say in a column prompt of "
    "which prompt they are"
)
# Labels of prefill passes stand before those of all decoded tokens.
_FIRST_LABEL = -(1 << 40)


@dataclass
class RowReader:
    """Makes routings of rows.

    Parameters
    ----------
    source : Source
        Of which the rows are; it is told what is inferred, and that the file ends early.
    options : ImportOptions
    line_of : callable
        Maps the number of a row to the words that tell a user where it is.
    """

    source: Source
    options: ImportOptions
    line_of: LineOf
    _turns: Turns = field(default_factory=Turns)
    _padding: Padding = field(default_factory=Padding)
    _layers: set[int] = field(default_factory=set)
    _top_k: int | None = None
    _prompt_end: tuple[int, int] = (-1, -1)  # turn, and the last token of its prompt
    _decoding: int = -1  # the turn whose prompt is over, where passes show that

    def chunks(self, pieces: Iterable[Rows]) -> Iterator[Routings]:
        """Yield the routings of all rows.

        Raises
        ------
        TraceError
            Rows do not give the same number of experts for each routing, or passes are torn apart.
        """
        self._top_k = self.options.given_top_k or self.source.model.get("top_k")
        waiting: list[Rows] = []
        n_slots, most = 0, GATHERED_SLOTS
        for piece in Together(self._top_k).pieces(pieces):
            rows = self._placed(piece)
            if not len(rows):
                continue
            waiting.append(rows)
            n_slots += rows.experts.size
            if n_slots < most:
                continue
            gathered = joined(waiting)
            labels = self._labels(gathered)
            end = _last_cut(gathered, labels)
            if end:
                yield self._routings(gathered.taken(slice(0, end)), labels[:end])
                gathered = gathered.taken(slice(end, None))
            waiting, n_slots = [gathered], gathered.experts.size
            most = max(GATHERED_SLOTS, 2 * n_slots)
        if n_slots:
            gathered = joined(waiting)
            yield self._routings(gathered, self._labels(gathered), is_last=True)

    # ---- places ----------------------------------------------------------------------------

    def _placed(self, rows: Rows) -> Rows:
        """Return the rows that name an expert, with their turns and phases."""
        if (
            rows.experts.ndim == 2
            and (k := self._padding.used(rows.experts)) < rows.experts.shape[1]
        ):
            lists: dict[str, Any] = {
                name: v[:, :k] for name, v in rows.columns().items() if v.ndim == 2
            }
            rows = replace(rows, **lists)
        if len(rows) and rows.experts.min() < 0:
            absent = rows.experts < 0
            if absent.ndim == 2:
                n_absent = np.count_nonzero(absent, axis=1)
                partly = (n_absent > 0) & (n_absent < absent.shape[1])
                if partly.any():
                    raise TraceError(
                        f"{self.line_of(int(rows.number[partly.argmax()]))}: some slots of the "
                        "routing name no expert; every routing of a trace has the same number of "
                        "experts, or none: write -1 in all of its slots."
                    )
                absent = n_absent > 0
            rows = rows.taken(~absent)
        if rows.expert_bytes is not None:
            self._note_sizes(rows)
            rows = replace(rows, expert_bytes=None)
        if rows.turn is None:
            rows = replace(rows, turn=self._turns.of(rows.layer, rows.token, rows.passes))
        inferred = self.source.inferred
        if rows.passes is None:
            inferred.setdefault("passes", ASSUMED_PASSES)
        if rows.phase is None:
            inferred.setdefault("phases", ALL_DECODED if rows.passes is None else FROM_PASSES)
            if rows.passes is None:
                rows = replace(rows, phase=np.full(len(rows), DECODE, np.uint8))
        return rows

    def _note_sizes(self, rows: Rows) -> None:
        """Tell the source the sizes of experts that rows give; a layer has one."""
        assert rows.expert_bytes is not None
        # Other numbers of layers are refused where the routings are checked.
        rows = rows.taken((rows.layer >= 0) & (rows.layer < MOST_LAYERS) & (rows.expert_bytes >= 0))
        assert rows.expert_bytes is not None
        by_layer = np.full(MOST_LAYERS, -1, np.int64)
        for layer in self.source.layers:
            by_layer[layer["layer"]] = layer["expert_bytes"]
        # Of a layer that is new, the size in its last row counts.
        new = by_layer[rows.layer] < 0
        by_layer[rows.layer[new]] = rows.expert_bytes[new]
        wrong = rows.expert_bytes != by_layer[rows.layer]
        if wrong.any():
            at = int(wrong.argmax())
            raise TraceError(
                f"{self.line_of(int(rows.number[at]))}: an expert of layer {rows.layer[at]} has "
                f"{rows.expert_bytes[at]} bytes here and {by_layer[rows.layer[at]]} in another "
                "row; a layer's experts are of one size: correct it."
            )
        self.source.layers = [
            {"layer": int(layer), "expert_bytes": int(by_layer[layer])}
            for layer in np.flatnonzero(by_layer >= 0)
        ]

    def _labels(self, rows: Rows) -> np.ndarray:
        """Return a label of the pass of each row, ascending within a turn, int64 [n]."""
        if rows.passes is not None:
            return rows.passes
        chunk = self.options.chunk
        if rows.phase is None or rows.phase.all():
            return rows.token
        of_prompt = np.int64(_FIRST_LABEL) + (0 if chunk is None else rows.token // chunk)
        return np.where(rows.phase == DECODE, rows.token, of_prompt)

    def _steps(self, rows: Rows) -> np.ndarray:
        """Return the steps: decoded tokens that are counted from 0 follow the prompt."""
        turn, phase, token = rows.turn, rows.phase, rows.token
        if rows.passes is not None or phase is None or phase.all():
            return token
        assert turn is not None
        first = int(turn.min())
        at = turn - first
        prompt_end = np.full(int(at.max()) + 1, -1)
        if self._prompt_end[0] >= first:
            prompt_end[self._prompt_end[0] - first] = self._prompt_end[1]
        decoded = phase == DECODE
        np.maximum.at(prompt_end, at[~decoded], token[~decoded])
        self._prompt_end = int(turn.max()), int(prompt_end[-1])
        first_decoded = np.full(len(prompt_end), np.iinfo(np.int64).max)
        np.minimum.at(first_decoded, at[decoded], token[decoded])
        shift = np.where(first_decoded <= prompt_end, prompt_end + 1 - first_decoded, 0)
        return np.where(decoded, token + shift[at], token) if shift.any() else token

    # ---- routings --------------------------------------------------------------------------

    def _routings(self, rows: Rows, labels: np.ndarray, is_last: bool = False) -> Routings:
        rows = replace(rows, token=self._steps(rows))
        mend = _SORT if self._turns.any else "correct the rows, or record them again"
        found = grouped(rows, labels, self._top_k, self.line_of, is_last, mend)
        self._top_k = found.experts.shape[1]
        if found.cut is not None:
            self.source.cut(f"{self.source.name} is incomplete: {found.cut}.")
        if is_last:
            found = self._without_cut_pass(found)
        self._layers |= _distinct(found.layer)
        phase = found.phase
        if phase is None:
            phase = self._phases(found)
        line_of, number, follow = self.line_of, found.number, found.slots_follow

        def locate(row: int, slot: int) -> str:
            return line_of(int(number[row]) + (slot if follow else 0))

        return Routings(
            turn=found.turn,
            passes=found.label,
            phase=phase,
            step=found.token,
            layer=found.layer,
            experts=found.experts,
            weights=found.weights,
            residency=found.residency,
            dropped=found.dropped,
            token=found.token_id,
            kept=found.kept,
            locate=locate,
        )

    def _phases(self, found: Grouped) -> np.ndarray:
        """Return phases that only the passes show."""
        place = np.stack((found.turn, found.label, found.token))
        tokens, of_row = np.unique(place, axis=1, return_inverse=True)
        turn, passes = tokens[0], tokens[1]
        phase = phases_of(turn, passes)
        phase[turn == self._decoding] = DECODE
        if len(turn) and phase[-1] == DECODE:
            self._decoding = int(turn[-1])
        return phase[of_row.reshape(-1)]

    def _without_cut_pass(self, found: Grouped) -> Grouped:
        """Leave out the last pass if it is of one decoded token that lacks layers of the others."""
        if not len(found.layer):
            return found
        last = np.lexsort((found.label, found.turn))[-1]
        in_last = (found.turn == found.turn[last]) & (found.label == found.label[last])
        if found.phase is None or found.phase[last] != DECODE or in_last.all():
            return found
        layers = self._layers | _distinct(found.layer[~in_last])
        layers |= set(found.layer[in_last].tolist())
        n_tokens = len(np.unique(found.token[in_last]))
        if np.count_nonzero(in_last) == n_tokens * len(layers):
            return found
        self.source.cut(
            f"{self.source.name} is incomplete: its last decode pass (turn {found.turn[last]}, "
            f"token {found.token[last]}) lacks rows, and is left out."
        )
        return found.taken(~in_last)


def _distinct(layers: np.ndarray) -> set[int]:
    if len(layers) and layers.min() >= 0 and layers.max() < MOST_LAYERS:
        return set(np.flatnonzero(np.bincount(layers)).tolist())
    return set(np.unique(layers).tolist())  # they are refused later, with their line


def _last_cut(rows: Rows, labels: np.ndarray) -> int:
    """Return the last place before which all passes are earlier than those after it; 0: none."""
    turn = rows.turn
    assert turn is not None
    span = int(labels.max()) - int(labels.min()) + 1
    if span * (int(turn.max()) - int(turn.min()) + 1) < 1 << 62:
        key = (turn - turn.min()) * span + (labels - labels.min())
    else:
        key = np.unique(np.stack((turn, labels)), axis=1, return_inverse=True)[1].reshape(-1)
    largest_before = np.maximum.accumulate(key)[:-1]
    least_after = np.minimum.accumulate(key[::-1])[::-1][1:]
    cuts = np.flatnonzero(largest_before < least_after)
    return int(cuts[-1]) + 1 if len(cuts) else 0

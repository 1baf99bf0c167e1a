"""Router traces of Megatron-LM: ``--moe-routing-trace-path``.

In: ``router_trace_rank{R}.jsonl`` with a line for each step and layer, of one rank or several; beside it,
as far as they were captured, the logits, the hidden states and the router weights. Out: a run with a
pass a step. A trace does not say which request a token is of: the run is counted on, and a new turn
begins where a step has several tokens after steps of one.

Experts stand in ascending order, unless the logits rank them. Pipeline stages number their layers from
0; that ranks are stages shows in their router weights, or in ``--n-layer``.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

import numpy as np

from tracekit.formats.format import Format, register
from tracekit.formats.given import Given
from tracekit.formats.megatron_ranks import Ranks, Step
from tracekit.formats.megatron_records import Block, is_trace
from tracekit.formats.megatron_sidecars import FILES, SIDECARS, Sidecar, beside
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.schema import DECODE, PREFILL

PHASES = (
    "passes of several tokens with which a turn begins are its prompt, and a turn begins where such "
    "a pass follows one of a single token"
)

PLACES_OF = ("hidden states", "logits")
# Routings that become columns at once take about this much.
_MOST_BYTES = 32 << 20


@register
class Megatron(Format):
    """Reader of Megatron-LM's router traces and what was captured beside them."""

    name = "megatron"
    summary = "router_trace_rank*.jsonl of Megatron-LM, with logits, hidden states and weights"
    told_by = "a first line that is an object with step, layer, topk and top_indices (nested lists)"
    lacks = "prompts, the order of slots without logits, sizes"

    def recognises(self, given: Given) -> bool:
        """Say whether the files are traces of ranks and what is captured beside them."""
        traces = [file for file in given.files if is_trace(file)]
        others = [file for file in given.files if file not in traces]
        return bool(traces) and all(SIDECARS.fullmatch(file.path.name) for file in others)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the traces of all ranks, step by step."""
        source = Source(given.name, ())
        source.inferred["phases"] = PHASES
        source.chunks = _Run(given, source, options).chunks()
        return source


class _Run:
    """The steps of all ranks as routings."""

    def __init__(self, given: Given, source: Source, options: ImportOptions):
        self._given = given
        self._source = source
        self._ranks = Ranks(given, source, options)
        self._turn, self._pass, self._step = 0, 0, 0
        self._last_tokens = 0
        self._place: tuple[np.ndarray, ...] = ()  # of the passes in hand

    def chunks(self) -> Iterator[Routings]:
        with ExitStack() as stack:
            files = self._sidecars(stack)
            all_ranked = True
            for block in self._ranks.blocks():
                widths = [self._width(block.records, files, n) for n in range(len(FILES))]
                for part in block.parts(_MOST_BYTES):
                    gate_input, logits = (
                        None if width is None else _values(part.records, files, which, width)
                        for which, width in enumerate(widths)
                    )
                    chunk = self._routings(part, gate_input, logits)
                    all_ranked &= chunk.logits is not None and not np.isnan(chunk.logits).any()
                    yield chunk
        if all_ranked:
            self._source.slot_order = "ranked"

    def _sidecars(self, stack: ExitStack) -> dict[tuple[int, int], Sidecar]:
        """Open the sidecars of all ranks, by rank and which of `FILES` they are."""
        found: dict[tuple[int, int], Sidecar] = {}
        for rank, path in self._ranks.paths.items():
            for which, name in enumerate(FILES):
                file = beside(self._given, path, name.format(rank))
                if file is not None:
                    found[rank, which] = stack.enter_context(closing(Sidecar(file.path)))
        return found

    # ---- places ----------------------------------------------------------------------------

    def _routings(
        self, part: Step, gate_input: np.ndarray | None, logits: np.ndarray | None
    ) -> Routings:
        records, tokens = part.records, part.tokens
        if not part.continues:
            self._place = self._places(tokens)
        turn, first, label, phase = self._place
        n_tokens = records.n_tokens
        of_row = np.repeat(np.arange(len(records)), n_tokens)
        inside = np.arange(len(of_row)) - np.repeat(np.cumsum(n_tokens) - n_tokens, n_tokens)
        in_pass = part.number
        experts = records.experts
        if logits is not None:
            experts = self._ranked(experts, logits)
        path, line = self._given.name, records.step

        def locate(row: int, slot: int) -> str:
            at = of_row[row]
            return f"{path} (step {line[at]}, layer {records.layer[at]})"

        return Routings(
            turn=turn[in_pass][of_row],
            passes=label[in_pass][of_row],
            phase=phase[in_pass][of_row],
            step=(first[in_pass] + part.offset)[of_row] + inside,
            layer=records.layer[of_row],
            experts=experts,
            gate_input=gate_input,
            logits=logits,
            locate=locate,
            continues=part.continues,
        )

    def _places(self, tokens: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return turn, first step, label and phase of each pass, and count on.

        Parameters
        ----------
        tokens : int [passes]
        """
        before = np.append(self._last_tokens, tokens[:-1])
        begins = (tokens > 1) & (before == 1)
        turn = self._turn + np.cumsum(begins)
        ends = np.cumsum(tokens)
        first = self._step + ends - tokens
        # Within a turn steps are counted from its first pass in this block on, or go on before it.
        for at in np.flatnonzero(begins).tolist():
            first[at:] -= first[at]
        label = self._pass + np.arange(len(tokens))
        self._turn, self._pass = int(turn[-1]), int(label[-1]) + 1
        self._step, self._last_tokens = int(first[-1] + tokens[-1]), int(tokens[-1])
        return turn, first, label, np.where(tokens > 1, PREFILL, DECODE)

    # ---- values of the sidecars ------------------------------------------------------------

    def _width(
        self, records: Block, files: Mapping[tuple[int, int], Sidecar], which: int
    ) -> int | None:
        """Return how many values of a sidecar a token has; None: there are none."""
        known = _known(records, files, which)
        lost = (records.offsets[:, which] >= 0) & ~known
        if lost.any():
            name = FILES[which].format(records.rank[lost.argmax()])
            warning = f"{self._given.name}: {name} is not beside the trace, and is left out."
            if warning not in self._source.warnings:
                self._source.warnings.append(warning)
        widths = np.unique(records.widths[known, which])
        if len(widths) > 1:
            raise TraceError(
                f"{self._given.name}: {PLACES_OF[which]} have {widths[0]} values a token and "
                f"{widths[1]}; import the files of one run."
            )
        return int(widths[0]) if len(widths) else None

    def _ranked(self, experts: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the experts of each row in descending order of their logits."""
        if experts.size and not (experts.min() >= 0 and experts.max() < logits.shape[1]):
            raise TraceError(
                f"{self._given.name} selects expert {experts.max()}, but has logits of "
                f"{logits.shape[1]} experts; import the files of one run."
            )
        chosen = np.take_along_axis(logits, experts, axis=1)
        order = np.argsort(-chosen, axis=1, kind="stable")
        return np.take_along_axis(experts, order, axis=1)


def _known(records: Block, files: Mapping[tuple[int, int], Sidecar], which: int) -> np.ndarray:
    """Say which records have values in a sidecar that is there, bool [records]."""
    ranks = [rank for rank, each in files if each == which]
    known: np.ndarray = (records.offsets[:, which] >= 0) & np.isin(records.rank, ranks)
    return known


def _values(
    records: Block, files: Mapping[tuple[int, int], Sidecar], which: int, width: int
) -> np.ndarray:
    """Return what a sidecar has for each token of the records, NaN where it has nothing."""
    known = _known(records, files, which)
    of_row = np.repeat(np.arange(len(records)), records.n_tokens)
    values = np.full((len(of_row), width), np.nan, np.float32)
    for rank in np.unique(records.rank[known]).tolist():
        chosen = known & (records.rank == rank)
        offsets, sizes = records.offsets[chosen, which], records.sizes[chosen, which]
        values[chosen[of_row]] = files[rank, which].read(offsets, sizes).reshape(-1, width)
    return values

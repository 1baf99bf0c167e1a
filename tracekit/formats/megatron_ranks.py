"""The ranks of a run of Megatron-LM, step by step: which repeat others, which are stages of a pipeline.

In: the traces of all ranks. Out: the records of whole passes, with the model's own layers, and where the
tokens of a rank stand among those of the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tracekit.formats.given import File, Given
from tracekit.formats.megatron_records import Block, Records, is_trace, joined
from tracekit.formats.megatron_sidecars import RouterState, router_states, stages_of
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source
from tracekit.trace import TraceError

SAME_LAYERS = (
    "the ranks are taken to have the same layers and other tokens; if they are stages of a pipeline, "
    "--n-layer N, with the layers of the whole model, tells it"
)


@dataclass(frozen=True)
class Step:
    """Records of whole passes, in the order of their passes; or a part of one pass.

    Attributes
    ----------
    records : Block
    number : int [records]
        Which of these passes it is of.
    offset : int [records]
        Where its tokens begin among those of its pass.
    tokens : int [passes]
    continues : bool
        It goes on with the pass of the part before.
    """

    records: Block
    number: np.ndarray
    offset: np.ndarray
    tokens: np.ndarray
    continues: bool = False

    def parts(self, most_bytes: int) -> Iterator["Step"]:
        """Yield parts that take about `most_bytes` each; of passes, only prompts are cut."""
        records = self.records
        size = np.bincount(self.number, records.n_tokens * self._row_bytes(), len(self.tokens))
        is_large = (size > most_bytes) & (self.tokens > 1)
        group = (np.cumsum(size) // most_bytes).astype(np.int64)
        begins = np.append(True, (np.diff(group) != 0) | is_large[1:] | is_large[:-1])
        first = np.flatnonzero(begins)
        for start, stop in zip(first, [*first[1:], len(self.tokens)], strict=True):
            low, high = np.searchsorted(self.number, (start, stop))
            part = Step(
                records.between(low, high),
                self.number[low:high] - start,
                self.offset[low:high],
                self.tokens[start:stop],
            )
            yield from part._of_one_pass(most_bytes) if is_large[start] else (part,)

    def _row_bytes(self) -> np.ndarray:
        """Return how much a token of each record takes, int [records]."""
        records = self.records
        bytes_of_row: np.ndarray = 4 * (
            records.experts.shape[1] + np.maximum(records.widths, 0).sum(axis=1)
        )
        return bytes_of_row

    def _of_one_pass(self, most_bytes: int) -> Iterator["Step"]:
        """Yield parts of a single pass: layer by layer, and of a layer some tokens at a time."""
        most = max(1, most_bytes // int(self._row_bytes().max()))
        pieces, of_record, first_token = self.records.cut(most)
        offset = self.offset[of_record] + first_token
        order = np.lexsort((offset, pieces.layer))
        pieces, offset = pieces.ordered(order), offset[order]
        group = (np.cumsum(pieces.n_tokens) - 1) // most
        first = np.flatnonzero(np.append(True, np.diff(group) != 0)).tolist()
        for start, stop in zip(first, [*first[1:], len(pieces)], strict=True):
            rows = slice(start, stop)
            number = np.zeros(stop - start, np.int64)
            records = pieces.between(start, stop)
            yield Step(records, number, offset[rows], self.tokens, continues=start > 0)


class Ranks:
    """The ranks of a run.

    Parameters
    ----------
    given : Given
    source : Source
        Is told what the routers say, and what had to be inferred.
    options : ImportOptions

    Attributes
    ----------
    paths : dict of int to Path
        The trace of each rank.

    Raises
    ------
    TraceError
        Two files are of one rank.
    """

    def __init__(self, given: Given, source: Source, options: ImportOptions):
        self._name = given.name
        self._source = source
        self._options = options
        self._records: dict[int, Records] = {}
        self._waiting: dict[int, Block] = {}
        self._sources: dict[int, Iterator[Block]] = {}
        for file in given.files:
            if is_trace(file):
                self._add(file)
        self.paths: dict[int, Path] = {r: self._records[r].path for r in sorted(self._records)}
        self._states = router_states(given, self.paths)
        self._stages = stages_of(self._states, list(self.paths))
        # Of each rank, the one that it repeats; found out from the first steps.
        self._repeats: dict[int, int] | None = None
        self._stage: dict[int, int] = {}
        self._first_layer: dict[int, int] = {}

    def _add(self, file: File) -> None:
        records = Records(file, self._source)
        blocks = records.blocks()
        first = next(blocks, None)
        if first is None:
            raise TraceError(f"{file.path} holds no whole step; record it again.")
        ranks = np.unique(first.rank)
        rank = max(0, int(ranks[0]))
        if len(ranks) > 1 or rank in self._records:
            raise TraceError(
                f"{file.path} is of rank {ranks[-1]}, as is another file or another line; import the "
                "files of one run, one of each rank."
            )
        self._records[rank] = records
        self._waiting[rank] = first
        self._sources[rank] = blocks

    def blocks(self) -> Iterator[Step]:
        """Yield the records of all ranks, whole passes at a time.

        Raises
        ------
        TraceError
            The ranks do not agree on the tokens of a pass.
        """
        while self._waiting:
            ends = [int(self._waiting[rank].step[-1]) for rank in self._sources]
            limit = min(ends) if ends else None
            ready = {}
            for rank, block in self._waiting.items():
                stop = len(block)
                if limit is not None:
                    stop = int(np.searchsorted(block.step, limit, side="right"))
                if stop:
                    ready[rank] = block.between(0, stop)
                self._waiting[rank] = block.between(stop, len(block))
            yield self._together(ready)
            self._refill()
        left_out = sum(records.n_left_out for records in self._records.values())
        if left_out:
            self._source.warnings.append(
                f"{self._name}: {left_out} records of layers that predict further tokens (mtp) are "
                "left out."
            )

    def _refill(self) -> None:
        for rank in list(self._waiting):
            if len(self._waiting[rank]):
                continue
            block = next(self._sources[rank], None) if rank in self._sources else None
            if block is None:
                self._sources.pop(rank, None)
                del self._waiting[rank]
            else:
                self._waiting[rank] = block

    # ---- ranks -----------------------------------------------------------------------------

    def _together(self, ready: dict[int, Block]) -> Step:
        if self._repeats is None:
            self._place_layers(ready)
            self._repeats = self._repeated(ready)
        for rank, other in self._repeats.items():
            if rank in ready and not (other in ready and _is_same(ready[rank], ready[other])):
                raise TraceError(
                    f"{self.paths[rank]} begins as {self.paths[other]} does, but does not go on so; "
                    "import the files of one run."
                )
        kept = [rank for rank in sorted(ready) if rank not in self._repeats]
        blocks = []
        for rank in kept:
            block = ready[rank]
            ranks = np.full(len(block), rank)
            blocks.append(replace(block, rank=ranks, layer=block.layer + self._first_layer[rank]))
        return self._passes(joined(blocks))

    def _place_layers(self, ready: dict[int, Block]) -> None:
        """Find the first layer of each rank, and what the routers say of the layers."""
        ranks = list(self.paths)
        n_layer = self._options.given_n_layer
        own = _stages_of_own_layers(ready)
        if own is not None and set(own) == set(ranks):  # the layers have the model's own numbers
            self._stage, self._first_layer = own, dict.fromkeys(ranks, 0)
            self._describe(own)
            return
        per_stage = 1 + max(int(block.layer.max()) for block in ready.values())
        if self._states:
            layers = (max(state.routers) for state in self._states.values())
            per_stage = max(per_stage, 1 + max(layers))
        stages = self._stages
        if stages is None:
            n_stages = n_layer // per_stage if n_layer else 1
            is_whole = n_stages > 1 and n_layer == n_stages * per_stage
            if is_whole and len(ranks) % n_stages == 0:
                # Stages are the outermost order of Megatron's ranks.
                each = len(ranks) // n_stages
                stages = {rank: at // each for at, rank in enumerate(ranks)}
            elif len(ranks) > 1:
                self._source.inferred["layers"] = SAME_LAYERS
        stages = stages or dict.fromkeys(ranks, 0)
        n_stages = 1 + max(stages.values())
        if n_layer is not None and n_layer % n_stages == 0:
            per_stage = max(per_stage, n_layer // n_stages)
        self._stage = stages
        self._first_layer = {rank: stage * per_stage for rank, stage in stages.items()}
        if n_stages > 1:
            self._source.model["n_layer"] = n_stages * per_stage
        self._describe(stages)

    def _describe(self, stages: dict[int, int]) -> None:
        described: dict[int, RouterState] = {}
        for rank, state in self._states.items():
            described.setdefault(stages[rank], state)
        rows = []
        for stage, state in described.items():
            facts = state.facts()
            first = next(r for r, each in stages.items() if each == stage)
            self._source.model = {**facts, **self._source.model}
            if facts["n_embd"] != self._source.model["n_embd"]:
                raise TraceError(f"{self._name}: the routers of its ranks have different sizes.")
            rows += state.layers(self._first_layer[first])
        self._source.layers = rows

    def _repeated(self, ready: dict[int, Block]) -> dict[int, int]:
        """Return of each rank that has the same tokens as an earlier one, that one."""
        repeats: dict[int, int] = {}
        for rank in sorted(ready):
            for other in sorted(ready):
                if other >= rank:
                    break
                same_layers = self._stage[rank] == self._stage[other]
                if other not in repeats and same_layers and _is_same(ready[rank], ready[other]):
                    repeats[rank] = other
                    break
        return repeats

    # ---- passes ----------------------------------------------------------------------------

    def _passes(self, block: Block) -> Step:
        """Put the records into the order of their passes, and their tokens one after the other."""
        ranks, of_record = np.unique(block.rank, return_inverse=True)
        stage = np.array([self._stage[rank] for rank in ranks.tolist()])[of_record]
        order = np.lexsort((block.layer, block.rank, block.forward, block.step))
        block, stage = block.ordered(order), stage[order]
        begins = np.append(True, (np.diff(block.step) != 0) | (np.diff(block.forward) != 0))
        number = np.cumsum(begins) - 1
        n_passes = int(number[-1]) + 1
        # Of each pass and rank: its tokens, the same at all of its layers.
        starts = np.append(True, (np.diff(number) != 0) | (np.diff(block.rank) != 0))
        group = np.cumsum(starts) - 1
        first = np.flatnonzero(starts)
        uneven = block.n_tokens != block.n_tokens[first][group]
        if uneven.any():
            at = int(uneven.argmax())
            raise TraceError(
                f"{self._name}: step {block.step[at]} has {block.n_tokens[at]} tokens at layer "
                f"{block.layer[at]}, but {block.n_tokens[first][group][at]} at the one before; a pass "
                "has the same tokens at every layer: record it again."
            )
        tokens, of_pass = block.n_tokens[first], number[first]
        of_stage = np.unique(stage[first], return_inverse=True)[1]
        key = of_pass * (int(of_stage.max()) + 1) + of_stage
        by_key = np.argsort(key, kind="stable")
        ends = np.cumsum(tokens[by_key])
        begin = np.append(True, np.diff(key[by_key]) != 0)
        base = (ends - tokens[by_key])[np.flatnonzero(begin)][np.cumsum(begin) - 1]
        offset = np.empty_like(tokens)
        offset[by_key] = ends - tokens[by_key] - base
        totals = np.bincount(key, tokens, n_passes * (int(of_stage.max()) + 1)).reshape(
            n_passes, -1
        )
        total = totals.max(axis=1).astype(np.int64)
        differs = (totals != total[:, None]) & (totals > 0)
        if differs.any():
            at = int(differs.any(axis=1).argmax())
            step = block.step[np.searchsorted(number, at)]
            raise TraceError(
                f"{self._name}: the stages of the pipeline have different numbers of tokens in step "
                f"{step}; import the files of one run."
            )
        return Step(block, number, offset[group], total)


def _stages_of_own_layers(ready: Mapping[int, Block]) -> dict[int, int] | None:
    """Return the stage of each rank where no two stages share a number of a layer; None: they do.

    A rank that had other tokens, or stages that count their layers anew, would share some.
    """
    layers = {rank: frozenset(block.layer.tolist()) for rank, block in ready.items()}
    stages = sorted(set(layers.values()), key=min)
    if len(stages) < 2 or sum(map(len, stages)) > len(frozenset().union(*stages)):
        return None
    return {rank: stages.index(own) for rank, own in layers.items()}


def _is_same(block: Block, other: Block) -> bool:
    names = ("step", "layer", "n_tokens", "experts")
    return all(np.array_equal(getattr(block, name), getattr(other, name)) for name in names)

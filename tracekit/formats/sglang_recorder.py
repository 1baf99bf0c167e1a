"""Files of SGLang's expert distribution recorder in its mode ``per_token``.

In: one file of ``/dump_expert_distribution_record`` for each rank, or several of one run. Out: the run
with its true passes. Experts are recorded as the physical ones, copies of hot experts counted apart;
the file's map makes them the model's own.

Each record is a forward pass. Where every pass has tokens of one request, requests are turns and steps
are positions. Where passes mix requests, a trace cannot have both the passes and the requests: the
passes are kept, the run is one turn, and its steps count tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np

from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source
from tracekit.formats.tokens import Tokens, routings_of
from tracekit.formats.torch_files import Read, Tensor, TorchFile
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings
from tracekit.trace.schema import DECODE, PREFILL

RECORDS, MAP, TOPK = "records", "last_physical_to_logical_map", "topk_ids_of_layer"
EXTEND, DECODED, MIXED, IDLE, VERIFY = 1, 2, 3, 4, 5
_PHASES = {EXTEND: PREFILL, DECODED: DECODE, MIXED: PREFILL, VERIFY: DECODE}
MIXED_TURNS = (
    "passes hold tokens of several requests: the run is one turn whose steps count tokens, so what "
    "compares a token with the one before compares different requests"
)
BLOCK_SLOTS = 1 << 20
_MOST_TIMES_READ = 4


@register
class SglangRecorder(Format):
    """Reader of SGLang's expert distribution records of single tokens."""

    name = "sglang-recorder"
    summary = "expert_distribution_recorder_*.pt of an SGLang server in its mode per_token"
    told_by = f"a file of torch.save with {RECORDS} that have {TOPK}"
    lacks = "weights, the order of slots, sizes"

    def recognises(self, given: Given) -> bool:
        """Say whether every file holds records of single tokens, or of no pass at all."""
        found = [_records(file) for file in given.files]
        are_records = all(each is not None and all(map(_is_per_token, each[:1])) for each in found)
        return are_records and any(found)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the records of all files, those of one pass together."""
        source = Source(given.name, ())
        run = _Run(given, source, options)
        source.chunks = run.chunks()
        return source


def _records(file: File) -> list[object] | None:
    """Return the records of a recorder's file; None of another file."""
    if file.torch is None or not isinstance(file.torch.value, dict):
        return None
    records = file.torch.value.get(RECORDS)
    return records if isinstance(records, list) else None


def _is_per_token(record: object) -> bool:
    return isinstance(record, dict) and TOPK in record


@dataclass(frozen=True)
class _Record:
    """One forward pass on one rank.

    Attributes
    ----------
    place : str
    file : int
        Which file holds it.
    rank, number, mode : int
        `number` is the file's forward_pass_id.
    tensor : Tensor
        Physical experts [layers, tokens, slots].
    tokens, positions : list of int
    n_extended : int
        Requests that a pass extends, as far as it says so.
    """

    place: str
    file: int
    rank: int
    number: int
    mode: int
    tensor: Tensor
    tokens: list[int]
    positions: list[int]
    n_extended: int

    @cached_property
    def n_requests(self) -> int:
        """How many requests have tokens in it, as far as positions show."""
        if self.mode == DECODED:
            return len(self.positions)
        breaks = np.count_nonzero(np.diff(self.positions) != 1) if self.positions else 0
        return max(int(breaks) + 1, self.n_extended)

    def is_same(self, other: "_Record") -> bool:
        """Say whether another rank computed the same tokens."""
        return self.positions == other.positions and self.tokens == other.tokens


def _record(path: Path, file: int, number: int, given: object) -> _Record:
    place = f"{path}, record {number}"
    if not isinstance(given, dict) or not isinstance(given.get(TOPK), Tensor):
        raise TraceError(f"{place} has no tensor {TOPK}; record it again in the mode per_token.")
    tensor = given[TOPK]
    if len(tensor.shape) != 3 or not tensor.is_integer or 0 in tensor.shape[::2]:
        raise TraceError(
            f"{place}: {TOPK} has the shape {tensor.shape} of {tensor.kind} values, where whole "
            "numbers [layers, tokens, slots] are due; record it again."
        )
    numbers = {}
    for key in ("rank", "forward_pass_id", "forward_mode"):
        value = given.get(key, 0 if key == "rank" else None)
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise TraceError(f"{place}: {key} is {str(value)[:40]!r} and no number; record again.")
        numbers[key] = value
    n_tokens = tensor.shape[1]
    lists: dict[str, list[int]] = {}
    for key in ("input_ids", "positions"):
        values = given.get(key)
        if not isinstance(values, list) or len(values) != n_tokens or not _are_numbers(values):
            raise TraceError(
                f"{place}: {key} is no list of {n_tokens} numbers, one for each token; record again."
            )
        lists[key] = values
    lengths = given.get("extend_seq_lens")
    mode = numbers["forward_mode"]
    if mode not in (*_PHASES, IDLE):
        raise TraceError(
            f"{place} has the forward_mode {mode}, which is not known here (1 extend, 2 decode, 3 "
            "mixed, 4 idle, 5 verify); record without drafting by another model."
        )
    return _Record(
        place,
        file,
        numbers["rank"],
        numbers["forward_pass_id"],
        mode,
        tensor,
        lists["input_ids"],
        lists["positions"],
        len(lengths) if isinstance(lengths, list) else 1,
    )


def _are_numbers(values: Sequence[object]) -> bool:
    return all(type(value) is int and 0 <= value < 1 << 31 for value in values)


class _Run:
    """The passes of all files."""

    def __init__(self, given: Given, source: Source, options: ImportOptions):
        self._name = given.name
        self._source = source
        self._files: list[TorchFile] = []
        for file in given.files:
            if file.torch is None:
                raise TraceError(f"{file.path} is no file of torch.save; copy it again.")
            self._files.append(file.torch)
        self._passes = self._grouped()
        self._k = options.given_top_k
        # Ranks that only repeat what others recorded; found out when the first pass is read.
        self._skipped: set[int] = set()
        self._is_mixed = any(_n_requests(records) != 1 for records in self._passes)
        self._follows_positions()
        if self._is_mixed:
            source.inferred["turns"] = MIXED_TURNS

    def _follows_positions(self) -> None:
        """Take passes as mixed whose tokens do not follow each other, as in a tree of drafts."""
        for records in self._passes:
            positions = records[0].positions
            if positions and positions[-1] - positions[0] != len(positions) - 1:
                self._is_mixed = True

    def _grouped(self) -> list[list[_Record]]:
        """Return the records of each pass, of one rank after the other."""
        passes: dict[int, dict[int, _Record]] = {}
        for at, file in enumerate(self._files):
            value = file.value
            records = value.get(RECORDS) if isinstance(value, dict) else None
            if not isinstance(records, list):
                raise TraceError(f"{file.path} has no list of {RECORDS}; record it again.")
            _check_claims(file, records)
            for number, each in enumerate(records):
                record = _record(file.path, at, number, each)
                of_pass = passes.setdefault(record.number, {})
                if record.rank in of_pass:
                    raise TraceError(
                        f"{record.place}: pass {record.number} of rank {record.rank} is in "
                        f"{of_pass[record.rank].place} too; import the files of one recording."
                    )
                of_pass[record.rank] = record
        grouped = [[ranks[rank] for rank in sorted(ranks)] for _, ranks in sorted(passes.items())]
        busy = ([r for r in records if r.mode != IDLE and r.positions] for records in grouped)
        return [records for records in busy if records]

    # ---- experts ---------------------------------------------------------------------------

    def chunks(self) -> Iterator[Routings]:
        places = _places(self._passes, self._is_mixed)
        with ExitStack() as stack:
            reads = [stack.enter_context(file.reading()) for file in self._files]
            maps = [self._map(file, read) for file, read in zip(self._files, reads, strict=True)]
            self._source.model["n_expert"] = max(int(each.max(initial=0)) + 1 for each in maps)
            self._source.model["n_layer"] = len(maps[0])
            grids: list[np.ndarray] = []
            tokens: list[Tokens] = []
            n_slots = n_tokens = 0
            for records, place in zip(self._passes, places, strict=True):
                grid = self._pass(records, reads, maps)
                routed = np.logical_or.reduce(grid >= 0, axis=(1, 2))
                if not routed.all():  # rows that only fill up a batch
                    grid, place = grid[routed], _taken(place, routed)
                if self._is_mixed:
                    place = replace(place, step=n_tokens + np.arange(len(grid)))
                grids.append(grid)
                tokens.append(place)
                n_slots += grid.size
                n_tokens += len(grid)
                if n_slots >= BLOCK_SLOTS:
                    yield self._routings(tokens, grids)
                    grids, tokens, n_slots = [], [], 0
            if grids:
                yield self._routings(tokens, grids)

    def _routings(self, tokens: Sequence[Tokens], grids: Sequence[np.ndarray]) -> Routings:
        experts = np.concatenate(grids)
        joined = Tokens(
            *(
                np.concatenate([getattr(each, name) for each in tokens])
                for name in ("turn", "passes", "phase", "step", "token")
            )
        )
        return routings_of(joined, np.arange(experts.shape[1]), experts, name=self._name)

    def _map(self, file: TorchFile, read: Read) -> np.ndarray:
        """Return the logical expert of each physical one, [layers, physical]."""
        tensor = file.value.get(MAP)
        if not isinstance(tensor, Tensor) or len(tensor.shape) != 2 or not tensor.is_integer:
            raise TraceError(
                f"{file.path} has no {MAP} [layers, experts], without which its physical experts are "
                "not those of the model; record it again."
            )
        values = read(tensor)
        if values.size and not (values.min() >= 0 and values.max() < 1 << 16):
            raise TraceError(f"{file.path}: {MAP} names experts that no model has; record again.")
        return values.astype(np.int32)

    def _pass(
        self, records: Sequence[_Record], reads: Sequence[Read], maps: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return the logical experts of a pass [tokens, layers, k], -1 where a layer has none."""
        parts: list[tuple[_Record, np.ndarray]] = []
        for record in records:
            known = next((at for at, (r, _) in enumerate(parts) if r.is_same(record)), None)
            if known is not None and record.rank in self._skipped:
                continue
            grid = self._logical(record, reads[record.file](record.tensor), maps[record.file])
            if known is None:
                parts.append((record, grid))
                continue
            # Ranks that hold other layers of the same tokens complete each other.
            before = parts[known][1]
            if before.shape != grid.shape:
                raise TraceError(
                    f"{record.place} has another number of layers than rank {parts[known][0].rank}; "
                    "import the files of one recording."
                )
            lacks = before < 0
            if not (grid[lacks] >= 0).any():
                self._skipped.add(record.rank)
                continue
            parts[known] = parts[known][0], np.where(lacks, grid, before)
        return np.concatenate([grid for _, grid in parts])

    def _logical(self, record: _Record, physical: np.ndarray, to_logical: np.ndarray) -> np.ndarray:
        n_layers, n_physical = to_logical.shape
        if physical.shape[0] != n_layers:
            raise TraceError(
                f"{record.place}: {TOPK} has {physical.shape[0]} layers, but {MAP} has {n_layers}; "
                "import the files of one recording."
            )
        if self._k is None:
            used = np.flatnonzero((physical >= 0).any(axis=(0, 1)))
            self._k = int(used[-1]) + 1 if len(used) else None
        k = physical.shape[2] if self._k is None else self._k
        if k > physical.shape[2] or (physical[:, :, k:] >= 0).any() or physical.max() >= n_physical:
            raise TraceError(
                f"{record.place}: {TOPK} goes up to expert {physical.max()} in {physical.shape[2]} "
                f"slots, where {n_physical} experts and {k} slots are known; record it again, or "
                "correct --top-k."
            )
        flat = physical[:, :, :k].reshape(n_layers, -1)
        logical = np.take_along_axis(to_logical, np.maximum(flat, 0), axis=1)
        grid = np.where(flat < 0, np.int32(-1), logical).reshape(n_layers, -1, k)
        return grid.transpose(1, 0, 2)


def _check_claims(file: TorchFile, records: Sequence[object]) -> None:
    """Refuse records that share tensors so often that they claim far more than the file has."""
    tensors = [each.get(TOPK) for each in records if isinstance(each, dict)]
    claimed = sum(prod(tensor.shape) for tensor in tensors if isinstance(tensor, Tensor))
    if claimed > _MOST_TIMES_READ * file.size:
        raise TraceError(
            f"{file.path}: its records claim {claimed} experts, which a file of {file.size} bytes "
            "does not hold; record it again."
        )


def _n_requests(records: Sequence[_Record]) -> int:
    """Return how many requests a pass has over all ranks that computed other tokens."""
    different: list[_Record] = []
    for record in records:
        if not any(record.is_same(other) for other in different):
            different.append(record)
    return sum(record.n_requests for record in different)


def _places(passes: Sequence[Sequence[_Record]], is_mixed: bool) -> Iterator[Tokens]:
    """Yield where the tokens of each pass stand in the run."""
    return _mixed_places(passes) if is_mixed else _positions(passes)


def _mixed_places(passes: Sequence[Sequence[_Record]]) -> Iterator[Tokens]:
    for number, records in enumerate(passes):
        different: list[_Record] = []
        for record in records:
            if not any(record.is_same(other) for other in different):
                different.append(record)
        tokens = [token for record in different for token in record.tokens]
        phases = {_PHASES[record.mode] for record in different}
        # A pass that extends a prompt is one of a prefill, though others are decoded with it.
        phase = PREFILL if PREFILL in phases else DECODE
        yield _tokens(0, number, phase, np.arange(len(tokens)), tokens)


def _positions(passes: Sequence[Sequence[_Record]]) -> Iterator[Tokens]:
    turn, last, phase = -1, -1, DECODE
    for number, (record, *_) in enumerate(passes):
        before, phase = phase, _PHASES[record.mode]
        first = record.positions[0]
        # A prompt goes on in chunks; drafted tokens that were rejected come again.
        goes_on = first == last + 1 if phase == PREFILL else first <= last + 1
        if turn < 0 or not goes_on or (phase == PREFILL and before == DECODE):
            turn += 1
        last = record.positions[-1]
        yield _tokens(turn, number, phase, np.array(record.positions), record.tokens)


def _taken(tokens: Tokens, rows: np.ndarray) -> Tokens:
    token = None if tokens.token is None else tokens.token[rows]
    turn, passes, phase, step = tokens.turn, tokens.passes, tokens.phase, tokens.step
    return Tokens(turn[rows], passes[rows], phase[rows], step[rows], token)


def _tokens(turn: int, number: int, phase: int, steps: np.ndarray, tokens: Sequence[int]) -> Tokens:
    n_tokens = len(steps)
    return Tokens(
        np.full(n_tokens, turn),
        np.full(n_tokens, number),
        np.full(n_tokens, phase),
        steps,
        np.array(tokens, np.int64),
    )

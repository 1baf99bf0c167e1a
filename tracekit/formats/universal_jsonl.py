"""JSON lines with a routing, or one selected expert, in each: what a few lines of Python write.

In: a file with an object in each line whose keys are called as `names.ALIASES` has it; the first line may
describe the model. Out: the run, piece by piece.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from tracekit.ahead import each_ahead
from tracekit.formats.archives import damaged
from tracekit.formats.format import Format, register
from tracekit.formats.from_arrow import ArrowRows
from tracekit.formats.given import File, Given
from tracekit.formats.graph_order import with_tokens
from tracekit.formats.grouping import Rows
from tracekit.formats.lines import Lines, json_object
from tracekit.formats.names import OF_SLOTS, WORDS, Named, named, slot_order
from tracekit.formats.options import ImportOptions
from tracekit.formats.row_files import RowFile, read_in_order
from tracekit.formats.source import Source, one_after_another
from tracekit.formats.turns import Labels
from tracekit.trace import TraceError

REQUIRED = ("layer", "experts")
# Keys of a first line that describes the model.
MODEL_KEYS = {
    "n_expert": ("n_expert", "num_experts", "n_experts", "num_local_experts", "n_routed_experts"),
    "n_layer": ("n_layer", "num_layers", "num_hidden_layers", "n_layers"),
    "top_k": ("top_k", "experts_per_token", "num_experts_per_tok", "topk", "k"),
    "name": ("model", "model_id", "model_name", "name"),
    "arch": ("arch", "architecture", "model_type"),
}
# Lines of other types stand between those of the routings in some files.
RECORD_TYPE = "record_type"
# An object of one line must fit into what is parsed at once.
BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class _Start:
    """What the first lines of a file show.

    Attributes
    ----------
    row : dict
        The first object with a routing.
    names : Named
        Its keys.
    skipped : int
        Bytes of the lines before it.
    model : dict
        What they say of the model.
    expert_bytes : int or None
    """

    row: Mapping[str, Any]
    names: Named
    skipped: int
    model: dict[str, Any]
    expert_bytes: int | None


@register
class UniversalJsonl(Format):
    """Reader of JSON lines with a routing in each: token, layer, experts, and what else is known."""

    name = "jsonl"
    summary = "an object in each line: token, layer, experts (a list), and what else is known"
    told_by = "a first line, or a second, that is an object with a layer and its experts"
    lacks = "what it has no keys for"
    is_universal = True

    def recognises(self, given: Given) -> bool:
        """Say whether the first lines are objects, one of them with a layer and experts."""
        return bool(given.files) and all(_start(file.first_lines) for file in given.files)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; lines of the same prompt follow each other, in one file or in several."""
        sources = read_in_order([_rows(file, options) for file in given.files], options)
        return one_after_another(given.name, sources)


def _start(lines: bytes) -> _Start | None:
    """Return what the first two objects show, or None if neither is of a routing."""
    skipped = 0
    model: dict[str, Any] = {}
    size = None
    for line in lines.splitlines(keepends=True):
        row = json_object(line)
        if row is None:
            return None
        names = named([key for key, value in row.items() if _is_value(value)])
        if not names.missing(REQUIRED):
            model = {**_model(row, ("name",)), **model}
            return _Start(row, names, skipped, model, size)
        skipped += len(line)
        model = _model(row, tuple(MODEL_KEYS))
        size = row.get("expert_bytes")
        size = size if isinstance(size, int) and not isinstance(size, bool) else None
    return None


def _is_value(value: Any) -> bool:
    """Say whether a value is one that a row can have: a number, a text, or a list of numbers."""
    if isinstance(value, list):
        return all(isinstance(each, (int, float)) for each in value)
    return value is None or isinstance(value, (int, float, str))


def first_object(lines: bytes) -> dict[str, Any] | None:
    """Return the object of the first line, None if it is none."""
    first = lines.splitlines()[:1]
    return json_object(first[0]) if first else None


def _model(row: Mapping[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in wanted:
        kind = str if name in ("name", "arch") else int
        values = (row.get(key) for key in MODEL_KEYS[name])
        known = [v for v in values if isinstance(v, kind) and not isinstance(v, bool)]
        if known:
            found[name] = known[0]
    return found


def _rows(file: File, options: ImportOptions) -> RowFile:
    start = _start(file.first_lines)
    if start is None:
        raise TraceError(
            f"{file.path} does not begin with an object that has a layer and experts; write one in "
            "each line."
        )
    lines = Lines(file.path, start.skipped)
    source = Source(
        str(file.path),
        (),
        model=start.model,
        expert_bytes=start.expert_bytes,
        slot_order=slot_order(start.names),
    )
    arrow = ArrowRows(str(file.path), start.names, lines.place)
    objects = _Objects(lines, start, source)
    rows: Iterator[Rows] = (arrow.rows(table) for table in objects.tables())
    labels = arrow.labels
    if "token" not in start.names:
        labels = Labels()
        top_k = options.given_top_k or start.model.get("top_k") or _top_k(start)
        rows = with_tokens(rows, top_k, source, lines.place)
    return RowFile(source, rows, labels, lines.place)


def _top_k(start: _Start) -> int:
    experts = start.row[start.names["experts"]]
    return len(experts) if isinstance(experts, list) else 1


class _Objects:
    """The objects of a file as tables of their known keys."""

    def __init__(self, lines: Lines, start: _Start, source: Source):
        self._lines = lines
        self._source = source
        self._schema = _schema(start)
        self._filter = RECORD_TYPE if isinstance(start.row.get(RECORD_TYPE), str) else None
        self._wanted = start.row.get(RECORD_TYPE)
        if self._filter is not None:
            self._schema = self._schema.append(pa.field(RECORD_TYPE, pa.string()))

    def tables(self) -> Iterator[pa.Table]:
        """Yield tables of the lines, piece by piece; tell the source if the last line is cut.

        Raises
        ------
        TraceError
            A line is no object with these keys; the sentence names it.
        """
        n_rows = 0
        lines = self._lines.whole(lambda line: json_object(line) is not None, self._source.cut)
        for piece, table in each_ahead(self._read, lines):
            if table is None:
                table = self._line_by_line(piece, n_rows)
            n_rows += table.num_rows
            with damaged(str(self._lines.path)):
                table = self._routings(table)
            yield table

    def _read(self, piece: bytes) -> tuple[bytes, pa.Table | None]:
        """Return a piece with its table, or with None if Arrow refuses a line of it."""
        try:
            return piece, arrow_json.read_json(
                pa.BufferReader(pa.py_buffer(piece)),
                arrow_json.ReadOptions(block_size=min(BLOCK_BYTES, len(piece) + 1)),
                arrow_json.ParseOptions(
                    explicit_schema=self._schema, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowException:
            return piece, None

    def _routings(self, table: pa.Table) -> pa.Table:
        """Return the rows of routings, where lines of other types stand between them."""
        if self._filter is None:
            return table
        types = table[RECORD_TYPE].to_pylist()
        return table.filter(pa.array([each == self._wanted for each in types], pa.bool_()))

    def _line_by_line(self, piece: bytes, n_rows: int) -> pa.Table:
        """Parse lines that Arrow does not; a line that is none is named."""
        rows = []
        for number, line in enumerate((li for li in piece.splitlines() if li.strip()), n_rows):
            row = json_object(line)
            if row is None:
                raise TraceError(
                    f"{self._lines.place(number)} is no JSON object; repair the line or record "
                    "again."
                )
            try:
                rows.append(self._checked(row))
            except (TypeError, ValueError, OverflowError) as error:
                raise TraceError(
                    f"{self._lines.place(number)}: {error}; correct the line or record again."
                ) from error
        return pa.Table.from_pylist(rows, self._schema)

    def _checked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the schema; a ValueError names one that is of another type."""
        values = {}
        for each in self._schema:
            value = row.get(each.name)
            try:
                values[each.name] = pa.scalar(value, each.type).as_py()
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                shown = json.dumps(value)[:40]
                due = _in_words(each.type)
                raise ValueError(f"{each.name} is {shown}, where {due} is due") from error
        return values


def _in_words(kind: pa.DataType) -> str:
    """Return what a value of a type is, for sentences."""
    if pa.types.is_list(kind):
        return f"a list of {_in_words(kind.value_type).removeprefix('a ')}s"
    if pa.types.is_string(kind):
        return "a text"
    if pa.types.is_boolean(kind):
        return "a truth value"
    return "a whole number" if pa.types.is_integer(kind) else "a number"


def _schema(start: _Start) -> pa.Schema:
    """Return the types of the known keys, as the first routing has them."""
    fields = []
    for name, key in start.names.found.items():
        value = start.row[key]
        if (
            value is None
            and name in OF_SLOTS
            and isinstance(start.row[start.names["experts"]], list)
        ):
            value = []  # one for each expert, where another row has them
        if name == "prompt" or name in WORDS:
            kind = _kind(value)
        elif name == "weights":
            kind = pa.float32()
        else:
            kind = pa.int64()
        fields.append(pa.field(key, pa.list_(kind) if isinstance(value, list) else kind))
    return pa.schema(fields)


def _kind(value: Any) -> pa.DataType:
    """Return the type of a value, or of the elements of a list, that may be a word."""
    if isinstance(value, list):
        value = value[0] if value else 0
    if isinstance(value, bool):
        return pa.bool_()
    return pa.int64() if isinstance(value, int) else pa.string()

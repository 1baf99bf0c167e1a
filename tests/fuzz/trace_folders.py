"""Trace folders: what is read must be what pyarrow and the json module find in the files."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import ChangedError, refusal
from questions import ask_everything
from trace_recorder import record, writer_for

from tracekit.trace import Trace, TracekitError, synthesize, write_trace
from tracekit.trace.file_rows import FileRows

FILES = ("routing.parquet", "steps.parquet", "layers.parquet")
ODD_TYPES = (
    pa.int64(), pa.string(), pa.float64(), pa.list_(pa.int8()), pa.bool_(), pa.binary(3), pa.timestamp("s"),
    pa.list_(pa.list_(pa.int8())), pa.struct([("a", pa.int8())]), pa.list_(pa.float32(), 7), pa.large_string(),
)  # fmt: skip
ODD_FACTS: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, "", "softmax", "\0", [], [1], {}, {"a": {}},
)  # fmt: skip

Content = dict[str, bytes]


def _folder(path: Path) -> Content:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def bases(folder: Path) -> list[Content]:
    """Return traces: with logits and gate inputs, plain ones, one of three parts."""
    found = []
    for number, more in enumerate(
        (
            {"logits": True, "gate_inputs": True, "n_embd": 4, "dense_layers": 1},
            {"n_turns": 3, "prefill": 2},
            {"n_layer": 1, "n_expert": 300, "top_k": 1},
        )
    ):
        path = folder / f"{number}.trace"
        write_trace(synthesize(**{"n_layer": 3, "n_expert": 8, "n_tokens": 12, **more}), path)
        found.append(_folder(path))
    path = folder / "parts.trace"
    writer = writer_for(path, flush_ms=0, part_bytes=1, threaded=False)
    writer.write_layers([{"layer": n, "expert_bytes": 1000} for n in range(3)])
    record(writer, 0, 4)
    writer.close(complete=False)
    found.append(_folder(path))
    return found


def plain(path: Path, trace: Trace) -> dict[str, pa.Table]:
    """Read the tables of a trace once more; of an incomplete one the parts that were kept."""
    tables = {}
    for file in FILES:
        rows = trace.rows(file)
        paths = [file.path for file in rows._files] if isinstance(rows, FileRows) else []
        if trace.complete:
            paths = [path / file]
        found = [_readable(each) for each in paths if each.exists()]
        if found:
            tables[file] = pa.concat_tables(found)
    return tables


def _readable(path: Path) -> pa.Table:
    """Return the columns of a file that pyarrow can read.

    One of the arrays of a layer that has none may be damaged: nobody asks for it.
    """
    file = pq.ParquetFile(path)
    columns = {}
    for name in file.schema_arrow.names:
        try:
            columns[name] = file.read([name])[name]
        except (pa.ArrowException, OSError):
            if path.name != "layers.parquet":
                raise
    return pa.table(columns)


def compare(path: Path, trace: Trace) -> None:
    """Compare a trace with its files.

    Raises
    ------
    ChangedError
    """
    said = json.loads((path / "trace.json").read_bytes().decode("utf-8-sig"))
    for part, facts in (
        ("model", trace.facts.model),
        ("engine", trace.facts.engine),
        ("digest", trace.facts.digest),
        (None, trace.facts),
    ):
        given = said if part is None else said.get(part)
        for name, value in (given or {}).items():
            if name in ("schema", "model", "engine", "digest") or not hasattr(facts, name):
                continue
            if getattr(facts, name) != value or isinstance(value, bool) != isinstance(
                getattr(facts, name), bool
            ):
                raise ChangedError(f"{name} is {getattr(facts, name)!r}, {value!r} stands there")
    for file, table in plain(path, trace).items():
        rows = trace.rows(file)
        if trace.complete and rows.n_rows != table.num_rows:
            raise ChangedError(f"{file} has {table.num_rows} rows, {rows.n_rows} were read")
        for name in table.column_names:
            found, there = rows.read([name])[name], table[name].slice(0, rows.n_rows)
            if repr(found.to_pylist()) != repr(there.to_pylist()):
                raise ChangedError(
                    f"{file}: the column {name} was read otherwise than it stands there"
                )


class TraceFolders:
    """Damages small traces."""

    name = "trace folders"

    def __init__(self, folder: Path):
        self._path = folder / "x.trace"
        self._bases = bases(folder)
        for content in self._bases:  # compiles what is asked
            self._write(content)
            ask_everything(Trace.open(self._path))

    def check(self, rng: random.Random) -> str:
        self._write(rng.choice(self._bases))
        self._damage(rng)
        try:
            trace = Trace.open(self._path)
            _read_all(trace)
        except TracekitError as error:
            return refusal(error)
        compare(self._path, trace)
        if rng.random() < 0.05:
            ask_everything(trace)
        return "read" if trace.complete else "warned"

    def _write(self, content: Content) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir()
        for name, data in content.items():
            (self._path / name).write_bytes(data)

    def _damage(self, rng: random.Random) -> None:
        file = self._path / rng.choice(sorted(each.name for each in self._path.iterdir()))
        kind = rng.randrange(8)
        if file.name == "trace.json" and kind < 6:
            _damage_facts(file, rng)
        elif kind == 0 or file.name == "trace.json":
            file.write_bytes(damage.damaged_bytes(file.read_bytes(), rng))
        elif kind == 1:  # the footer, which has no checksum
            data = bytearray(file.read_bytes())
            footer = int.from_bytes(data[-8:-4], "little") + 8
            for _ in range(rng.choice((1, 1, 3))):
                at = len(data) - rng.randrange(1, footer + 1)
                data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
            file.write_bytes(data)
        elif kind in (2, 3, 4):
            _damage_table(file, rng)
        elif kind == 5:
            _damage_columns(file, rng)
        else:
            self._damage_files(file, rng)

    def _damage_files(self, file: Path, rng: random.Random) -> None:
        other = self._path / rng.choice(sorted(each.name for each in self._path.iterdir()))
        kind = rng.randrange(6)
        if kind == 0:
            file.unlink()
        elif kind == 1:
            shutil.copyfile(file, self._path / "routing-00007.parquet")
        elif kind == 2 and other != file:
            shutil.copyfile(other, file)
        elif kind == 3:
            file.write_bytes(b"")
        elif kind == 4:
            file.unlink()
            file.mkdir()
        else:
            file.rename(
                self._path
                / rng.choice(("steps-00001.parquet", "x", "layers.parquet", "trace.json"))
            )


def _read_all(trace: Trace) -> None:
    """Read every column and array, as a user may: what is large is checked as it is read."""
    trace.routing(trace.rows("routing.parquet").schema.names)
    trace.steps(trace.rows("steps.parquet").schema.names)
    for layer in trace.moe_layers.tolist():
        for name in ("router_matrix", "router_bias", "selection_bias", "norm_weight"):
            trace.layer_array(layer, name)


def _damage_facts(file: Path, rng: random.Random) -> None:
    text = file.read_text()
    kind = rng.randrange(4)
    if kind == 0:
        file.write_bytes(damage.damaged_numbers(text, rng).encode("utf-8", "surrogatepass"))
        return
    if kind == 1:
        nested = rng.choice(
            ("[" * 99_999, '{"a":' * 50_000, "NaN", "Infinity", "-Infinity", "1e999", "9" * 5000)
        )
        at = rng.choice([i for i, c in enumerate(text) if c in ",:[{"]) + 1
        file.write_text(text[:at] + nested + text[at:])
        return
    facts = json.loads(text)
    where = rng.choice([facts, facts["model"], *([facts["engine"]] if facts.get("engine") else [])])
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(where))
        if rng.random() < 0.2:
            where.pop(name, None)
        else:
            where[name] = rng.choice((*ODD_FACTS, rng.choice(damage.TEXTS)))
        if not where:
            break
    file.write_text(json.dumps(facts))


def _damage_table(file: Path, rng: random.Random) -> None:
    """Change a value, or rows."""
    table = pq.read_table(file)
    if not table.num_rows:
        return
    at = rng.randrange(table.num_rows)
    kind = rng.randrange(5)
    order = np.arange(table.num_rows)
    if kind == 0:
        table = table.take(pa.array(np.delete(order, at)))
    elif kind == 1:
        table = table.take(pa.array(np.insert(order, at, order[rng.randrange(len(order))])))
    elif kind == 2:
        other = rng.randrange(table.num_rows)
        order[[at, other]] = order[[other, at]]
        table = table.take(pa.array(order))
    else:
        name = rng.choice(table.schema.names)
        values = table[name].to_pylist()
        values[at] = _other_value(values[at], table.schema.field(name).type, rng)
        index = table.schema.get_field_index(name)
        field = table.schema.field(name).with_nullable(True)
        table = table.set_column(index, field, pa.array(values, field.type))
    pq.write_table(table, file, row_group_size=rng.choice((3, 1 << 20)))


def _other_value(value: Any, kind: pa.DataType, rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return None
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        width = kind.list_size if pa.types.is_fixed_size_list(kind) else len(value or [])
        values = list(value or [0] * width)
        if values:
            values[rng.randrange(len(values))] = _other_value(values[0], kind.value_type, rng)
        return values
    if pa.types.is_binary(kind):
        return rng.choice((b"", b"\0", b"\xff", b"x" * 10_000))
    if pa.types.is_boolean(kind):
        return not value
    if pa.types.is_floating(kind):
        return rng.choice(
            (0.0, -0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), -float("inf"), 0.3)
        )
    limits = np.iinfo(kind.to_pandas_dtype())
    number = rng.choice(
        (0, 1, 2, 3, 7, 8, 255, limits.max, limits.min, limits.max - 1, (value or 0) + 1, -1)
    )
    return int(np.clip(number, limits.min, limits.max))


def _damage_columns(file: Path, rng: random.Random) -> None:
    table = pq.read_table(file)
    name = rng.choice(table.schema.names)
    index = table.schema.get_field_index(name)
    kind = rng.randrange(4)
    if kind == 0:
        table = table.drop_columns([name])
    elif kind == 1:
        table = table.rename_columns([f"{n}2" if n == name else n for n in table.schema.names])
    elif kind == 2:
        table = table.set_column(index, name, pa.nulls(table.num_rows, rng.choice(ODD_TYPES)))
    else:
        table = table.append_column("of_mine", pa.nulls(table.num_rows, rng.choice(ODD_TYPES)))
    pq.write_table(table, file)

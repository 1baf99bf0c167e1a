"""The ``# route_trace v1`` CSV of the BigMoeOnEdge engine: one row per routed expert.

In: the path of a file. Out: a trace in memory.

A preamble of ``# key=value`` lines gives the model and each layer's sizes; a header names the
columns; then come the rows, `n_expert_used` of them for each routing, in slot order. The columns are
identified by name: `dropped` was added later, and others may follow. A weight of ``nan`` is unknown.
Where passes begin follows from the order of the rows; see `passes_in_order`.
"""

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tracekit.formats.base import read_bytes
from tracekit.formats.format import Format, register
from tracekit.formats.given import Given
from tracekit.formats.options import ImportOptions
from tracekit.formats.passes_in_order import number_passes, steps_within_passes
from tracekit.formats.route_trace_preamble import MAGIC, Preamble, parse_preamble
from tracekit.formats.source import Source, one_after_another
from tracekit.trace import TraceError
from tracekit.trace.checks import Arrays
from tracekit.trace.chunks import Routings
from tracekit.trace.columns import numpy_type, to_numpy
from tracekit.trace.schema import DECODE

PLACE = ("turn", "phase", "step", "layer")
REQUIRED = {
    "turn": pa.int32(),
    "phase": pa.uint8(),
    "step": pa.int32(),
    "layer": pa.int16(),
    "slot": pa.uint16(),
    "expert": pa.uint16(),
}
TYPES = {
    **REQUIRED,
    "weight": pa.float32(),
    "residency": pa.uint8(),
    "dropped": pa.uint8(),
    "expert_bytes": pa.int64(),
}
UNKNOWN = ("nan", "-nan", "NaN")
LISTS = {"experts": "expert", "weights": "weight", "residency": "residency", "dropped": "dropped"}

# Below this share of routings with another number of experts, rows were lost.
_LEAST_SHARE = 0.02

LINE = re.compile(rb"[^\r\n]+")
BREAK = re.compile(rb"\r\n|\r|\n")
WHOLE = re.compile(rb"[ \t]*[0-9]{1,18}[ \t]*")
NUMBER = re.compile(rb"[ \t]*[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*")


@register
class RouteTraceCsv(Format):
    """Reader of ``# route_trace v1`` files."""

    name = "route_trace"
    summary = "the route trace CSV of BigMoeOnEdge"
    told_by = "its first line, `# route_trace v1`, or its header"
    lacks = "where passes begin, but for what the order of its rows shows"
    is_read_whole = True

    def sniff(self, head: bytes) -> bool:
        """Say whether a file begins as a route trace does, or with its header alone."""
        head = head.lstrip()
        return head.startswith((MAGIC, b"turn,phase,step,layer"))

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; a cut one up to its last whole routing, with a warning.

        A file is read as a whole, since the order of all its rows shows where passes begin.
        """
        return one_after_another(given.name, [_read(file.path) for file in given.files])


def _read(path: Path) -> Source:
    data = read_bytes(path)
    header = next((m for m in LINE.finditer(data) if not m[0].startswith(b"#")), None)
    before = BREAK.split(data[: header.start()] if header else data)
    preamble = parse_preamble(before, str(path))
    if header is None:
        raise TraceError(f"{path} holds a preamble but no routings; record it again.")
    rows = _Rows(str(path), data, header, len(before), _sizes(preamble))
    return _source(rows, preamble)


class _Rows:
    """The rows of a file as text: their columns, and the line on which each stands.

    Parameters
    ----------
    path : str
    data : bytes
        The whole file.
    header : re.Match
        The header in `data`.
    header_line : int
        Its line, from 1.
    sizes : int64 [n_layer]
        The bytes of an expert of each layer, -1 where they are not known.

    Attributes
    ----------
    is_cut : bool
        The last line of the file is not complete; it is left out.

    Raises
    ------
    TraceError
        The header lacks a column, or names one twice.
    """

    def __init__(
        self,
        path: str,
        data: bytes,
        header: re.Match[bytes],
        header_line: int,
        sizes: np.ndarray,
    ):
        self.path = path
        self.sizes = sizes
        self.columns = [name.strip().decode("utf-8", "replace") for name in header[0].split(b",")]
        missing = [name for name in REQUIRED if name not in self.columns]
        if missing or len(set(self.columns)) < len(self.columns):
            fault = f"lacks {', '.join(missing)}" if missing else "names a column twice"
            raise TraceError(
                f"{path}, line {header_line}: the header {fault}; it begins "
                "'turn,phase,step,layer,slot,expert'."
            )
        self._data = data
        self._header_line = header_line
        self._start = header.end()
        last = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self.is_cut = last >= self._start and self._lacks_its_end(data[last:])
        self._end = last if self.is_cut else len(data)

    def _lacks_its_end(self, line: bytes) -> bool:
        """Say whether a line without a line break was cut: a field is missing, empty or wrong."""
        if not line or line.endswith(b",") or self._fault(line) is not None:
            return bool(line)
        fields = dict(zip(self.columns, line.split(b","), strict=True))
        read, layer = int(fields.get("expert_bytes", 0)), int(fields["layer"])
        known = int(self.sizes[layer]) if layer < len(self.sizes) else -1
        return read != 0 and known not in (-1, read)

    def parse(self) -> dict[str, np.ndarray]:
        """Return the known columns as numbers, an unknown weight as NaN.

        Raises
        ------
        TraceError
            A line is broken; the sentence names it.
        """
        body = memoryview(self._data)[self._start : self._end]
        types = {name: TYPES[name] for name in self.columns if name in TYPES}
        if LINE.search(body) is None:
            return {name: np.empty(0, numpy_type(t)) for name, t in types.items()}
        try:
            table = csv.read_csv(
                pa.BufferReader(pa.py_buffer(body)),
                # One thread: two take more time of the processors, and on a busy machine save none.
                csv.ReadOptions(column_names=self.columns, use_threads=False),
                csv.ParseOptions(quote_char=False),
                csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=list(UNKNOWN)
                ),
            )
        except pa.ArrowException as error:
            raise self._broken(str(error)) from error
        if any(table[name].null_count for name in table.column_names if name != "weight"):
            raise self._broken("a number is missing")
        self._refuse_hexadecimal()
        values = {name: to_numpy(table[name], np.nan) for name in table.column_names}
        unknown_step = (values["step"] == -1) & (values["phase"] != DECODE)
        never_negative = [name for name in ("turn", "layer", "expert_bytes") if name in values]
        if (values["step"][~unknown_step] < 0).any() or any(
            (values[name] < 0).any() for name in never_negative
        ):
            raise self._broken("a number is negative")
        return values

    def _refuse_hexadecimal(self) -> None:
        """Refuse ``0x10``, which Arrow reads as 16."""
        for mark in (b"0x", b"0X"):  # a regular expression takes longer than all else
            found = self._data.find(mark, self._start, self._end)
            while found >= 0:
                start = max(self._data.rfind(end, 0, found) for end in (b"\n", b"\r")) + 1
                line = LINE.match(self._data, start, self._end)
                if line is not None and self._fault(line[0]) is not None:
                    raise self._broken("a number is hexadecimal")
                found = self._data.find(mark, found + 1, self._end)

    def line(self, row: int) -> int:
        """Return the line on which row `row` stands; lines between rows may be empty."""
        text = next(islice(LINE.finditer(self._data, self._start), row, None))
        return self._line_at(text.start())

    def _line_at(self, position: int) -> int:
        breaks = sum(1 for _ in BREAK.finditer(self._data, self._start, position))
        return self._header_line + breaks

    def _broken(self, message: str) -> TraceError:
        """Return the error for the first broken line; `message` is what the parser said."""
        for text in LINE.finditer(self._data, self._start, self._end):
            fault = self._fault(text[0])
            if fault is not None:
                line = self._line_at(text.start())
                return TraceError(
                    f"{self.path}, line {line}{fault}; repair the line or record again."
                )
        message = message.partition("\n")[0][:200]
        return TraceError(f"{self.path} cannot be read as CSV: {message}; record it again.")

    def _fault(self, line: bytes) -> str | None:
        """Return the fault of a line, beginning with the comma or colon after its number."""
        fields = line.split(b",")
        if len(fields) != len(self.columns):
            return f": it has {len(fields)} fields where the header names {len(self.columns)}"
        for name, value in zip(self.columns, fields, strict=True):
            arrow_type = TYPES.get(name)
            if arrow_type is None:
                continue
            if name == "step" and value.strip() == b"-1" and self._is_prompt(fields):
                continue
            shown = value.decode("utf-8", "replace")[:40]
            if arrow_type == pa.float32():
                if value.strip().decode("utf-8", "replace") in UNKNOWN or NUMBER.fullmatch(value):
                    continue
                return f", column {name}: {shown!r} is neither a number nor nan"
            largest = np.iinfo(numpy_type(arrow_type)).max
            if not WHOLE.fullmatch(value) or int(value) > largest:
                return f", column {name}: {shown!r} is no whole number from 0 to {largest}"
        return None

    def _is_prompt(self, fields: list[bytes]) -> bool:
        return fields[self.columns.index("phase")].strip() == b"0"


def _source(rows: _Rows, preamble: Preamble) -> Source:
    k = preamble.facts.model.top_k
    values = rows.parse()
    n_whole = _whole_routings(rows, values, k)
    is_cut = rows.is_cut or n_whole * k < len(values["slot"])
    if n_whole == 0:
        raise TraceError(f"{rows.path} holds no whole routing; record it again.")
    place = {name: np.ascontiguousarray(values[name][: n_whole * k : k]) for name in PLACE}
    passes, order = number_passes(place)
    place["step"] = steps_within_passes(place, passes, order)
    lists = {
        name: values[source][: n_whole * k].reshape(n_whole, k)
        for name, source in LISTS.items()
        if source in values
    }
    taken = slice(None) if order is None else order
    columns: dict[str, Any] = {name: each[taken] for name, each in (place | lists).items()}

    def locate(row: int, slot: int) -> str:
        in_file = row if order is None else int(order[row])
        return f"{rows.path}, line {rows.line(in_file * k + slot)}"

    facts = preamble.facts
    other_sizes = []
    if "expert_bytes" in values:
        read = values["expert_bytes"][: n_whole * k].reshape(n_whole, k)
        other_sizes = _other_sizes(rows, values["layer"][: n_whole * k : k], read)
    source = Source(
        rows.path,
        [Routings(passes=passes, locate=locate, **columns)],
        model=dict(vars(facts.model)),
        layers=preamble.layers,
        engine=facts.engine,
        slot_order="ranked",
        notes=facts.notes,
        warnings=other_sizes,
    )
    sized = [layer["layer"] for layer in preamble.layers if "expert_bytes" in layer]
    if is_cut or not _last_pass_is_whole({**columns, "pass": passes}, np.array(sized, np.int64)):
        last = ", ".join(f"{name} {columns[name][-1]}" for name in ("turn", "step", "layer"))
        source.cut(
            f"{rows.path} is incomplete: it is cut off at its end, and read up to its last whole "
            f"routing ({last})."
        )
    return source


def _sizes(preamble: Preamble) -> np.ndarray:
    """Return the bytes of an expert of each layer, int64 [n_layer], -1 where they are not known."""
    sizes = np.full(len(preamble.layers), -1, np.int64)
    for index, layer in enumerate(preamble.layers):
        sizes[index] = layer.get("expert_bytes", -1)
    return sizes


def _other_sizes(rows: _Rows, layer: np.ndarray, read: np.ndarray) -> list[str]:
    """Warn of rows that read another number of bytes than the preamble gives an expert.

    Parameters
    ----------
    rows : _Rows
    layer : int16 [n]
        Of each routing, in the order of the file.
    read : int64 [n, k]
        What each row says was read: 0 where the expert was resident.
    """
    sizes = rows.sizes[np.minimum(layer, len(rows.sizes) - 1)]  # other layers are refused later
    differs = (read != sizes[:, None]) & (read != 0) & (sizes != -1)[:, None]
    if not differs.any():
        return []
    routing, slot = divmod(int(differs.argmax()), read.shape[1])
    more = int(np.count_nonzero(differs)) - 1
    return [
        f"{rows.path}, line {rows.line(routing * read.shape[1] + slot)}, column expert_bytes: "
        f"{read[routing, slot]} contradicts the {sizes[routing]} bytes that the preamble gives an "
        f"expert of layer {layer[routing]}{f', as do {more} more lines' if more else ''}; the "
        "preamble counts."
    ]


def _whole_routings(rows: _Rows, values: Arrays, k: int) -> int:
    """Return how many whole routings the rows have; a cut one may follow them.

    Raises
    ------
    TraceError
        A routing before the last does not have its k slots in order.
    """
    n_rows = len(values["slot"])
    n_whole = n_rows // k
    expected = np.broadcast_to(np.arange(k, dtype=np.uint16), (n_whole, k)).reshape(-1)
    expected = np.append(expected, np.arange(n_rows - n_whole * k, dtype=np.uint16))
    is_wrong = values["slot"] != expected
    for name in PLACE:
        # Within a routing every row repeats the place of the row before.
        differs = values[name][1:] != values[name][:-1]
        differs[k - 1 :: k] = False
        is_wrong[1:] |= differs
    if is_wrong.any():
        row = int(is_wrong.argmax())
        fewest, most = _counts_if_they_vary(values, k)
        if fewest < most:
            raise TraceError(
                f"{rows.path}, line {rows.line(row)}: the routings have {fewest} to {most} experts, "
                "as of a model that chooses how many for each token, and a trace has the same number "
                f"in all: give n_expert_used={max(most, k)} and as many rows to every routing, with "
                "dropped=1 in those of experts that it did not use."
            )
        found = ", ".join(f"{name} {values[name][row]}" for name in (*PLACE, "slot"))
        raise TraceError(
            f"{rows.path}, line {rows.line(row)}: {found} stands where slot {row % k} of a routing "
            f"of n_expert_used={k} experts is due; rows are missing, out of order, or "
            "n_expert_used is wrong: correct it or record again."
        )
    return n_whole


def _counts_if_they_vary(values: Arrays, k: int) -> tuple[int, int]:
    """Return the fewest and the most experts of a routing, or twice `k` if rows are missing.

    Where a routing lacks a slot before its last, rows are missing; and where one routing has another
    number of experts than `k`, or a few of very many.
    """
    slot = values["slot"].astype(np.int64)
    starts = np.flatnonzero(slot == 0)
    counts = np.diff(np.append(starts, len(slot)))
    if slot[0] != 0 or (slot != np.arange(len(slot)) - np.repeat(starts, counts)).any():
        return k, k
    n_other = np.count_nonzero(counts[:-1] != k)  # the file may be cut in its last routing
    if n_other < max(2, _LEAST_SHARE * len(counts)):
        return k, k
    return int(counts.min()), int(counts.max())


def _last_pass_is_whole(place: Arrays, sized: np.ndarray) -> bool:
    """Say whether the last pass has all its layers; of a prompt, the last layer may have no rows.

    Parameters
    ----------
    place : mapping
    sized : int [L]
        The layers that have experts. Those that never route are of a draft head, unless the file
        ends in its first prompt.
    """
    is_last = place["pass"] == place["pass"][-1]
    layers, counts = np.unique(place["layer"][is_last], return_counts=True)
    # Without the counts np.unique would import numpy.ma, which takes longer than to read a small file.
    routed, _ = np.unique(place["layer"], return_counts=True)
    if place["phase"][-1] == DECODE:
        return len(layers) == len(routed) and bool((counts == counts[0]).all())
    expected = routed if (place["phase"] == DECODE).any() else np.union1d(routed, sized)
    counts_of = dict(zip(layers.tolist(), counts.tolist(), strict=True))
    return all(counts_of.get(layer, 0) == counts[0] for layer in expected[:-1].tolist())

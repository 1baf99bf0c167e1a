"""The table of a replay: it must not mislead a reader who has no documentation at hand."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracekit.table import MIB, NONE, Column, counted, mib, percent, printable, render

if TYPE_CHECKING:
    from tracekit.replay import ReplayResult

UNDER_CYCLE = "^"
OVER_BUDGET = "*"

# What every record has; the rest are a policy's own counters.
_COMMON = frozenset(
    (
        "flash_ms_per_token_decode",
        *("policy", "params", "cache_bytes", "cache_mib", "under_token_cycle", "lookups", "hits"),
        *("hit_rate_cumulative", "lookups_decode", "hits_decode", "hit_rate_decode"),
        *("read_bytes", "read_bytes_decode", "peak_resident_bytes", "peak_resident_bytes_decode"),
        *("over_budget", "over_budget_decode", "gap_to_bound", "gap_to_bound_decode"),
        *("validation", "layers", "label"),
    )
)
# Counters that end so are fractions.
_FRACTIONS = ("rate", "share", "lost")

Record = Mapping[str, Any]


def replay_text(result: "ReplayResult") -> str:
    """Return the whole text: what was replayed, the table, what its marks mean, the notes."""
    # Sorting is stable: at each size, policies stand as asked for.
    records = _labelled(sorted(result.records, key=lambda r: r["cache_bytes"]))
    parts = [_head(result), _figures(result, records), *_counters(records)]
    if result.config["per_layer"]:
        parts += _layers(records)
    notes = [note for note in result.notes if note not in result.trace.warnings]
    parts.append("\n".join([*_legend(records, result.config.get("flash_mib_s")), *notes]))
    return "\n\n".join(parts)


def _head(result: "ReplayResult") -> str:
    trace = result.trace
    incomplete = "" if trace.complete else " (incomplete)"
    lines = [
        printable(
            f"{trace.name}{incomplete}: {trace.facts.model.name}, {len(trace.moe_layers)} MoE layers "
            f"× {trace.n_expert} experts, {trace.top_k} used per token and layer"
        ),
        f"expert bank {mib(trace.bank_bytes)} MiB, "
        f"token cycle {mib(trace.token_cycle_bytes)} MiB, "
        f"{counted(trace.n_decoded, 'decoded token')}",
    ]
    if not _lookups_differ(result.records):
        first = result.records[0]
        lines.append(
            f"expert lookups: {first['lookups_decode']} decode, {first['lookups']} cumulative"
        )
    return "\n".join(lines)


def _lookups_differ(records: Sequence[Record]) -> bool:
    return len({(r["lookups"], r["lookups_decode"]) for r in records}) > 1


def _labelled(records: Sequence[Record]) -> list[Record]:
    """Add to each record the name of its row: the policy, and what parameters tell it apart."""
    from tracekit.policies import POLICIES

    values: dict[tuple[str, str], set[Any]] = {}
    for record in records:
        for name, value in record["params"].items():
            values.setdefault((record["policy"], name), set()).add(value)
    labelled = []
    for record in records:
        policy = record["policy"]
        plain = POLICIES.find(policy).Params() if policy in POLICIES else None
        # A seed is always said; of the rest, what is not as it always is, and what varies here.
        shown = [
            f"{name}={value}"
            for name, value in record["params"].items()
            if name == "seed"
            or plain is None
            or value != getattr(plain, name)
            or len(values[policy, name]) > 1
        ]
        labelled.append({**record, "label": " ".join([policy, *shown])})
    return labelled


def _label(record: Record) -> str:
    return record["label"]


def _is_bound(record: Record) -> bool:
    return record["policy"] == "bound"


def _at_most(record: Record, text: str) -> str:
    return f"≤ {text}" if _is_bound(record) and text != NONE else text


def _at_least(record: Record, text: str) -> str:
    return f"≥ {text}" if _is_bound(record) and text != NONE else text


def _mib(n_bytes: int) -> str:
    return f"{round(n_bytes / MIB, 4):.12g}"


def _cache(record: Record) -> str:
    mark = UNDER_CYCLE if record["under_token_cycle"] else " "
    return _mib(record["cache_bytes"]) + mark


def _peak(record: Record, phase: str) -> str:
    mark = OVER_BUDGET if record[f"over_budget{phase}"] else " "
    return mib(record[f"peak_resident_bytes{phase}"]) + mark


def _figures(result: "ReplayResult", records: Sequence[Record]) -> str:
    tokens, bank = result.trace.n_decoded, result.trace.bank_bytes

    def per_token(record: Record) -> str:
        return _at_least(record, mib(record["read_bytes_decode"] / tokens if tokens else None))

    columns = [
        Column("policy", _label, left=True),
        Column("cache\nMiB ", _cache),
        Column("cache\n% of\nbank", lambda r: percent(r["cache_bytes"] / bank if bank else None)),
        Column("decode\nhit rate\n%", lambda r: _at_most(r, percent(r["hit_rate_decode"]))),
        *_above_lru(records),
        Column("cumulative\nhit rate\n%", lambda r: _at_most(r, percent(r["hit_rate_cumulative"]))),
        Column("cumulative\nbelow bound\npoints", lambda r: percent(r["gap_to_bound"])),
        Column("decode\nread per\ntoken\nMiB", per_token),
        *([Column("decode\nflash per\ntoken\nms", _busy)] if _timed(records) else []),
        Column("cumulative\nread\nMiB", lambda r: _at_least(r, mib(r["read_bytes"]))),
        Column("decode\npeak\nresident\nMiB ", lambda r: _peak(r, "_decode")),
        Column("cumulative\npeak\nresident\nMiB ", lambda r: _peak(r, "")),
    ]
    if _lookups_differ(records):
        columns[3:3] = [
            Column("decode\nlookups", lambda r: str(r["lookups_decode"])),
            Column("cumulative\nlookups", lambda r: str(r["lookups"])),
        ]
    if any("validation" in r for r in records):
        columns.append(Column("lookups that\ndiffer from\nthe recording", _mismatches))
    several = len({_label(r) for r in records}) > 1
    return render(columns, records, (lambda r: r["cache_bytes"]) if several else None)


def _timed(records: Sequence[Record]) -> bool:
    return any("flash_ms_per_token_decode" in r for r in records)


def _busy(record: Record) -> str:
    busy_ms = record["flash_ms_per_token_decode"]
    return NONE if busy_ms is None else _at_least(record, f"{busy_ms:.3g}")


def _above_lru(records: Sequence[Record]) -> list[Column]:
    """Return a column of decode hit rates less those of LRU, if it was replayed beside others."""
    of_lru = {r["cache_bytes"]: r["hit_rate_decode"] for r in records if r["policy"] == "lru"}
    if not of_lru or all(r["policy"] in ("lru", "bound") for r in records):
        return []

    def points(record: Record) -> str:
        rate, base = record["hit_rate_decode"], of_lru.get(record["cache_bytes"])
        comparable = (
            _is_bound(record) or record["gap_to_bound"] is not None or "speculative_reads" in record
        )
        if record["policy"] == "lru" or not comparable or rate is None or base is None:
            return NONE
        text = f"{100 * (rate - base):+.2f}"
        return _at_most(record, "0.00" if text in ("+0.00", "-0.00") else text)

    return [Column("decode\nabove LRU\npoints", points)]


def _mismatches(record: Record) -> str:
    if "validation" not in record:
        return NONE
    return "{mismatches} of {lookups}".format(**record["validation"])


def _counters(records: Sequence[Record]) -> list[str]:
    """Return a table for each set of counters that policies have of their own."""
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        names = tuple(name for name in record if name not in _COMMON)
        if names:
            alike.setdefault(names, []).append(record)
    return [
        render(
            [
                Column("policy", _label, left=True),
                Column("cache\nMiB ", _cache),
                *(Column(_counter_header(name), _counter_cell(name)) for name in names),
            ],
            same,
        )
        for names, same in alike.items()
    ]


def _counter_header(name: str) -> str:
    words = name.split("_")
    if "bytes" in words:
        return "\n".join([*(word for word in words if word != "bytes"), "MiB"])
    if words[-1] in _FRACTIONS:
        return "\n".join([*words, "%"])
    return "\n".join(words)


def _counter_cell(name: str):
    def cell(record: Record) -> str:
        value = record.get(name)
        if "bytes" in name.split("_"):
            return mib(value)
        if name.split("_")[-1] in _FRACTIONS:
            return percent(value)
        if value is None:
            return NONE
        return f"{value:.4f}" if isinstance(value, float) else str(value)

    return cell


def _layers(records: Sequence[Record]) -> list[str]:
    tables = []
    for cache_bytes in dict.fromkeys(r["cache_bytes"] for r in records):
        here = [r for r in records if r["cache_bytes"] == cache_bytes and not _is_bound(r)]
        rows = [
            {"layer": layers[0]["layer"], "rates": [entry["hit_rate_decode"] for entry in layers]}
            for layers in zip(*(r["layers"] for r in here), strict=True)
        ]
        columns = [Column("layer", lambda row: str(row["layer"]))]
        columns += [
            Column(_label(r), lambda row, i=i: percent(row["rates"][i])) for i, r in enumerate(here)
        ]
        title = f"decode hit rate of each layer, %, at a cache of {_mib(cache_bytes)} MiB"
        if here:
            tables.append(f"{title}\n{render(columns, rows)}")
    return tables


def _legend(records: Sequence[Record], flash_mib_s: float | None) -> list[str]:
    from tracekit.policies import POLICIES

    lines = ["decode: generated tokens only; cumulative: prompts (prefill) and generated tokens"]
    if flash_mib_s:
        lines.append(
            f"flash per token: how long reading is busy at {flash_mib_s:g} MiB a second; a token "
            "takes at least that, whatever is computed meanwhile"
        )
    if any(r["under_token_cycle"] for r in records):
        lines.append(f"{UNDER_CYCLE} cache smaller than one token cycle")
    if any(r["over_budget"] or r["over_budget_decode"] for r in records):
        lines.append(f"{OVER_BUDGET} more was resident than the budget")
    if any(map(_is_bound, records)):
        lines.append(
            "≤ ≥ bound: proven limits of every policy that keeps to its budget "
            "and reads only what is asked for"
        )
    if any(r["gap_to_bound"] is None and r["lookups"] and not _is_bound(r) for r in records):
        lines.append(
            "- above LRU, below bound: what keeps more than its budget or leaves experts out does "
            "not compare; the bound does not hold for what reads ahead either"
        )
    if any("speculative_reads" in r for r in records):
        lines.append(
            "reading ahead: every such read is taken to arrive in time; useful: hit before it was "
            "evicted; skipped: no room; evicted by speculation: residents that made room; demand "
            "decode: what decoded tokens still wait for"
        )
    if any("promoted" in r for r in records):
        lines.append("promoted: residents that were predicted, made as recent as if just used")
    if any("mass_lost" in r for r in records):
        lines.append(
            "leaving experts out changes what the model computes; mass lost: their share of the "
            "router weight; saved: of the decode bytes that plain LRU reads; they are no lookups"
        )
    ahead = [
        name
        for name in dict.fromkeys(r["policy"] for r in records)
        if name in POLICIES and POLICIES.find(name).offline and name != "bound"
    ]
    if ahead:
        lines.append(f"{', '.join(ahead)}: knows the future, so no engine can run it")
    return lines

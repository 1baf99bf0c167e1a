"""The table of a replay: it must not mislead a reader who has no documentation at hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.figures import NONE, Figure, budget_mib, counted, joined, mib, percent, printable
from tracekit.policies.bound import Bound, BoundAhead, bounded
from tracekit.replaying.labels import labels_of
from tracekit.replaying.rows import LayerRow, Row
from tracekit.replaying.time_text import time_parts
from tracekit.table import Column, Part, Table
from tracekit.trace import Trace

UNDER_CYCLE = "^"
OVER_BUDGET = "*"

# The rows of one layer, one for each policy.
Layers = tuple[LayerRow, ...]


@dataclass(frozen=True)
class Labelled:
    """A row and what it is called."""

    label: str
    row: Row


def replay_parts(
    trace: Trace, rows: Sequence[Row], notes: Sequence[str], config: Mapping[str, Any]
) -> list[Part]:
    """Return what was replayed, the tables, what their marks mean, the notes.

    Parameters
    ----------
    trace : Trace
    rows : sequence of Row
    notes : sequence of str
    config : mapping
        ``ReplayResult.config``.
    """
    # Sorting is stable: at each size, policies stand as asked for.
    labelled = sorted(map(Labelled, labels_of(rows), rows), key=_budget)
    figures = _figures(config, labelled)
    parts: list[Part] = [_head(trace, rows, config), figures, *_counters(labelled)]
    if config["time"] is not None:
        leading = [_label_column(), *_slots_columns(rows), Column[Labelled]("cache\nMiB ", _cache)]
        parts += time_parts(leading, labelled, config["time"])
    if any(row.layers for row in rows):
        parts += _layers(labelled)
    legend = _legend([each.row for each in labelled], config)
    parts.append("\n".join([*legend, *(note for note in notes if note not in trace.warnings)]))
    return parts


def _budget(each: Labelled) -> int:
    return each.row.budget


def _head(trace: Trace, rows: Sequence[Row], config: Mapping[str, Any]) -> str:
    incomplete = "" if trace.complete else " (incomplete)"
    tokens = counted(config["tokens_decode"], "decoded token")
    if _has_drafts(config):
        tokens += f" in {counted(config['passes_decode'], 'decode pass', 'decode passes')}"
    if config["skip"]:
        tokens += f" that count, of {trace.n_decoded}"
    lines = [
        printable(
            f"{trace.name}{incomplete}: {trace.facts.model.name}, {len(trace.moe_layers)} MoE layers "
            f"× {trace.n_expert} experts, {trace.top_k} used per token and layer"
        ),
        f"{_sizes(trace, rows)}, {tokens}",
    ]
    if not _lookups_differ(rows):
        first = rows[0]
        lines.append(f"expert lookups: {first.lookups_decode} decode, {first.lookups} cumulative")
    if config["skip"]:
        of_turn = counted(config["skip"], "decoded token")
        lines.append(
            f"skip: the first {of_turn} of each turn: replayed, and in no figure of decode"
        )
    if config["warm"] is not None:
        lines.append(
            printable(f"warm: {config['warm']} was replayed first: in the cache, and in no figure")
        )
    if rows[0].bypass:
        lines.append(
            "bypass: the engine may drop at once what it has just used; the scratch buffer that it "
            "reads into is not charged to the cache"
        )
    return "\n".join(lines)


def _sizes(trace: Trace, rows: Sequence[Row]) -> str:
    if rows[0].cache_bytes is None:
        return f"{len(trace.moe_layers) * trace.n_expert} experts of unknown size, taken for equal"
    return (
        f"expert bank {mib(trace.bank_bytes)} MiB, token cycle {mib(trace.token_cycle_bytes)} MiB"
    )


def _lookups_differ(rows: Sequence[Row]) -> bool:
    return len({(row.lookups, row.lookups_decode) for row in rows}) > 1


def _at_most(row: Row, text: str) -> str:
    return f"≤ {text}" if row.is_bound and text != NONE else text


def _at_least(row: Row, text: str) -> str:
    return f"≥ {text}" if row.is_bound and text != NONE else text


def _cache(each: Labelled) -> str:
    mark = UNDER_CYCLE if each.row.under_token_cycle else " "
    return _budget_mib(each.row.cache_bytes) + mark


def _budget_mib(cache_bytes: int | None) -> str:
    return NONE if cache_bytes is None else budget_mib(cache_bytes)


def _marked(text: str, over: bool | None) -> str:
    return text + (OVER_BUDGET if over else " ")


def _share_column() -> Column[Labelled]:
    return Column("cache\n% of\nbank", lambda each: percent(each.row.cache_fraction))


def _slots_columns(rows: Sequence[Row]) -> list[Column[Labelled]]:
    """Return a column of budgets in experts of every layer, if they were given so."""
    if all(row.cache_slots is None for row in rows):
        return []
    return [Column("cache\nslots\na layer", lambda each: str(each.row.cache_slots))]


def _label_column() -> Column[Labelled]:
    return Column("policy", lambda each: each.label, left=True)


def _figures(config: Mapping[str, Any], labelled: Sequence[Labelled]) -> Table[Labelled]:
    tokens, passes = config["tokens_decode"], config["passes_decode"]
    rows = [each.row for each in labelled]

    def read_per(count: int) -> Callable[[Labelled], str]:
        def shown(each: Labelled) -> str:
            read = each.row.read_bytes_decode
            return _at_least(each.row, mib(read / count if count and read is not None else None))

        return shown

    hit_rate = Column[Labelled](
        "decode\nhit rate\n%", lambda e: _at_most(e.row, percent(e.row.hit_rate_decode))
    )
    columns: list[Column[Labelled]] = [
        _label_column(),
        *_slots_columns(rows),
        Column("cache\nMiB ", _cache),
        _share_column(),
        hit_rate,
        *_above_lru(rows),
        Column(
            "cumulative\nhit rate\n%",
            lambda e: _at_most(e.row, percent(e.row.hit_rate_cumulative)),
        ),
        Column("cumulative\nbelow bound\npoints", lambda e: percent(e.row.gap_to_bound)),
        Column("decode\nread per\ntoken\nMiB", read_per(tokens)),
        *([Column("decode\nread per\npass\nMiB", read_per(passes))] if passes != tokens else []),
        *(_flash(with_passes=passes != tokens) if config["flash_mib_s"] is not None else []),
        Column("cumulative\nread\nMiB", lambda e: _at_least(e.row, mib(e.row.read_bytes))),
        Column(
            "decode\npeak\nresident\nMiB ",
            lambda e: _marked(mib(e.row.peak_resident_bytes_decode), e.row.over_budget_decode),
        ),
        Column(
            "cumulative\npeak\nresident\nMiB ",
            lambda e: _marked(mib(e.row.peak_resident_bytes), e.row.over_budget),
        ),
    ]
    if _lookups_differ(rows):
        at = columns.index(hit_rate)
        columns[at:at] = [
            Column("decode\nlookups", lambda e: str(e.row.lookups_decode)),
            Column("cumulative\nlookups", lambda e: str(e.row.lookups)),
        ]
    if any(row.validation for row in rows):
        columns.append(Column("lookups that\ndiffer from\nthe recording", _mismatches))
    several = len({each.label for each in labelled}) > 1
    return Table(columns, labelled, _budget if several else None)


def _flash(with_passes: bool) -> list[Column[Labelled]]:
    def busy(busy_ms: float | None, row: Row) -> str:
        return NONE if busy_ms is None else _at_least(row, f"{busy_ms:.3g}")

    of_token = Column[Labelled](
        "decode\nflash per\ntoken\nms", lambda e: busy(e.row.flash_ms_per_token_decode, e.row)
    )
    of_pass = Column[Labelled](
        "decode\nflash per\npass\nms", lambda e: busy(e.row.flash_ms_per_pass_decode, e.row)
    )
    return [of_token, of_pass] if with_passes else [of_token]


def _above_lru(rows: Sequence[Row]) -> list[Column[Labelled]]:
    """Return a column of decode hit rates less those of LRU, if it was replayed beside others."""
    of_lru = {row.budget: row.hit_rate_decode for row in rows if row.policy == "lru"}
    if not of_lru or all(row.policy == "lru" or row.is_bound for row in rows):
        return []

    def points(row: Row) -> str:
        rate, base = row.hit_rate_decode, of_lru.get(row.budget)
        if row.policy == "lru" or not row.compares_with_lru or rate is None or base is None:
            return NONE
        text = f"{100 * (rate - base):+.2f}"
        return _at_most(row, "0.00" if text in ("+0.00", "-0.00") else text)

    if not any(_overran_in_prefill(row) and points(row) != NONE for row in rows):
        return [Column("decode\nabove LRU\npoints", lambda each: points(each.row))]
    return [
        Column(
            "decode\nabove LRU\npoints ",
            lambda each: _marked(points(each.row), _overran_in_prefill(each.row)),
        )
    ]


def _overran_in_prefill(row: Row) -> bool:
    """Say whether a row held more than its budget during prompts, and kept to it afterwards."""
    return row.kept_to_budget_decode and not row.kept_to_budget


def _mismatches(each: Labelled) -> str:
    found = each.row.validation
    return NONE if found is None else f"{found.mismatches} of {found.lookups}"


def _counters(labelled: Sequence[Labelled]) -> list[Table[Labelled]]:
    """Return a table for each set of counters that policies have of their own."""
    alike: dict[tuple[Figure, ...], list[Labelled]] = {}
    for each in labelled:
        if each.row.counters:
            alike.setdefault(each.row.counter_figures, []).append(each)
    return [
        Table(
            [
                _label_column(),
                *_slots_columns([each.row for each in same]),
                *([_share_column()] if same[0].row.cache_bytes is None else []),
                Column("cache\nMiB ", _cache),
                *_bound_ahead(same),
                *(_counter(figure) for figure in figures),
            ],
            same,
        )
        for figures, same in alike.items()
    ]


def _bound_ahead(labelled: Sequence[Labelled]) -> list[Column[Labelled]]:
    """Return the hit rates that the bound of what reads ahead allows, if it was replayed."""
    if not any(isinstance(each.row.bound, BoundAhead) for each in labelled):
        return []

    def allowed(rate: float | None) -> str:
        return NONE if rate is None else f"≤ {percent(rate)}"

    return [
        Column(
            "decode\nbound with\nreading\nahead\n%",
            lambda each: allowed(each.row.bound_hit_rate_decode),
        ),
        Column(
            "cumulative\nbound with\nreading\nahead\n%",
            lambda each: allowed(each.row.bound_hit_rate_cumulative),
        ),
    ]


def _counter(figure: Figure) -> Column[Labelled]:
    return Column(figure.header, lambda each: figure.write(each.row.counters[figure.name]))


def _layers(labelled: Sequence[Labelled]) -> list[Table[Layers]]:
    tables = []
    for budget in dict.fromkeys(map(_budget, labelled)):
        here = [e for e in labelled if _budget(e) == budget and not e.row.is_bound]
        by_layer = list(zip(*(each.row.layers or () for each in here), strict=True))
        columns = [Column[Layers]("layer", lambda layers: str(layers[0].layer))]
        columns += [_rate_of_layer(each.label, i) for i, each in enumerate(here)]
        if here:
            title = f"decode hit rate of each layer, %, at a cache of {_size(here[0].row)}"
            tables.append(Table(columns, by_layer, title=title))
    return tables


def _size(row: Row) -> str:
    if row.cache_slots is not None:
        return f"{counted(row.cache_slots, 'expert')} a layer"
    if row.cache_bytes is None:
        return f"{percent(row.cache_fraction)} % of all experts"
    return f"{budget_mib(row.cache_bytes)} MiB"


def _rate_of_layer(label: str, place: int) -> Column[Layers]:
    return Column(label, lambda layers: percent(layers[place].hit_rate_decode))


def _has_drafts(config: Mapping[str, Any]) -> bool:
    return bool(config["passes_decode"] != config["tokens_decode"])


def _legend(rows: Sequence[Row], config: Mapping[str, Any]) -> list[str]:
    flash_mib_s = config["flash_mib_s"]
    lines = ["decode: generated tokens only; cumulative: prompts (prefill) and generated tokens"]
    if _has_drafts(config):
        lines.append(
            "per token: of those that stayed; a pass verifies several, and what it reads for those "
            "that it rejects counts too"
        )
    if flash_mib_s and config["time"] is not None:
        lines.append(
            f"flash per token: its bytes at {flash_mib_s:.4g} MiB a second; rougher than the times "
            "above, which the other costs of a token are part of"
        )
    elif flash_mib_s:
        lines.append(
            f"flash per token: how long reading is busy at {flash_mib_s:g} MiB a second; on average a "
            "token takes at least that, whatever is computed meanwhile"
        )
    if any(row.under_token_cycle for row in rows):
        lines.append(f"{UNDER_CYCLE} cache smaller than one token cycle")
    if any(row.over_budget or row.over_budget_decode for row in rows):
        lines.append(f"{OVER_BUDGET} more was resident than the budget")
    if any(row.is_bound for row in rows):
        lines.append(f"≤ ≥ bound: proven limits of every policy that {bounded(rows[0].bypass)}")
        if any(row.layers for row in rows):
            lines.append(
                "no bound of a layer: most layers alone would fit the cache, so it would say nothing"
            )
    lines += of_other_bounds(rows)
    if any(row.gap_to_bound is None and row.lookups and not row.is_bound for row in rows):
        lines.append(
            "- above LRU, below bound: what keeps more than its budget, leaves experts out, or hits "
            "what it read ahead by a wrong guess does not compare"
        )
    lines += dict.fromkeys(line for row in rows for line in row.replayed.legend)
    ahead = dict.fromkeys(r.policy for r in rows if r.replayed.offline and not r.is_bound)
    if ahead:
        lines.append(f"{', '.join(ahead)}: knows the future, so no engine can run it")
    return lines


def of_other_bounds(rows: Sequence[Row]) -> list[str]:
    """Say of each bound that is not that of `bound` itself which policies it is of."""
    policies: dict[Bound, dict[str, None]] = {}
    for row in rows:
        if row.bound is not None:
            policies.setdefault(row.bound, {})[row.policy] = None
    has_row = any(row.is_bound for row in rows)
    of_demand = {bound for bound in policies if bound.kind == Bound.kind and has_row}
    return [
        f"bound of {joined(list(names))}: of every policy that "
        f"{bound.bounded(rows[0].bypass, rows[0].cache_slots is not None)}"
        for bound, names in policies.items()
        if bound not in of_demand
    ]

"""The table of a replay: it must not mislead a reader who has no documentation at hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracekit.figures import NONE, Figure, budget_mib, counted, mib, percent, printable
from tracekit.policies.bound import bounded
from tracekit.replaying.labels import labels_of
from tracekit.replaying.rows import LayerRow, Row
from tracekit.routing.turns import n_decode_passes
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
    trace: Trace, rows: Sequence[Row], notes: Sequence[str], flash_mib_s: float | None
) -> list[Part]:
    """Return what was replayed, the tables, what their marks mean, the notes.

    Parameters
    ----------
    trace : Trace
    rows : sequence of Row
    notes : sequence of str
    flash_mib_s : float or None
        The rate at which flash reads, if it was given.
    """
    # Sorting is stable: at each size, policies stand as asked for.
    labelled = sorted(map(Labelled, labels_of(rows), rows), key=_budget)
    figures = _figures(trace, labelled, with_flash=flash_mib_s is not None)
    parts: list[Part] = [_head(trace, rows), figures, *_counters(labelled)]
    if any(row.layers for row in rows):
        parts += _layers(labelled)
    legend = _legend([each.row for each in labelled], flash_mib_s, _has_drafts(trace))
    parts.append("\n".join([*legend, *(note for note in notes if note not in trace.warnings)]))
    return parts


def _budget(each: Labelled) -> int:
    return each.row.budget


def _head(trace: Trace, rows: Sequence[Row]) -> str:
    incomplete = "" if trace.complete else " (incomplete)"
    tokens = counted(trace.n_decoded, "decoded token")
    if _has_drafts(trace):
        tokens += f" in {counted(n_decode_passes(trace), 'decode pass', 'decode passes')}"
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


def _label_column() -> Column[Labelled]:
    return Column("policy", lambda each: each.label, left=True)


def _figures(trace: Trace, labelled: Sequence[Labelled], with_flash: bool) -> Table[Labelled]:
    tokens, passes = trace.n_decoded, n_decode_passes(trace)
    rows = [each.row for each in labelled]

    def read_per(count: int) -> Callable[[Labelled], str]:
        def shown(each: Labelled) -> str:
            read = each.row.read_bytes_decode
            return _at_least(each.row, mib(read / count if count and read is not None else None))

        return shown

    columns: list[Column[Labelled]] = [
        _label_column(),
        Column("cache\nMiB ", _cache),
        _share_column(),
        Column("decode\nhit rate\n%", lambda e: _at_most(e.row, percent(e.row.hit_rate_decode))),
        *_above_lru(rows),
        Column(
            "cumulative\nhit rate\n%",
            lambda e: _at_most(e.row, percent(e.row.hit_rate_cumulative)),
        ),
        Column("cumulative\nbelow bound\npoints", lambda e: percent(e.row.gap_to_bound)),
        Column("decode\nread per\ntoken\nMiB", read_per(tokens)),
        *([Column("decode\nread per\npass\nMiB", read_per(passes))] if passes != tokens else []),
        *(_flash(with_passes=passes != tokens) if with_flash else []),
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
        columns[3:3] = [
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
                *([_share_column()] if same[0].row.cache_bytes is None else []),
                Column("cache\nMiB ", _cache),
                *(_counter(figure) for figure in figures),
            ],
            same,
        )
        for figures, same in alike.items()
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
    if row.cache_bytes is None:
        return f"{percent(row.cache_fraction)} % of all experts"
    return f"{budget_mib(row.cache_bytes)} MiB"


def _rate_of_layer(label: str, place: int) -> Column[Layers]:
    return Column(label, lambda layers: percent(layers[place].hit_rate_decode))


def _has_drafts(trace: Trace) -> bool:
    return n_decode_passes(trace) != trace.n_decoded


def _legend(rows: Sequence[Row], flash_mib_s: float | None, has_drafts: bool) -> list[str]:
    lines = ["decode: generated tokens only; cumulative: prompts (prefill) and generated tokens"]
    if has_drafts:
        lines.append(
            "per token: of those that stayed; a pass verifies several, and what it reads for those "
            "that it rejects counts too"
        )
    if flash_mib_s:
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
    if any(row.gap_to_bound is None and row.lookups and not row.is_bound for row in rows):
        lines.append(
            "- above LRU, below bound: what keeps more than its budget or leaves experts out does "
            "not compare; the bound does not hold for what reads ahead either"
        )
    lines += dict.fromkeys(line for row in rows for line in row.replayed.legend)
    ahead = dict.fromkeys(r.policy for r in rows if r.replayed.offline and not r.is_bound)
    if ahead:
        lines.append(f"{', '.join(ahead)}: knows the future, so no engine can run it")
    return lines

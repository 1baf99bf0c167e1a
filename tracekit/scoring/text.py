"""The accuracy report as text: rows in, sentences and tables out."""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from tracekit.figures import counted, first_of, joined
from tracekit.figures import percent as percent_of
from tracekit.predictors import PREDICTORS
from tracekit.scoring.rows import LayerRow, Row, label_of
from tracekit.scoring.training import Entry
from tracekit.table import Column, Part, Table

# Rounding gate inputs to 8 bits turned at most 1 slot in 50 where it was tried.
LEAST_AFTER_ROUNDING = 0.9

Cells = Sequence[str]  # one line of a table


def percent(rate: float | None) -> str:
    """Write an accuracy in percent, with one digit."""
    return percent_of(rate, 1)


def headline(rows: Sequence[Row]) -> str:
    """Return one line: slot accuracy and, in parentheses, whole routings."""
    return " | ".join(
        f"{row.label} {percent(row.slot_accuracy)} % ({percent(row.exact_rate)} %)" for row in rows
    )


def alarm(rows: Sequence[Row], rounded: Mapping[int, str] | None = None) -> list[str]:
    """Return the sentence about a control below 100 %, or nothing.

    Parameters
    ----------
    rows : sequence of Row
    rounded : mapping of int to str, optional
        The types of routers for which the engine rounds the product, by layer.
    """
    for row in rows:
        if not row.scored.is_control or row.hits == row.slots:
            continue
        missing = [layer for layer in row.layers if layer.hits < layer.slots]
        where = first_of([f"{x.layer} ({percent(x.slot_accuracy)} %)" for x in missing])
        missed = row.routings - row.exact
        rate = f"{percent(row.slot_accuracy)} %"
        name = row.predictor.upper()
        if row.near_ties == missed:
            return [
                f"{name} IS BELOW 100 %: the fresh-gate control names {rate} of the selected "
                f"experts, but all {missed} routings it misses are near ties (layers {where}), "
                "which rounding decides."
            ]
        return [
            f"{name} IS BELOW 100 %: the fresh-gate control names only {rate} of the selected "
            f"experts, in layers {where}; {_causes(missing, rounded or {})}: read the other figures "
            f"against {row.predictor}, not "
            f"against 100 %. Of {missed} routings it misses, {row.near_ties} are near ties."
        ]
    return []


def _causes(layers: Sequence[LayerRow], rounded: Mapping[int, str]) -> str:
    """Say why the control may miss experts in `layers`."""
    types = {rounded.get(layer.layer) for layer in layers}
    names = sorted(name for name in types if name is not None)
    causes = [
        "the gate inputs are kept as f16 and their rounding decides",
        "the recording is wrong",
        "the model selects by a rule that the trace does not describe",
    ]
    if len(names) == len(types):
        by_product = (
            f"their routers are stored as {joined(names)}, and the engine rounds for the product "
            "with such a matrix, which the control does not"
        )
        if min(layer.slot_accuracy or 0 for layer in layers) >= LEAST_AFTER_ROUNDING:
            return by_product
        causes[0] = by_product
    return ", or ".join(causes)


def sentences(
    rows: Sequence[Row],
    advice: str | None = None,
    rounded: Mapping[int, str] | None = None,
) -> list[str]:
    """Return what the figures say, and no more, in two sentences; before them a broken control.

    `advice` says where to see what acting on a prediction does; by default, how to replay it.
    `rounded` is as for `alarm`.
    """
    if advice is None:
        advice = (
            f"replay with --policy lru,retention,prefetch{_predictor_options(rows)} to see what "
            "acting on it does to hits and read bytes"
        )
    return [
        *alarm(rows, rounded),
        *_layers_below(rows),
        "Accuracy is not speed: these figures say how much of the routing is known early, not that "
        f"knowing it makes a token faster; {advice}.",
    ]


def _predictor_options(rows: Sequence[Row]) -> str:
    """Name the predictor to act on, where the one that policies take by default is not scored."""
    from tracekit.policies.retention import Retention  # it loads all policies

    usable = [
        row
        for row in rows
        if row.slots
        and row.scored.is_rival()
        and row.scored.in_time
        and row.predictor in PREDICTORS  # a policy finds it by this name
    ]
    by_default = Retention.Params().predictor
    if not usable or any(row.predictor == by_default for row in usable):
        return ""
    # What the token before used is mostly in the cache: acting on that seldom changes anything.
    best = max(usable, key=lambda row: (not row.scored.repeats_previous_token, _accuracy(row)))
    return "".join(
        f" --param {policy}.predictor={best.predictor}" for policy in ("retention", "prefetch")
    )


def _accuracy(row: Row) -> float:
    return row.slot_accuracy or 0.0


def _layers_below(rows: Sequence[Row]) -> list[str]:
    """Name the layers whose interval lies below the overall figure of the first predictor."""
    scored = [r for r in rows if r.slots and not (r.scored.is_control or r.scored.is_floor)]
    if not scored:
        return []
    first, *others = scored
    overall = _accuracy(first)
    sentence = f"{first.label} names {percent(overall)} % of the selected experts"
    previous = next((row for row in others if row.scored.repeats_previous_token), None)
    if previous:
        rate = percent(previous.slot_accuracy)
        sentence += f" where repeating the previous token names {rate} %"
    layers = [layer for layer in first.layers if layer.ci95]
    below = [layer for layer in layers if layer.ci95 and layer.ci95[1] < overall]
    if below:
        below.sort(key=lambda layer: layer.slot_accuracy or 0.0)
        where = first_of([f"{x.layer} ({percent(x.slot_accuracy)} %)" for x in below])
        sentence += (
            f"; {len(below)} of its {len(layers)} layers lie below that with their whole 95 % "
            f"interval, lowest first: {where}"
        )
    elif layers:
        sentence += "; no layer's 95 % interval lies below that"
    return [f"{sentence}."]


def route_ahead(rows: Sequence[Row]) -> str:
    """Return what routing by each guess would keep of the model's own routing, or nothing."""
    lines = []
    for row in rows:
        if row.horizon is None or not row.slots:
            continue
        mass = "" if row.gate_mass is None else f", {percent(row.gate_mass)} % of router weight"
        lines.append(
            f"  {row.label}: {percent(row.slot_accuracy)} % of selected experts{mass}, "
            f"{percent(row.exact_rate)} % of routings unchanged"
        )
    if not lines:
        return ""
    return "\n".join(["route-ahead agreement, if the model were routed by the guess:", *lines])


def fit_sentences(entries: Sequence[Entry]) -> list[str]:
    """Return what each fit cost, and where it fell back."""
    found = []
    for entry in entries:
        lesson, path = entry.lesson, entry.path
        if lesson is None and path is not None:
            size = path.predictor.size_bytes
            carried = "" if size is None else f", and would take {_size(size)} on a device"
            found.append(
                f"{label_of(entry.predictor.name, entry.horizon)} learned from {path.tokens} tokens "
                f"as they ran, each after it was asked about{carried}."
            )
        if lesson is None:
            continue
        folds, written = lesson.folds, _size(lesson.learner.size_bytes)
        notes = [*lesson.learner.notes]
        if folds.holds_out and folds.n_groups < len(folds.group):
            notes.append(f"its turns were held out in {folds.n_groups} groups")
        extra = "".join(f"; {note}" for note in notes)
        others = ", each turn scored by what others taught," if folds.holds_out else ""
        found.append(
            f"{label_of(entry.predictor.name, entry.horizon)} learned from {lesson.rows} decoded "
            f"tokens{others} in {lesson.seconds:.1f} s and would take {written} on a device{extra}."
        )
    return found


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1024:.1f} KiB" if n_bytes < 1 << 20 else f"{n_bytes / (1 << 20):.1f} MiB"


def denominators(rows: Sequence[Row]) -> str:
    """Return what each figure is of, and what was unscored."""
    lines = []
    for row in rows:
        interval = ""
        if row.ci95:
            low, high = row.ci95
            interval = f", 95 % interval {percent(low)} to {percent(high)} %"
        ties = f", {counted(row.near_ties, 'near tie')} missed" if row.near_ties else ""
        lines.append(
            f"  {row.label}: {row.routings} routings, {row.slots} slots, "
            f"{row.unscored} unscored{interval}{ties}"
        )
    return "scored:\n" + "\n".join(lines)


def layer_table(rows: Sequence[Row], n_tokens: int) -> Table[Cells]:
    """Return slot accuracy by layer in percent; ``-`` where nothing was scored."""
    lines = [["layer", *(row.short_label for row in rows), "tokens"]]
    for layers in zip(*(row.layers for row in rows), strict=True):
        cells = [percent(layer.slot_accuracy) for layer in layers]
        lines.append([str(layers[0].layer), *cells, str(n_tokens)])
    return _table(lines)


def named_table(rows: Sequence[Row], named: Sequence[int]) -> Table[Cells]:
    """Return recall and gate mass in percent by how many experts are named."""
    lines = [["named", *(f"{m}" for m in named), *(f"mass {m}" for m in named)]]
    for row in rows:
        recalls = [percent(row.recall[m]) for m in named]
        lines.append([row.short_label, *recalls, *(percent(row.mass_named[m]) for m in named)])
    return _table(lines)


def _table(lines: Sequence[Cells]) -> Table[Cells]:
    """Make a table of lines of cells; the first line has the headers."""
    headers, *rows = lines
    columns = [Column[Cells](header, itemgetter(i)) for i, header in enumerate(headers)]
    return Table(columns, rows, indent=2)


def report_parts(
    rows: Sequence[Row],
    n_tokens: int,
    named: Sequence[int],
    top_k: int,
    notes: Sequence[str],
    rounded: Mapping[int, str] | None = None,
) -> list[Part]:
    """Return the whole report, as texts and tables."""
    warned = alarm(rows, rounded)
    parts: list[Part] = [
        *warned,
        headline(rows) + "\n(slot accuracy: selected experts named; in parentheses, whole "
        "routings)",
        denominators(rows),
        layer_table(rows, n_tokens),
    ]
    if list(named) != [top_k]:
        parts.append(named_table(rows, named))
    if agreement := route_ahead(rows):
        parts.append(agreement)
    parts.append("\n".join(s for s in sentences(rows, rounded=rounded) if s not in warned))
    if notes:
        parts.append("\n".join(notes))
    return parts

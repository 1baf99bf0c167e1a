"""The accuracy report as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.figures import counted, first_of, joined
from tracekit.figures import percent as percent_of
from tracekit.predictors import PREDICTORS
from tracekit.scoring.training import Entry

Record = dict[str, Any]
# Rounding gate inputs to 8 bits turned at most 1 slot in 50 where it was tried.
LEAST_AFTER_ROUNDING = 0.9
# The control, the floor, and what has seen the routings that it names.
NO_RIVALS = ("ctrl", "random-guess", "oracle", "static-hot-insample")
SHORT = {
    "stale-gate": "stale",
    "prev-token": "prev",
    "static-hot": "hot",
    "static-hot-insample": "hot*",
    "random-guess": "random",
    "stale-gate-renorm": "renorm",
    "stale-gate-fit": "fit",
    "embedding-gate": "embed",
    "token-table": "table",
    "layer-lag": "lag",
}


def percent(rate: float | None) -> str:
    """Write an accuracy in percent, with one digit."""
    return percent_of(rate, 1)


def label(record: Record) -> str:
    """Name a predictor, with its horizon if it is not 1."""
    horizon = record["horizon"]
    return record["predictor"] + (f" at horizon {horizon}" if horizon not in (None, 1) else "")


def _short(record: Record) -> str:
    name = SHORT.get(record["predictor"], record["predictor"])
    return name + (f"+{record['horizon']}" if record["horizon"] not in (None, 1) else "")


def headline(records: Sequence[Record]) -> str:
    """Return one line: slot accuracy and, in parentheses, whole routings."""
    return " | ".join(
        f"{label(r)} {percent(r['slot_accuracy'])} % ({percent(r['exact_rate'])} %)"
        for r in records
    )


def alarm(records: Sequence[Record], rounded: Mapping[int, str] | None = None) -> list[str]:
    """Return the sentence about a control below 100 %, or nothing.

    Parameters
    ----------
    records : sequence of dict
    rounded : mapping of int to str, optional
        The types of routers for which llama.cpp rounds the gate input, by layer.
    """
    for record in records:
        if record["predictor"] != "ctrl" or record["hits"] == record["slots"]:
            continue
        bad = [x for x in record["layers"] if x["hits"] < x["slots"]]
        where = first_of([f"{x['layer']} ({percent(x['slot_accuracy'])} %)" for x in bad])
        missed = record["routings"] - record["exact"]
        rate = f"{percent(record['slot_accuracy'])} %"
        if record["near_ties"] == missed:
            return [
                f"CTRL IS BELOW 100 %: the fresh-gate control names {rate} of the selected "
                f"experts, but all {missed} routings it misses are near ties (layers {where}), "
                "which rounding decides."
            ]
        return [
            f"CTRL IS BELOW 100 %: the fresh-gate control names only {rate} of the selected "
            f"experts, in layers {where}; {_causes(bad, rounded or {})}: read the other figures "
            "against ctrl, not "
            f"against 100 %. Of {missed} routings it misses, {record['near_ties']} are near ties."
        ]
    return []


def _causes(layers: Sequence[Record], rounded: Mapping[int, str]) -> str:
    """Say why the control may miss experts in `layers`."""
    types = {rounded.get(layer["layer"]) for layer in layers}
    names = sorted(name for name in types if name is not None)
    causes = [
        "the gate inputs are kept as f16 and their rounding decides",
        "the recording is wrong",
        "the model selects by a rule that the trace does not describe",
    ]
    if len(names) == len(types):
        by_product = (
            f"their routers are stored as {joined(names)}, and llama.cpp rounds the gate input for "
            "the product with such a matrix, which the control does not"
        )
        if min(layer["slot_accuracy"] for layer in layers) >= LEAST_AFTER_ROUNDING:
            return by_product
        causes[0] = by_product
    return ", or ".join(causes)


def sentences(
    records: Sequence[Record],
    advice: str | None = None,
    rounded: Mapping[int, str] | None = None,
) -> list[str]:
    """Return what the figures say, and no more, in two sentences; before them a broken control.

    `advice` says where to see what acting on a prediction does; by default, how to replay it.
    `rounded` is as for `alarm`.
    """
    if advice is None:
        advice = (
            f"replay with --policy lru,retention,prefetch{_acting_on(records)} to see what acting "
            "on it does to hits and read bytes"
        )
    return [
        *alarm(records, rounded),
        *_layers_below(records),
        "Accuracy is not speed: these figures say how much of the routing is known early, not that "
        f"knowing it makes a token faster; {advice}.",
    ]


def _acting_on(records: Sequence[Record]) -> str:
    """Name the predictor to act on, where the one that policies take by default is not scored."""
    names = [r["predictor"] for r in records if r["slots"] and r["predictor"] not in NO_RIVALS]
    able = [name for name in names if name in PREDICTORS and PREDICTORS.find(name).in_time]
    if "stale-gate" in able or not able:
        return ""
    # What the token before used is mostly in the cache: acting on that seldom changes anything.
    best = max(able, key=lambda name: (name != "prev-token", _accuracy(records, name)))
    return "".join(f" --param {policy}.predictor={best}" for policy in ("retention", "prefetch"))


def _accuracy(records: Sequence[Record], name: str) -> float:
    return max(r["slot_accuracy"] for r in records if r["predictor"] == name and r["slots"])


def _layers_below(records: Sequence[Record]) -> list[str]:
    """Name the layers whose interval lies below the overall figure of the first predictor."""
    scored = [r for r in records if r["predictor"] not in ("ctrl", "random-guess") and r["slots"]]
    if not scored:
        return []
    record = scored[0]
    overall = record["slot_accuracy"]
    said = f"{label(record)} names {percent(overall)} % of the selected experts"
    previous = next((r for r in scored[1:] if r["predictor"] == "prev-token"), None)
    if previous:
        rate = percent(previous["slot_accuracy"])
        said += f" where repeating the previous token names {rate} %"
    layers = [x for x in record["layers"] if x["ci95"]]
    below = [x for x in layers if x["ci95"][1] < overall]
    if below:
        below.sort(key=lambda x: x["slot_accuracy"])
        where = first_of([f"{x['layer']} ({percent(x['slot_accuracy'])} %)" for x in below])
        said += (
            f"; {len(below)} of its {len(layers)} layers lie below that with their whole 95 % "
            f"interval, lowest first: {where}"
        )
    elif layers:
        said += "; no layer's 95 % interval lies below that"
    return [f"{said}."]


def route_ahead(records: Sequence[Record]) -> str:
    """Return what routing by each guess would keep of the model's own routing, or nothing."""
    lines = []
    for r in records:
        if r["horizon"] is None or not r["slots"]:
            continue
        mass = "" if r["gate_mass"] is None else f", {percent(r['gate_mass'])} % of router weight"
        lines.append(
            f"  {label(r)}: {percent(r['slot_accuracy'])} % of selected experts{mass}, "
            f"{percent(r['exact_rate'])} % of routings unchanged"
        )
    if not lines:
        return ""
    return "\n".join(["route-ahead agreement, if the model were routed by the guess:", *lines])


def fit_sentences(entries: Sequence[Entry]) -> list[str]:
    """Return what each fit cost, and where it fell back."""
    found = []
    for entry in entries:
        if entry.fit is None:
            continue
        horizon = entry.horizon if entry.horizon not in (None, 1) else None
        name = label({"predictor": entry.predictor.name, "horizon": horizon})
        size = entry.fit.size_bytes
        written = f"{size / 1024:.1f} KiB" if size < 1 << 20 else f"{size / (1 << 20):.1f} MiB"
        notes = [*entry.fit.notes]
        if entry.folds.holds_out and entry.folds.n_groups < len(entry.folds.group):
            notes.append(f"its turns were held out in {entry.folds.n_groups} groups")
        extra = "".join(f"; {note}" for note in notes)
        others = ", each turn scored by what others taught," if entry.folds.holds_out else ""
        found.append(
            f"{name} learned from {entry.fit.rows} decoded tokens{others} in "
            f"{entry.fit.seconds:.1f} s and would take {written} on a device{extra}."
        )
    return found


def denominators(records: Sequence[Record]) -> str:
    """Return what each figure is of, and what was unscored."""
    parts = []
    for r in records:
        ci = r["ci95"]
        interval = "" if ci is None else f", 95 % interval {percent(ci[0])} to {percent(ci[1])} %"
        ties = f", {counted(r['near_ties'], 'near tie')} missed" if r["near_ties"] else ""
        parts.append(
            f"  {label(r)}: {r['routings']} routings, {r['slots']} slots, "
            f"{r['unscored']} unscored{interval}{ties}"
        )
    return "scored:\n" + "\n".join(parts)


def layer_table(records: Sequence[Record], n_tokens: int) -> str:
    """Return slot accuracy by layer in percent; ``-`` where nothing was scored."""
    header = ["layer", *map(_short, records), "tokens"]
    rows = [header]
    for i, layer in enumerate(records[0]["layers"]):
        cells = [percent(r["layers"][i]["slot_accuracy"]) for r in records]
        rows.append([str(layer["layer"]), *cells, str(n_tokens)])
    return _aligned(rows)


def named_table(records: Sequence[Record], named: Sequence[int]) -> str:
    """Return recall and gate mass in percent by how many experts are named."""
    rows = [["named", *(f"{m}" for m in named), *(f"mass {m}" for m in named)]]
    for r in records:
        recalls = [percent(r["recall"][str(m)]) for m in named]
        rows.append([_short(r), *recalls, *(percent(r["mass_named"][str(m)]) for m in named)])
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
    )


def text(
    records: Sequence[Record],
    n_tokens: int,
    named: Sequence[int],
    top_k: int,
    notes: Sequence[str],
    rounded: Mapping[int, str] | None = None,
) -> str:
    """Return the whole report."""
    first = alarm(records, rounded)
    parts = [
        *first,
        headline(records) + "\n(slot accuracy: selected experts named; in parentheses, whole "
        "routings)",
        denominators(records),
        layer_table(records, n_tokens),
    ]
    if list(named) != [top_k]:
        parts.append(named_table(records, named))
    if agreement := route_ahead(records):
        parts.append(agreement)
    parts.append("\n".join(s for s in sentences(records, rounded=rounded) if s not in first))
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)

"""What ``tracekit replay`` says of each trace, and all of it written in one form.

In: the results of a replay and of predictors, or what workers made of them. Out: one table after the
other, one JSON object, or the rows of one table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit.cli.output import Output, flat_records

if TYPE_CHECKING:
    from tracekit.replaying import ReplayResult
    from tracekit.scoring import PredictResult
    from tracekit.studies.replays import Forms

_IDENTITY = ("policy", "params", "cache_bytes", "cache_mib", "cache_fraction", "cache_slots")


@dataclass(frozen=True)
class Said:
    """What is said of one trace, in each form.

    Attributes
    ----------
    trace : str
    text : str
    document : mapping
    records : list of dict
        Rows of a flat table.
    notes : list of str
        Sentences; what is wrong with the trace was printed when it was opened.
    """

    trace: str
    text: str
    document: Mapping[str, Any]
    records: list[dict[str, Any]]
    notes: list[str]


def said(replayed: "ReplayResult | None", scored: "PredictResult | None", per_layer: bool) -> Said:
    """Return what the results say, of which one at least is there."""
    from tracekit.cli.predict import records

    results = [result for result in (replayed, scored) if result is not None]
    rows = [] if replayed is None else flat_records(replayed.records, _IDENTITY)
    if scored is not None:
        rows += records(scored.rows, per_layer)
    trace = results[0].trace
    return Said(
        trace.name,
        "\n\n".join(result.to_text() for result in results),
        _document([result.to_json() for result in results]),
        rows,
        _unprinted([note for result in results for note in result.notes], trace.warnings),
    )


def said_by_worker(trace: str, forms: "Forms") -> Said:
    """Return what a worker made of `trace`."""
    printed = [text for texts in forms.warnings.values() for text in texts]
    return Said(
        trace,
        forms.text,
        forms.document,
        flat_records(forms.records, _IDENTITY),
        _unprinted(forms.notes, printed),
    )


def write(destination: Output, traces: Sequence[Said]) -> None:
    """Write what is said of one trace; of several, rows and notes name the trace."""
    if len(traces) == 1:
        (one,) = traces
        document, records, notes = one.document, one.records, one.notes
    else:
        document = {
            "schema": "tracekit.replays/1",
            "replays": [each.document for each in traces],
        }
        records = [{"trace": each.trace, **row} for each in traces for row in each.records]
        notes = list(
            dict.fromkeys(f"{each.trace}: {note}" for each in traces for note in each.notes)
        )
    destination.write(
        table=lambda: "\n\n\n".join(each.text.rstrip("\n") for each in traces),
        document=lambda: document,
        records=lambda: records,
        notes=notes,
    )


def _unprinted(notes: Sequence[str], printed: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(note for note in notes if note not in printed))


def _document(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON objects of results about one trace as one."""
    document = documents[0]
    for more in documents[1:]:
        document = {
            **document,
            "config": {**document["config"], **more["config"]},
            "notes": list(dict.fromkeys([*document["notes"], *more["notes"]])),
            "results": [*document["results"], *more["results"]],
        }
    return document

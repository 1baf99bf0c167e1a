"""Write the reference pages of this folder from the code: ``python docs/make.py``.

In come the command line, the registries and the declared columns; out come Markdown pages. A test
keeps the pages equal to the code.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import forms
from trace_format import files_of_a_trace, trace_json

from tracekit.cli.app import COMMANDS, app
from tracekit.cli.plot import OPTIONS
from tracekit.cli.policies import FLAGS, kind_of
from tracekit.docstrings import meanings, prose
from tracekit.exports import EXPORTS
from tracekit.figures import Figure, columns_of
from tracekit.formats import COUNTS, FORMATS
from tracekit.plots.kinds import KINDS
from tracekit.policies import POLICIES
from tracekit.predictors import PREDICTORS, LearnedPredictor, OnlinePredictor
from tracekit.predictors.base import Predictor
from tracekit.replaying import rows as replayed
from tracekit.replaying.times import RowTime
from tracekit.scoring import rows as scored

HERE = Path(__file__).resolve().parent
_IN_SHARES = (
    "Each MoE layer keeps to an equal share of the budget (with `--cache-slots`, to the same number of "
    "experts), so all layers together may overrun it."
)
_NO_BYPASS = "With `--bypass` it is left out: it has no meaning there."
NOTE = "<!-- Written by `python docs/make.py` from the code: change the code, not this page. -->"

_IN_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    NoneType: "none",
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def page(title: str, *parts: str) -> str:
    """Return a page: its title, and its parts with an empty line between them."""
    return "\n\n".join([NOTE, f"# {title}", *(part for part in parts if part)]) + "\n"


def help_of(*words: str) -> str:
    """Return what a command prints for ``--help``, 100 columns wide."""
    text = io.StringIO()
    with redirect_stdout(text):
        app([*words, "--help"], "tracekit", standalone_mode=False, terminal_width=100)
    return text.getvalue().strip()


def commands() -> str:
    """Return the page about the command line."""
    texts = (
        f"## {' '.join(('tracekit', *words))}\n\n```text\n{help_of(*words)}\n```"
        for words in ((), *((name,) for name in COMMANDS))
    )
    return page(
        "Commands",
        "What `tracekit --help` and `tracekit COMMAND --help` print.",
        *texts,
    )


def parameters(params: type[Any]) -> str:
    """Return the table of the parameters of a policy or predictor; nothing if it has none."""
    known = meanings(params)
    rows = [
        (f"`{each.name}`", _type_name(each.type), _default(each.default), known[each.name])
        for each in fields(params)
    ]
    return table(("parameter", "type", "default", "meaning"), rows) if rows else ""


def _default(value: Any) -> str:
    if value is MISSING:
        return "-"
    text = str(value)
    return f"`{text.lower() if value is None or isinstance(value, bool) else text}`"


def _type_name(annotation: Any) -> str:
    parts = get_args(annotation) or (annotation,)
    return " or ".join(_IN_WORDS[part] for part in parts)


def columns(figures: Iterable[Figure], kind: str = "column") -> str:
    """Return the table of declared columns; nothing if there are none."""
    rows = [(f"`{f.name}`", f.unit.value, _yes(f.nullable), f.means) for f in figures]
    return table((kind, "unit", "can be null", "meaning"), rows) if rows else ""


def policies() -> str:
    """Return the page about the cache policies."""
    sections = (
        "\n\n".join(
            filter(
                None,
                (
                    f"## {cls.name}",
                    f"*{kind_of({flag: getattr(cls, flag) for flag in FLAGS})}* · {cls.summary}",
                    prose(cls),
                    _IN_SHARES if cls.in_shares else "",
                    "" if cls.can_bypass else _NO_BYPASS,
                    parameters(cls.Params),
                    columns(cls.counters, "counter"),
                ),
            )
        )
        for cls in POLICIES
    )
    return page(
        "Cache policies",
        "`tracekit replay TRACE --policy NAME` replays a trace through each of them; set a parameter "
        "with `--param NAME.PARAMETER=VALUE`. An *online* policy is one that an engine can run; "
        "*offline*: it knows the future; *lossy*: it changes what the model computes; "
        "*speculative*: it reads experts before anything asks for them; *needs predictor*: it acts "
        "on the guesses of a [predictor](predictors.md); *needs popularity*: it goes by how often each "
        "expert was used on other turns, with `--train` on another trace, with `--pin-from` in a file of "
        "counts or another trace; *stochastic*: it draws random numbers.",
        "Besides the [columns that every result has](columns.md), some policies give counters of "
        "their own.",
        *sections,
    )


def predictors() -> str:
    """Return the page about the predictors."""
    sections = (
        "\n\n".join(
            filter(
                None,
                (
                    f"## {cls.name}",
                    f"{cls.summary}",
                    prose(cls),
                    _facts_of(cls),
                    parameters(cls.Params),
                ),
            )
        )
        for cls in PREDICTORS
    )
    return page(
        "Predictors",
        "`tracekit predict TRACE --predictor NAME` scores each of them; set a parameter with "
        "`--param NAME.PARAMETER=VALUE`. The policies `retention` and `prefetch` act on the guesses "
        "of one: `--param prefetch.predictor=NAME`.",
        *sections,
    )


def _facts_of(cls: type[Predictor]) -> str:
    needs = ", ".join(f"`{name}`" for name in cls.needs) or "only the selected experts"
    facts = [
        f"columns that it needs: {needs}",
        f"layers ahead: {_ahead(cls)}",
    ]
    if issubclass(cls, LearnedPredictor):
        where = "the routings that it is scored on" if cls.in_sample else "other turns"
        facts.append(f"learned on {where}")
    if issubclass(cls, OnlinePredictor):
        facts.append("learned while the run goes on, prompts too; `--train` is what ran before")
    if cls.is_control:
        facts.append("a control: it must name 100 % of what the model selects")
    elif cls.knows_answer:
        facts.append("it has seen what it predicts, so it is never called the best")
    if cls.is_floor:
        facts.append("what a guess without any knowledge reaches")
    facts.append(f"a policy can act on it: {_yes(cls.in_time)}")
    facts.append(f"scored where no predictor is named: {_yes(cls.by_default)}")
    return "\n".join(f"- {fact}" for fact in facts)


def _ahead(cls: type[Predictor]) -> str:
    if not cls.has_horizon:
        return "it has no horizon"
    before = ", before the token has begun too (`token`)" if cls.looks_before_token else ""
    return f"as `--horizon` says{before}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def plots() -> str:
    """Return the page about the kinds of plot."""
    rows = [
        (
            f"`{kind.name}`",
            kind.summary,
            ", ".join(f"`{OPTIONS[name]}`" for name in kind.reads) or "-",
        )
        for kind in KINDS.values()
    ]
    return page(
        "Plots",
        "`tracekit plot KIND TRACE -o FILE` draws a picture (`.png`, `.svg`, `.pdf`) or writes the "
        "numbers behind it (`.csv`, `.parquet`). Every kind takes `--seed`, `--jobs`, `--dpi` and "
        "`--force`; the table says which other options a kind reads.",
        table(("kind", "shows", "options"), rows),
        "In Python, `tracekit.plots` has one function for each picture: it takes a DataFrame of "
        "`tracekit.analysis` and returns a matplotlib `Axes`.",
    )


# Results in the order of the page: title, text, and the dataclass that declares the columns.
RESULTS: tuple[tuple[str, str, type], ...] = (
    (
        "A replay",
        "One row for each policy, its parameters and its budget: `tracekit replay --format csv`, "
        "`results` in JSON, `tracekit.replay(…).frame`. [Counters of policies](policies.md) follow "
        "these columns.",
        replayed.Row,
    ),
    (
        "A layer of a replay",
        "One row for each MoE layer, with `--per-layer`: after its result in CSV and Parquet, "
        "`layers` in JSON.",
        replayed.LayerRow,
    ),
    (
        "A validation",
        "With `--validate`: `validation` in JSON, `validation_lookups` and `validation_mismatches` "
        "in CSV and Parquet.",
        replayed.Validation,
    ),
    (
        "The time of a replay",
        "With `--time`: columns of each policy and budget, in every form. What the fit says whatever is "
        "replayed is `time` in `config` of JSON.",
        RowTime,
    ),
    (
        "A prediction",
        "One row for each predictor and horizon: `tracekit predict --format csv`, `results` in JSON. "
        "`--named M` adds a number to `recall` and `mass_named`: they are mappings in JSON, and "
        "columns such as `recall_8` in CSV and Parquet. The interval is `ci95` in JSON.",
        scored.Row,
    ),
    (
        "A layer of a prediction",
        "One row for each MoE layer: `layers` in JSON, and with `--per-layer` after its result in "
        "CSV and Parquet.",
        scored.LayerRow,
    ),
    (
        "What a predictor learned",
        "Of predictors that learn: `fit` in JSON, columns such as `fit_rows` in CSV and Parquet.",
        scored.Fit,
    ),
)


def result_columns() -> str:
    """Return the page about the columns of results."""
    sections = (
        f"## {title}\n\n{text}\n\n{columns(columns_of(declaring))}"
        for title, text, declaring in RESULTS
    )
    return page(
        "Columns of results",
        "JSON, CSV, Parquet and DataFrames carry bytes and fractions (0 to 1); the printed tables "
        "give MiB and percent. *Decode* is of generated tokens only, *cumulative* of prompts too. "
        "`params` is a mapping in JSON and in frames, and text such as `seed=0` in CSV and Parquet.",
        *sections,
    )


def formats() -> str:
    """Return the page about the formats that can be read, and the trace format."""
    rows = [
        (f"`{cls.name}`", cls.summary, cls.told_by, cls.lacks or "-", " ".join(cls.needs) or "-")
        for cls in FORMATS
    ]
    written = [
        (
            f"`{cls.name}`",
            ", ".join(f"`{ending}`" for ending in cls.endings) or "-",
            cls.summary,
            ", ".join(cls.lacks()),
        )
        for cls in EXPORTS
    ]
    return page(
        "Formats",
        "## Files of other tools\n\nEvery command that takes a TRACE reads these files directly, and "
        "`tracekit import FILE -o NAME.trace` turns one into a trace, in bounded memory. The format "
        "is recognised by what is in a file, not by its name; a file may be compressed with gzip. "
        "Several files of one run, or a folder of them, are one trace: `tracekit import A B C`. Files of "
        "rows (csv, parquet, jsonl) may be cut anywhere: a file goes on with a prompt of those before if "
        "its rows follow them, and begins a new one otherwise; a column prompt leaves no doubt. A "
        "format that needs flags is read by `import` alone.",
        table(("format", "what", "told by", "lacks", "needs"), rows),
        f"## Sizes from the model\n\n{forms.MODEL}",
        f"## Counts\n\n{forms.COUNTS}",
        table(
            ("format", "what", "told by"),
            ((f"`{cls.name}`", cls.summary, cls.told_by) for cls in COUNTS),
        ),
        f"## Forms to write\n\n{forms.INTRODUCTION}",
        f"### npz, npy\n\n{forms.NPZ}\n\nA `.npy` file holds `experts` alone. `--axes "
        "layers,tokens,k` says another order of the axes.",
        table(
            ("what you have", "`experts`"),
            ((what, f"`{code}`") for what, code in forms.AT_HAND.items()),
        ),
        table(("array", "other names", "meaning"), forms.arrays()),
        f"### CSV\n\nA row for each selected expert.\n\n{forms.CSV}",
        table(("column", "other names", "meaning"), forms.columns()),
        f"### Parquet\n\nThe same columns; `experts` and `weights` may be lists.\n\n{forms.PARQUET}",
        f"### JSON lines\n\nThe same names as keys, an object a line.\n\n{forms.JSONL}",
        f"### layer,expert\n\n{forms.GRAPH}",
        f"### In memory\n\nNo file is needed for arrays or a DataFrame.\n\n{forms.MEMORY}",
        "## Files to write\n\n`tracekit export TRACE -o FILE` writes these; the end of the name says "
        "which, or `--format`. csv, parquet and npz are imported again and replay to the same "
        "figures; the files of libCacheSim are not read back "
        "([how its figures differ](accounting.md#beside-libcachesim)).",
        table(("format", "name ends in", "what", "leaves out"), written),
        "## The trace format\n\nA trace is a directory `NAME.trace` that is complete in itself. Any "
        "Parquet reader opens its tables.",
        *(
            f"### {name}\n\n{text}\n\n{table(('column', 'type', 'can be null', 'meaning'), found)}"
            for name, text, found in files_of_a_trace()
        ),
        "### trace.json\n\nThe facts about the model, the engine and the recording.",
        *(
            f"{title}\n\n{table(('key', 'type', 'meaning'), found)}"
            for title, found in trace_json()
        ),
    )


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "policies.md": policies,
    "predictors.md": predictors,
    "plots.md": plots,
    "columns.md": result_columns,
    "formats.md": formats,
}


def main() -> None:
    """Write every page beside this file."""
    for name, make in PAGES.items():
        (HERE / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()

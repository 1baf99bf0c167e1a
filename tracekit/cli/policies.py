"""``tracekit policies``: the policies and predictors that ``--policy`` takes, or one in full."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from textwrap import fill, indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli import completion
from tracekit.cli.console import Console
from tracekit.cli.names import find_class
from tracekit.cli.opening import open_trace
from tracekit.cli.options import (
    ForceOption,
    FormatOption,
    OptionalTraceArgument,
    OutputOption,
    QuietOption,
)
from tracekit.cli.output import Output, flat
from tracekit.figures import MIB, NONE, settings
from tracekit.table import Column, render

if TYPE_CHECKING:
    from tracekit.policies import Policy
    from tracekit.predictors import Predictor
    from tracekit.trace import Trace

# What is told of a policy or predictor, as JSON has it.
Entry = dict[str, Any]

FLAGS = ("offline", "lossy", "speculative", "needs_predictor", "needs_popularity", "stochastic")
_WIDTH = 100


def policies(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Say everything about this policy or predictor. Default: list all.",
            show_default=False,
            autocompletion=completion.policies_and_predictors,
        ),
    ] = None,
    trace: OptionalTraceArgument = None,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """List cache policies and predictors, or say everything about one.

    With NAME it prints the rule, the parameters and, for whoever writes the policy into an engine, its
    state and pseudo-code. With TRACE too it gives the size of the state for that model.
    """
    console = Console(quiet)
    destination = Output(console, output, format, force, inputs=[trace])
    from tracekit.policies import POLICIES
    from tracekit.predictors import PREDICTORS

    if name is not None:
        _write_one(destination, name, open_trace(trace, console) if trace else None)
        return
    of_policies = sorted(
        (_described(cls, FLAGS) for cls in POLICIES), key=lambda e: [e[flag] for flag in FLAGS]
    )
    of_predictors = [_described(cls, ()) for cls in PREDICTORS]
    destination.write(
        table=lambda: _table(of_policies, of_predictors),
        document=lambda: {
            "schema": "tracekit.policies/1",
            "policies": of_policies,
            "predictors": of_predictors,
        },
        records=lambda: [
            flat({"kind": kind, **entry})
            for kind, entries in (("policy", of_policies), ("predictor", of_predictors))
            for entry in entries
        ],
    )


def _described(cls: "type[Policy] | type[Predictor]", flags: tuple[str, ...]) -> Entry:
    defaults = {f.name: None if f.default is MISSING else f.default for f in fields(cls.Params)}
    return {
        "name": cls.name,
        "summary": cls.summary,
        **{flag: getattr(cls, flag) for flag in flags},
        "params": defaults,
    }


def _table(of_policies: list[Entry], of_predictors: list[Entry]) -> str:
    kind: Column[Entry] = Column("kind", kind_of, left=True)
    parameters: Column[Entry] = Column(
        "parameters", lambda e: settings(e["params"]) or NONE, left=True
    )
    summary: Column[Entry] = Column("what it does", lambda e: e["summary"], left=True)
    return "\n\n".join(
        [
            render([_name("policy"), kind, parameters, summary], of_policies),
            render([_name("predictor"), parameters, summary], of_predictors),
            "Each of them can be named in `tracekit replay TRACE --policy NAME`. Set a parameter with\n"
            "--param NAME.PARAMETER=VALUE. Name a class of your own as module:Class. Parameters of the\n"
            "predictor that a policy acts on follow its name: prefetch.predictor=oracle@accuracy=0.75.\n"
            "`tracekit policies NAME` says everything about one of them.",
        ]
    )


def _name(header: str) -> Column[Entry]:
    return Column(header, lambda e: e["name"], left=True)


def kind_of(policy: Entry) -> str:
    """Write which of `FLAGS` a policy has; one that has none is plainly online."""
    return ", ".join(flag.replace("_", " ") for flag in FLAGS if policy[flag]) or "online"


@dataclass(frozen=True)
class _Model:
    """The shape of a model, and how to call it."""

    name: str
    n_layers: int
    n_expert: int
    top_k: int

    @classmethod
    def of(cls, trace: "Trace | None") -> "_Model":
        if trace is None:
            return cls("an example", 48, 128, 8)
        name = trace.facts.model.name or trace.name
        return cls(name, len(trace.moe_layers), trace.n_expert, trace.top_k)

    def __str__(self) -> str:
        return f"{self.name}: L = {self.n_layers} MoE layers, E = {self.n_expert} experts, k = {self.top_k}"


def _write_one(destination: Output, name: str, trace: "Trace | None") -> None:
    from tracekit.docstrings import meanings, prose
    from tracekit.policies import Policy

    cls, model = find_class(name), _Model.of(trace)
    is_policy = issubclass(cls, Policy)
    entry = _described(cls, FLAGS if is_policy else ())
    entry["text"] = prose(cls)
    entry["parameters"] = meanings(cls.Params) if fields(cls.Params) else {}
    if issubclass(cls, Policy):
        state = cls.state(model.n_layers, model.n_expert, model.top_k)
        entry |= {"state": [vars(array) for array in state], "pseudo_code": cls.pseudo_code}
    destination.write(
        table=lambda: _in_full(entry, model),
        document=lambda: {
            "schema": "tracekit.policies/1",
            "model": vars(model),
            "policies" if is_policy else "predictors": [entry],
        },
        records=lambda: [
            flat({k: v for k, v in entry.items() if k not in ("state", "parameters")})
        ],
    )


def _in_full(entry: Entry, model: _Model) -> str:
    """Return everything about a policy or predictor as text."""
    kind = f" ({kind_of(entry)})" if FLAGS[0] in entry else ""
    parts = [f"{entry['name']}{kind}: {entry['summary']}", *_paragraphs(entry["text"])]
    if entry["parameters"]:
        parameters: list[Column[tuple[str, str]]] = [
            Column("parameter", lambda p: p[0], left=True),
            Column("default", lambda p: _default(entry["params"][p[0]]), left=True),
            Column("meaning", lambda p: p[1], left=True),
        ]
        parts.append(render(parameters, list(entry["parameters"].items())))
    if entry.get("state"):
        parts.append(f"What an engine keeps besides the list of residents, for {model}.")
        parts.append(_state(entry["state"]))
    if entry.get("pseudo_code"):
        parts += ["The rule for an engine:", indent(entry["pseudo_code"], "    ")]
        parts.append(
            "To check an engine that has it, record the residency of every lookup (the column residency\n"
            "of a trace) and compare lookup by lookup, at the size of the engine's cache:\n\n"
            f"    tracekit replay RUN.trace --validate --policy {entry['name']} --cache-mib MIB"
        )
    return "\n\n".join(parts)


def _paragraphs(text: str) -> list[str]:
    """Wrap the paragraphs of a docstring; those that are indented or a list stay as they are."""
    return [
        part if part.startswith((" ", "-", "*")) else fill(part, _WIDTH)
        for part in text.split("\n\n")
    ]


def _state(arrays: Sequence[Entry]) -> str:
    total = {
        "name": "in all",
        "shape": "",
        "size_bytes": sum(array["size_bytes"] for array in arrays),
        "means": "",
    }
    columns: list[Column[Entry]] = [
        Column("array", lambda a: a["name"], left=True),
        Column("numbers", lambda a: a["shape"], left=True),
        Column("MiB", lambda a: f"{a['size_bytes'] / MIB:.3f}"),
        Column("what it holds", lambda a: a["means"], left=True),
    ]
    return render(columns, [*arrays, total])


def _default(value: object) -> str:
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )

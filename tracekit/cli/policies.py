"""``tracekit policies``: list the policies and predictors that ``--policy`` takes."""

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, FormatOption, OutputOption, QuietOption
from tracekit.cli.output import Output, flat
from tracekit.figures import NONE, settings
from tracekit.table import Column, render

if TYPE_CHECKING:
    from tracekit.policies import Policy
    from tracekit.predictors import Predictor

# What is told of a policy or predictor, as JSON has it.
Entry = dict[str, Any]

FLAGS = ("offline", "lossy", "speculative", "needs_predictor", "needs_popularity", "stochastic")


def policies(
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """List cache policies and predictors."""
    destination = Output(Console(quiet), output, format, force)
    from tracekit.policies import POLICIES
    from tracekit.predictors import PREDICTORS

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
            "predictor that a policy acts on follow its name: prefetch.predictor=oracle@accuracy=0.75.",
        ]
    )


def _name(header: str) -> Column[Entry]:
    return Column(header, lambda e: e["name"], left=True)


def kind_of(policy: Entry) -> str:
    """Write which of `FLAGS` a policy has; one that has none is plainly online."""
    return ", ".join(flag.replace("_", " ") for flag in FLAGS if policy[flag]) or "online"

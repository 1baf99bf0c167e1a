"""``tracekit policies``: what can stand in ``--policy``."""

from dataclasses import MISSING, fields
from typing import Any

from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, FormatOption, OutputOption, QuietOption
from tracekit.cli.output import Output, flat
from tracekit.figures import NONE, settings
from tracekit.table import Column, render

FLAGS = ("offline", "lossy", "speculative", "needs_predictor", "stochastic")


def policies(
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """List cache policies and predictors."""
    destination = Output(output, format, force)
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
        console=Console(quiet),
    )


def _described(cls: type, flags: tuple[str, ...]) -> dict[str, Any]:
    defaults = {f.name: None if f.default is MISSING else f.default for f in fields(cls.Params)}
    return {
        "name": cls.name,
        "summary": cls.summary,
        **{flag: getattr(cls, flag) for flag in flags},
        "params": defaults,
    }


def _table(of_policies: list[dict[str, Any]], of_predictors: list[dict[str, Any]]) -> str:
    parameters = Column("parameters", lambda e: settings(e["params"]) or NONE, left=True)
    summary = Column("what it does", lambda e: e["summary"], left=True)
    kind = Column(
        "kind",
        lambda e: ", ".join(f.replace("_", " ") for f in FLAGS if e[f]) or "online",
        left=True,
    )
    return "\n\n".join(
        [
            render(
                [Column("policy", lambda e: e["name"], left=True), kind, parameters, summary],
                of_policies,
            ),
            render(
                [Column("predictor", lambda e: e["name"], left=True), parameters, summary],
                of_predictors,
            ),
            "All of them go in `tracekit replay TRACE --policy NAME`; a parameter is set with\n"
            "--param NAME.PARAMETER=VALUE; your own class is named module:Class. The predictor that\n"
            "a policy acts on takes its parameters behind it: prefetch.predictor=oracle@accuracy=0.75.",
        ]
    )

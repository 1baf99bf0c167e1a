"""`advise`: what to build for a model on a device, in plain findings with their evidence."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, indent
from typing import Any

from tracekit.advice.ahead import of_predictions
from tracekit.advice.cache import of_cache
from tracekit.advice.findings import Finding
from tracekit.advice.policy import of_policy
from tracekit.advice.subject import Subject, rate, round_size
from tracekit.analysis.budget import default_budget
from tracekit.analysis.closure import demand_policies
from tracekit.figures import counted, in_mib, joined
from tracekit.replaying.inputs import Kept
from tracekit.replaying.times import check_calibration
from tracekit.routing.turns import DecodedTurns
from tracekit.timing import Fit, fit
from tracekit.timing.facts import facts_of
from tracekit.trace import Trace, UsageError
from tracekit.trace.build import shown
from tracekit.trace.errors import MissingDataError
from tracekit.trace.facts import CAPTURES

_WIDTH = 100
_SEVERAL = ["prefetch.predictor", "prefetch.horizon"]
_FEW_TOKENS, _FEW_TURNS = 256, 10


@dataclass(frozen=True, eq=False)
class Advice:
    """What follows from a trace for whoever builds an engine.

    Attributes
    ----------
    subject : Subject
    findings : list of Finding
    lacking : list of str
        What the recording lacks to say more, and how to get it.
    """

    subject: Subject
    findings: list[Finding]
    lacking: list[str]

    def by_topic(self) -> list[tuple[str, list[str], list[str]]]:
        """Return the title, the sentences and the commands of each topic, in their order."""
        found = []
        for topic in dict.fromkeys(finding.topic for finding in self.findings):
            of_topic = [finding for finding in self.findings if finding.topic == topic]
            commands = dict.fromkeys(c for finding in of_topic for c in finding.commands)
            sentences = [finding.sentence for finding in of_topic]
            found.append((topic.capitalize(), sentences, [*commands]))
        return found

    def to_text(self) -> str:
        """Return the page that ``tracekit advise`` prints."""
        trace, budget = self.subject.trace, self.subject.budget
        lines = [
            f"{trace.name}: {trace.facts.model.name}, {len(trace.moe_layers)} MoE layers × "
            f"{trace.n_expert} experts, {trace.top_k} used per token and layer",
            f"cache {in_mib(budget)} of {in_mib(trace.bank_bytes)} of experts "
            f"({rate(budget / trace.bank_bytes, 0)}); one token cycle is "
            f"{in_mib(trace.token_cycle_bytes)}; {counted(trace.n_decoded, 'decoded token')}",
        ]
        parts = ["\n".join(lines)]
        for title, sentences, commands in self.by_topic():
            parts += [title, *map(_paragraph, sentences), indent("\n".join(commands), "    ")]
        if self.lacking:
            parts.append("What would say more")
            parts += [_paragraph(sentence) for sentence in self.lacking]
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the advice as a JSON object."""
        trace = self.subject.trace
        return {
            "schema": "tracekit.advise/1",
            "trace": trace.name,
            "model": trace.facts.model.name,
            "cache_bytes": self.subject.budget,
            "bank_bytes": trace.bank_bytes,
            "token_cycle_bytes": trace.token_cycle_bytes,
            "findings": [finding.to_json() for finding in self.findings],
            "lacking": self.lacking,
        }


def _paragraph(sentence: str) -> str:
    """Wrap a sentence; a number and its unit stay on one line."""
    kept = re.sub(r"(?<=\d) (?=%|MiB|ms)", "\N{NO-BREAK SPACE}", sentence)
    text = fill(kept, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return text.replace("\N{NO-BREAK SPACE}", " ")


def advise(
    trace: Trace,
    *,
    where: str | None = None,
    cache_bytes: int | None = None,
    ram_mib: float | None = None,
    calibrate: Trace | None = None,
    params: Mapping[str, Sequence[Any]] | None = None,
    kept: Kept | None = None,
) -> Advice:
    """Say what to build for this model on this device, and on what evidence.

    Parameters
    ----------
    trace : Trace
    where : str, optional
        What the commands in the findings call the trace; its name by default.
    cache_bytes : int, optional
        The cache size in question; the recorded one, or a quarter of the experts, by default.
    ram_mib : float, optional
        Memory of the device.
    calibrate : Trace, optional
        Another recording of the same model that has times.
    params : mapping, optional
        Parameters of the policies that are tried: ``{"prefetch.spec_max": [4]}``. Of prefetch, several
        predictors and horizons may be given; of all else one value.
    kept : dict, optional
        What predictors guess, as for `tracekit.replay`.

    Raises
    ------
    MissingDataError
        The sizes of experts are not known, or no token was decoded.
    UsageError
        The cache size is not below the size of all experts, or `ram_mib` is no size; or the times of
        `calibrate` cannot be fitted.
    """
    facts_of({"ram_mib": ram_mib})  # refuses what is no size
    if not (trace.layer_columns["expert_bytes"] >= 0).any():
        raise MissingDataError(
            f"{trace.name} does not say how many bytes an expert has, so nothing can be said about "
            "caches; `tracekit import` takes --model PATH or --expert-mib M."
        )
    DecodedTurns.of(trace)  # says what to do if nothing was decoded
    budget = cache_bytes
    if budget is None:
        budget = trace.budget_bytes or round_size(default_budget(trace))
    if not 0 < budget < trace.bank_bytes:
        raise UsageError(
            f"A cache of {in_mib(budget)} holds all experts or none ({in_mib(trace.bank_bytes)} of them); "
            "name a size between."
        )
    fitted, lacking = _times(trace, calibrate, ram_mib)
    calibrated_on = None if calibrate is None else calibrate.name
    name = where or trace.name
    subject = Subject(
        trace,
        name,
        budget,
        fitted,
        ram_mib,
        calibrated_on,
        _checked(params or {}),
        {} if kept is None else kept,
    )
    choice = of_policy(subject)
    findings = [
        choice.finding,
        *of_cache(subject, choice.policy, choice.best),
        *of_predictions(subject, choice.policy),
    ]
    return Advice(subject, findings, [*lacking, *_lacking_of_times(fitted), *_lacking(trace)])


def _checked(params: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Refuse parameters of policies that are not tried, and several values where one is meant."""
    tried = [*demand_policies(), "bound", "prefetch", "retention"]
    for name, values in params.items():
        owner = name.rpartition(".")[0]
        if owner not in tried:
            raise UsageError(
                f"--param is set for {shown(owner)}, which advise does not try; it tries {joined(tried)}."
            )
        if len(values) > 1 and name not in _SEVERAL:
            raise UsageError(
                f"advise takes one value of {name}, not {len(values)}; several may be given of "
                f"{joined(_SEVERAL)}."
            )
    whole = {name: [*values] for name, values in params.items()}
    if "prefetch.horizon" in whole:
        whole["prefetch.horizon"] = [_horizon(each) for each in whole["prefetch.horizon"]]
    return whole


def _horizon(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"prefetch.horizon takes whole numbers of layers, not {shown(value)}."
        ) from error


def _times(
    trace: Trace, calibrate: Trace | None, ram_mib: float | None
) -> tuple[Fit | None, list[str]]:
    """Return what the recorded times say, or why they say nothing."""
    if calibrate is not None:  # asked for: a fault in it is one of the request
        fitted = fit(calibrate, ram_mib=ram_mib)
        check_calibration(fitted, trace)
        return (fitted, []) if fitted.refusal is None else (None, [f"Time: {fitted.refusal}"])
    try:
        fitted = fit(trace, ram_mib=ram_mib)
    except (MissingDataError, UsageError) as error:
        return None, [f"Time: {error}"]
    if fitted.refusal is not None:
        return None, [f"Time: {fitted.refusal}"]
    return fitted, []


def _lacking_of_times(fitted: Fit | None) -> Sequence[str]:
    """Return what the recording whose times are taken lacks to say more of time."""
    if fitted is None:
        return []
    found = []
    if fitted.facts.mem_floor_mib is None:
        found.append(
            f"{fitted.name} does not say how much memory was free, so a cache that would leave too "
            "little is not marked; a recording of this version of tracekit does."
        )
    if fitted.facts.captured:
        copied = joined([CAPTURES[name] for name in fitted.facts.captured])
        found.append(
            f"{copied.capitalize()} were copied while {fitted.name} was timed, which makes each token "
            "longer; the times of a recording with --no-logits --no-gate-inputs, given with --calibrate, "
            "are nearer to those of an engine."
        )
    return found


def _lacking(trace: Trace) -> Sequence[str]:
    """Return what else the recording lacks."""
    found = []
    turns = len(DecodedTurns.of(trace).turn)
    if trace.n_decoded < _FEW_TOKENS:
        found.append(
            f"{counted(trace.n_decoded, 'decoded token')} make wide intervals; record {_FEW_TOKENS} or "
            "more."
        )
    if turns < _FEW_TURNS:
        found.append(
            f"{counted(turns, 'turn')}: intervals come from stretches of tokens, and a cache that is "
            f"shared between prompts is hardly tried; record {_FEW_TURNS} prompts or more."
        )
    if not trace.has("gate_input"):
        found.append(
            "There are no gate inputs, so a stale gate cannot be tried; `tracekit record` writes them."
        )
    return found

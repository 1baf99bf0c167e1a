"""``tracekit info``: what a trace holds, or a file of counts."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli import info_counts, pin_list
from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace_or_counts
from tracekit.cli.options import (
    ForceOption,
    OutputOption,
    QuietOption,
    TableOrJsonOption,
    TraceArgument,
    VerboseOption,
)
from tracekit.cli.output import Output
from tracekit.datasets import resolve
from tracekit.figures import MIB, budget_mib, counted, in_bytes, joined, mib, percent, printable
from tracekit.trace.errors import UsageError
from tracekit.trace.facts import CAPTURES
from tracekit.trace.schema import LAYER_TIMES, SINCE_VERSION_3

if TYPE_CHECKING:
    from tracekit.trace import Trace

# Columns that a trace may carry besides the routing itself.
_OPTIONAL = {
    "routing.parquet": (
        *("weights", "residency", "dropped", "logits", "gate_input"),
        *LAYER_TIMES,
    ),
    "steps.parquet": (
        *("token", "piece", "embedding", "wall_ms", "io_ms", "stall_ms", "read_bytes"),
        *SINCE_VERSION_3,
    ),
    "layers.parquet": ("router_matrix", "router_bias", "selection_bias", "norm_weight"),
}
# Without these some questions have no answer. The other columns are absent from many sound traces.
_WORTH_HAVING = ("weights", "residency", "logits", "gate_input", "embedding", "router_matrix")
_SLOTS = {
    "sorted": "in the order of the expert ids, so their rank is not known",
    "unknown": "in an order that the source does not say, so their rank is not known",
}

_PLACE = ("turn", "pass", "step", "layer", "expert")

Facts = Mapping[str, Any]


def info(
    trace: TraceArgument,
    cache_slots: Annotated[
        int | None,
        typer.Option(
            "--cache-slots",
            metavar="N",
            help="Also list the N experts of every MoE layer that are used most, to pin them.",
        ),
    ] = None,
    cache_mib: Annotated[
        float | None,
        typer.Option(
            "--cache-mib", metavar="MIB", help="Also list the most used experts that fit this size."
        ),
    ] = None,
    expert_mib: Annotated[
        float | None,
        typer.Option(
            "--expert-mib", metavar="M", help="Size of one expert in MiB, for --cache-mib."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="PATH",
            parser=resolve,
            help="The model's file or folder, for the sizes of its experts.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare the files with the digest that the trace carries, and what the engine recorded "
            "of its cache with a replay; keep in the trace what comes out.",
        ),
    ] = False,
    format: TableOrJsonOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show what a trace holds: model, tokens, columns; or what a file of counts does.

    Of a file of counts, and with a budget of a trace too, it estimates what pinning the most used
    experts would hit.
    """
    console = Console(quiet, verbose)
    destination = Output(console, output, format, force, formats=("table", "json"), inputs=[trace])
    asked = pin_list.Asked(cache_mib, cache_slots, expert_mib, model)
    from tracekit.formats import ExpertCounts

    opened = open_trace_or_counts(trace, console, anew=verify)
    if isinstance(opened, ExpertCounts):
        if verify:
            raise UsageError(f"{trace} holds counts and no cache to verify; leave --verify out.")
        counts, sizes = asked.sized(opened, console)
        assert isinstance(counts, ExpertCounts)
        facts = info_counts.facts_of(counts)
        facts["pinning"] = pin_list.facts_of(counts, sizes, asked)
        destination.write(
            table=lambda: _table(info_counts.lines_of(facts)),
            document=lambda: {"schema": "tracekit.counts/1", **facts},
        )
        return
    from tracekit.routing.residency import recorded_rates, why_unverified
    from tracekit.trace import describe

    if verify:
        _verify_digest(opened, console)
    facts = describe(opened) | recorded_rates(opened)
    unverified = None if facts["agreement"] else why_unverified(opened)
    lines = [*_lines(facts, unverified)]
    if asked.has_budget:
        facts["pinning"] = pin_list.facts_of(*asked.sized(opened, console), asked)
        lines += pin_list.lines_of(facts["pinning"])
    elif expert_mib is not None or model is not None:
        raise UsageError(
            "--expert-mib and --model size a list of experts to pin; add --cache-mib, or write the "
            "sizes into a trace with tracekit import."
        )
    destination.write(
        table=lambda: _table(lines),
        document=lambda: {"schema": "tracekit.info/1", **facts},
    )
    if verify:
        _keep(opened, console)


def _table(lines: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<9} {printable(text)}" for name, text in lines)


def _verify_digest(trace: "Trace", console: Console) -> None:
    """Compare the files with the digest of the trace; write it into a trace that carries none."""
    from tracekit.trace.folder import keep_digest
    from tracekit.trace.seal import verified_digest

    found = verified_digest(trace)
    if found is None:
        return
    if found == trace.facts.digest:
        console.note(f"{trace.name} holds what its digest says.")
    elif trace.path is None:
        console.note(f"{trace.name} carries no digest to compare; its files have {found.sha256}.")
    else:
        keep_digest(trace.path, found)
        console.note(f"{trace.name} carries its digest now.")


def _keep(trace: "Trace", console: Console) -> None:
    """Write what came out of a comparison into the trace, where there is one to write into."""
    from tracekit.routing.residency import why_unverified
    from tracekit.trace.folder import keep_agreement

    agreement = trace.facts.current_agreement
    if agreement is None:
        console.note(f"{trace.name} cannot be verified: {why_unverified(trace)}.")
    elif trace.path is None:
        console.note(f"{trace.name} has no place for it; `tracekit import` makes a trace that has.")
    else:
        keep_agreement(trace.path, agreement)
        console.note(f"Kept in {trace.path}: {agreement.compared} differ.")


def _lines(facts: Facts, unverified: str | None) -> Iterator[tuple[str, str]]:
    whole = "complete" if facts["complete"] else "incomplete"
    ended = f", ended: {facts['ended']}" if facts["ended"] else ""
    created = f", created {facts['created']}" if facts["created"] else ""
    yield "trace", f"{facts['path']} ({facts['source']}, {whole}{ended}{created})"
    yield "model", _model(facts["model"], facts["inferred"])
    yield "experts", _experts(facts)
    yield "engine", _engine(facts)
    yield "tokens", _tokens(facts)
    if costs := _costs(facts):
        yield "decoding", costs
    if run := _run(facts):
        yield "run", run
    yield "routings", f"{facts['routings_prefill']} prefill, {facts['routings_decode']} decode"
    if facts["recorded_lookups"] is not None:
        yield (
            "recorded",
            f"hit rate {percent(facts['recorded_hit_rate_decode'])} % decode "
            f"({facts['recorded_lookups_decode']} lookups), "
            f"{percent(facts['recorded_hit_rate_cumulative'])} % cumulative "
            f"({facts['recorded_lookups']} lookups)",
        )
    if facts["agreement"] is not None:
        yield "replayed", _agreement(facts["agreement"])
    elif unverified and facts["recorded_lookups"] is not None:
        yield "replayed", f"not compared with the recording: {unverified}"
    carried = [n for file, names in _OPTIONAL.items() for n in names if n in facts["columns"][file]]
    yield "carries", ", ".join(carried) or "-"
    if facts["slot_order"] != "ranked":
        yield "slots", _SLOTS[facts["slot_order"]]
    for name, how in facts["inferred"].items():
        yield "inferred", f"{name}: {how}"
    yield "lacks", ", ".join(name for name in _WORTH_HAVING if name not in carried) or "-"
    yield "digest", f"sha256 {facts['digest']}"


def _agreement(found: Facts) -> str:
    from tracekit.trace.agreement import Agreement

    agreement = Agreement(**found)
    text = f"{agreement.replayed}: {agreement.compared} differ from the recording"
    first = agreement.first_mismatch
    if first is None:
        return text
    place = ", ".join(f"{name} {value}" for name, value in first.items() if name in _PLACE)
    text += f", the first at {place}: {first['recorded']} recorded, {first['replayed']} replayed"
    return f"{text}; {agreement.likely_reason or 'no reason was found'}"


def _tokens(facts: Facts) -> str:
    text = (
        f"{facts['tokens_prefill']} prefill, {facts['tokens_decode']} decode; "
        f"{counted(facts['turns'], 'turn')}, {counted(facts['passes'], 'pass', 'passes')}"
    )
    if _has_drafts(facts):
        each = (facts["tokens_decode"] + facts["tokens_rejected"]) / facts["passes_decode"]
        text += (
            f"; {each:.2f} tokens per decode pass, "
            f"{counted(facts['tokens_rejected'], 'drafted token')} rejected"
        )
    if facts["tokens_cancelled"]:
        text += f"; {counted(facts['tokens_cancelled'], 'prompt token')} cancelled"
    return text


def _has_drafts(facts: Facts) -> bool:
    """Say whether some decode pass had more than one token, or one that did not stay."""
    kept, rejected, passes = (
        facts[n] for n in ("tokens_decode", "tokens_rejected", "passes_decode")
    )
    return bool(rejected or kept > passes)


def _costs(facts: Facts) -> str:
    """Write the mean time and bytes of a decode pass, and of a kept token where that is another."""

    def of(kind: str) -> str:
        time, read = (facts[f"{name}_per_{kind}_decode"] for name in ("wall_ms", "read_bytes"))
        parts = [] if time is None else [f"{time:,.3g} ms"]
        return " and ".join([*parts, *([] if read is None else [f"{mib(read)} MiB read"])])

    if not of("token"):
        return ""
    if not _has_drafts(facts):
        return f"{of('token')} per token, on average"
    return f"{of('pass')} per pass, {of('token')} per kept token, on average"


def _run(facts: Facts) -> str:
    """Write what the recording says of the run besides times and bytes."""
    parts = []
    if facts["run_s"] is not None:
        parts.append(f"{facts['run_s']:,.3g} s")
    if facts["cpu_ms_per_token_decode"] is not None:
        parts.append(f"{facts['cpu_ms_per_token_decode']:,.3g} ms of CPU time per decoded token")
    if facts["evict_ms_per_token_decode"] is not None:
        parts.append(f"{facts['evict_ms_per_token_decode']:,.3g} ms of evicting")
    if facts["mem_available_bytes_min"] is not None:
        left = facts["mem_available_bytes_min"] / MIB
        parts.append(f"at least {left:,.0f} MiB of memory left")
    if facts["major_faults"] is not None:
        parts.append(counted(facts["major_faults"], "major fault"))
    if facts["captured"] is not None:
        copied = joined([CAPTURES[name] for name in facts["captured"]]) or "nothing"
        parts.append(f"{copied} copied while timed")
    return "; ".join(parts)


def _model(model: Facts, inferred: Facts) -> str:
    guessed = " or more" if "n_expert" in inferred else ""
    parts = [
        f"{model['name']} ({model['arch']}), {counted(model['n_layer'], 'layer')}, "
        f"{model['moe_layers']} of them MoE: {model['n_expert']} experts{guessed}, "
        f"{model['top_k']} used per token"
    ]
    if model["quantisation"]:
        parts.append(model["quantisation"])
    if model["gating"]:
        parts.append(f"{model['gating']} gating")
    if model["n_group"] > 1:
        parts.append(f"{model['n_group_used']} of {model['n_group']} expert groups")
    return "; ".join(parts)


def _experts(facts: Facts) -> str:
    if facts["bank_bytes"] is None:
        return (
            "sizes unknown, so caches are replayed at --cache-fraction alone; `tracekit import` "
            "takes --model and --expert-mib"
        )
    sizes = dict.fromkeys(in_bytes(facts[f"expert_bytes_{end}"]) for end in ("min", "max"))
    return (
        f"{' to '.join(sizes)} each, bank {mib(facts['bank_bytes'])} MiB, "
        f"token cycle {mib(facts['token_cycle_bytes'])} MiB (what one token touches over all layers)"
    )


def _engine(facts: Facts) -> str:
    engine = facts["engine"]
    if engine is None:
        return "-"
    parts = [" ".join(filter(None, (engine["name"], engine["version"])))]
    if facts["budget_bytes"] is not None:
        policy = engine["cache_policy"] or "expert"
        parts.append(f"{policy} cache of {budget_mib(facts['budget_bytes'])} MiB")
    elif facts["source"] == "recorded":
        parts.append("all experts in memory")
    else:
        parts.append("cache size unknown; `tracekit import --cache-mib` takes it")
    if engine["io_threads"]:
        direct = ", direct" if engine["direct_io"] else ""
        parts.append(f"{engine['io_threads']} reads at a time{direct}")
    return "; ".join(parts)

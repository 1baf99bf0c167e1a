"""What ``tracekit info`` says of pinning: what the hottest experts would hit, and which fit a budget.

In: a trace or counts, a budget. Out: facts for JSON, and lines of text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.figures import MIB, counted, mib, percent
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.formats import ExpertCounts
    from tracekit.trace import Trace

_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75)
_MAX_MIB = 10**12


@dataclass(frozen=True)
class Asked:
    """What a user asks about pinning, and says of the sizes.

    Attributes
    ----------
    cache_mib, cache_slots : float, int or None
        A budget in MiB, or in experts of every MoE layer.
    expert_mib : float or None
    model : Path or None
    """

    cache_mib: float | None = None
    cache_slots: int | None = None
    expert_mib: float | None = None
    model: Path | None = None

    def __post_init__(self) -> None:
        if self.cache_mib is not None and self.cache_slots is not None:
            raise UsageError("A budget is given as --cache-mib or as --cache-slots, not as both.")
        if self.cache_mib is not None and not 0 <= self.cache_mib <= _MAX_MIB:
            raise UsageError(
                f"--cache-mib takes a size in MiB from 0 to 1e12, not {self.cache_mib:g}."
            )

    @property
    def has_budget(self) -> bool:
        """Whether a list of experts is asked for."""
        return self.cache_mib is not None or self.cache_slots is not None

    def sized(
        self, opened: "Trace | ExpertCounts", console: Console
    ) -> "tuple[Trace | ExpertCounts, int | Mapping[int, int] | None]":
        """Return what was opened, with what the model's file says, and the bytes of experts."""
        from tracekit.formats import ExpertCounts, ImportOptions
        from tracekit.formats.counts.with_model import with_model
        from tracekit.model_files import read_model

        given = ImportOptions(expert_mib=self.expert_mib).expert_bytes
        if self.model is None:
            return opened, given
        sizes = read_model(self.model, opened.top_k)
        if isinstance(opened, ExpertCounts):
            opened = with_model(opened, sizes)
        if sizes.estimated is not None and given is None:
            console.note(f"The size of an expert is {sizes.estimated}.")
        by_layer = {row["layer"]: row["expert_bytes"] for row in sizes.layers}
        return opened, by_layer if given is None else given


def facts_of(
    opened: "Trace | ExpertCounts", sizes: "int | Mapping[int, int] | None", asked: Asked
) -> dict[str, Any]:
    """Return what pinning the hottest experts would hit at several budgets, and those that fit one."""
    from tracekit.analysis.pinning import ESTIMATE, hottest_experts, that_fit

    hottest = hottest_experts(opened, sizes)
    numbers = dict.fromkeys(max(1, round(share * len(hottest))) for share in _SHARES)
    budgets = [_at(hottest.head(number)) for number in numbers]
    facts: dict[str, Any] = {"basis": ESTIMATE, "experts": len(hottest), "budgets": budgets}
    if asked.has_budget:
        budget = None if asked.cache_mib is None else round(asked.cache_mib * MIB)
        fitting = that_fit(hottest, asked.cache_slots, budget)
        columns = ["layer", "expert", "selections", "share"]
        facts["fitting"] = {
            "cache_bytes": budget,
            "cache_slots": asked.cache_slots,
            **_at(fitting),
            "hottest": fitting[columns].to_dict("records"),
        }
    return facts


def _at(pinned: "pd.DataFrame") -> dict[str, Any]:
    if pinned.empty:
        return {"pinned": 0, "pinned_bytes": 0, "hit_rate": 0.0}
    last = pinned.iloc[-1]
    size = last["pinned_bytes"]
    return {
        "pinned": int(last["pinned"]),
        "pinned_bytes": None if size != size else int(size),
        "hit_rate": float(last["hit_rate"]),
    }


def lines_of(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give the lines about pinning."""
    yield "pinning", f"hits with the hottest experts in memory, {facts['basis']}"
    for each in facts["budgets"]:
        share = percent(each["pinned"] / facts["experts"], 0)
        yield (
            "",
            f"{counted(each['pinned'], 'expert')}, {share} %{_size(each)}: about "
            f"{percent(each['hit_rate'], 1)} % of the lookups",
        )
    if "fitting" in facts:
        fitting = facts["fitting"]
        yield (
            "pinned",
            f"{counted(fitting['pinned'], 'expert')}{_size(fitting)}: about "
            f"{percent(fitting['hit_rate'], 1)} % of the lookups",
        )
        by_layer: dict[int, list[str]] = {}
        for each in fitting["hottest"]:
            by_layer.setdefault(each["layer"], []).append(str(each["expert"]))
        for layer in sorted(by_layer):
            yield "", f"layer {layer}: {' '.join(by_layer[layer])}"


def _size(pinned: Mapping[str, Any]) -> str:
    return "" if pinned["pinned_bytes"] is None else f" ({mib(pinned['pinned_bytes'])} MiB)"

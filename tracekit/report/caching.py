"""The policy × budget table of the report, and the residency that its matrix can show."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from tracekit.analysis.budget import default_budget
from tracekit.figures import NONE, known, settings
from tracekit.policies import POLICIES, Batches, Policy, load_policy
from tracekit.replaying import build_batches, inputs_of, replay, simulate
from tracekit.report.matrix import View, recorded_view, replayed_view
from tracekit.report.words import mib, percent
from tracekit.routing.grid import decode_grid, dropped_slots
from tracekit.trace import Trace, TraceError, UsageError

DEFAULT_POLICIES = ("lru", "ring", "lfu", "layer-lru", "layer-lfu", "belady", "bound")
FRACTIONS = (0.05, 0.1, 0.25, 0.5)
NEAR = 0.02  # a fraction so near to the recorded budget would only repeat it

# A view costs about a sixth of a byte of page for each lookup: this is 2 MB of them.
VIEW_LOOKUPS = 12_000_000
LEAST_VIEWS = 3


def default_budgets(trace: Trace) -> list[int]:
    """Return the recorded budget and some fractions of all experts, ascending, in bytes."""
    main = default_budget(trace)
    some = {round(fraction * trace.bank_bytes) for fraction in FRACTIONS}
    return sorted({main} | {size for size in some if abs(size - main) > NEAR * main})


@dataclass(frozen=True)
class Budget:
    """The rows of one budget: its name, what is to be known of it, a dict of texts a policy."""

    name: str
    note: str
    under_cycle: bool
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Cache:
    """What policies did at several budgets.

    Attributes
    ----------
    budgets : list of Budget
        The table.
    notes : list of str
        What a reader of the table needs.
    records : list of dict
        The figures themselves.
    policies : list of Policy
        Those that ran.
    sizes : list of int
        The budgets in bytes.
    main : int or None
        The budget that the headline is about.
    lacks : str or None
        Why there are none.
    """

    budgets: list[Budget] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    main: int | None = None
    lacks: str | None = None

    @property
    def over(self) -> bool:
        """Whether anything held more than its budget at some time."""
        return any(record["over_budget"] for record in self.records)


def study(
    trace: Trace,
    policies: Sequence[str],
    cache_bytes: Sequence[int] | None,
    seed: int,
    jobs: int | None,
) -> Cache:
    """Replay `policies` at `cache_bytes`; None: at the recorded budget and some fractions."""
    loaded = [
        load_policy(name, {"seed": seed} if POLICIES.find(name).stochastic else {})
        for name in policies
    ]
    try:
        main = default_budget(trace)
        sizes = sorted(set(default_budgets(trace) if cache_bytes is None else cache_bytes))
        result = replay(trace, loaded, cache_bytes=sizes, jobs=jobs)
    except TraceError as error:
        return Cache(lacks=str(error))
    records = sorted(result.records, key=lambda record: record["cache_bytes"])
    n_tokens = trace.n_decoded
    budgets = [
        Budget(
            mib(size),
            _about(trace, size),
            size < trace.token_cycle_bytes,
            [_row(record, n_tokens) for record in rows],
        )
        for size, rows in groupby(records, key=lambda record: record["cache_bytes"])
    ]
    return Cache(
        budgets,
        [note for note in result.notes if note not in trace.warnings],
        records,
        [policy for policy in loaded if policy.name in {r["policy"] for r in records}],
        sizes,
        main if main in sizes else sizes[-1],
    )


def _about(trace: Trace, budget: int) -> str:
    parts = [
        f"{percent(budget / trace.bank_bytes)} of all experts",
        f"{budget / trace.token_cycle_bytes:.3g} token cycles",
    ]
    if budget == trace.budget_bytes:
        parts.append("the recorded budget")
    return ", ".join(parts)


def _row(record: Mapping[str, Any], n_tokens: int) -> dict[str, Any]:
    gap, read = record["gap_to_bound"], record["read_bytes_decode"]
    at_most, at_least = ("≤ ", "≥ ") if record["policy"] == "bound" else ("", "")
    return {
        "name": record["policy"],
        "details": " ".join(filter(None, [_settings(record), _cost(record)])),
        "share": record["hit_rate_decode"],
        "decode": at_most + percent(record["hit_rate_decode"]),
        "cumulative": at_most + percent(record["hit_rate_cumulative"]),
        "gap": f"{100 * gap:.1f}" if known(gap) else NONE,
        "read": at_least + mib(read / n_tokens) if known(read) and n_tokens else NONE,
        "peaks": [
            (mib(record[f"peak_resident_bytes{phase}"]), bool(record[f"over_budget{phase}"]))
            for phase in ("_decode", "")
        ],
    }


def _cost(record: Mapping[str, Any]) -> str:
    """Say of a policy that leaves experts out what that costs."""
    if "mass_lost" not in record:
        return ""
    lost = record["mass_lost"]
    how_much = f": {percent(lost)} of router weight lost" if known(lost) else ""
    return f"changes what is computed{how_much}"


def named(record: Mapping[str, Any]) -> str:
    """Name a record's policy, and its parameters where it has any."""
    return f"{record['policy']} {_settings(record)}".rstrip()


def _settings(record: Mapping[str, Any]) -> str:
    text = settings(record["params"])
    return text and f"({text})"


def views(trace: Trace, cache: Cache) -> tuple[list[View], str | None]:
    """Return what the matrix can show, and a sentence if the page has no room for all of it.

    What was recorded comes first, then every policy at the main budget, then at the others.
    """
    grid = decode_grid(trace)
    dropped = dropped_slots(trace, grid)
    found = []
    if trace.has("residency"):
        budget = "" if trace.budget_bytes is None else f", {mib(trace.budget_bytes)}"
        found.append(recorded_view(trace, grid, f"as recorded{budget}"))
    room = max(LEAST_VIEWS, VIEW_LOOKUPS // grid.experts.size)
    ordered = sorted(cache.sizes, key=lambda size: size != cache.main)
    # A lossy policy looks other experts up than the trace has; a bound looks up none.
    runs = [policy for policy in cache.policies if not (policy.lossy or policy.gives_limits)]
    wanted = [(policy, size) for size in ordered for policy in runs]
    batches = build_batches(trace) if wanted else None
    shared: dict[tuple[str, int], Batches] = {}
    for policy, size in wanted[: room - len(found)]:
        inputs = inputs_of(policy, trace, batches, shared=shared)
        (cell,) = simulate(policy, inputs, np.array([size], np.int64), per_lookup=True)
        if cell.hit is None:
            raise UsageError(
                f"Policy {policy.name!r} does not say which lookups hit, as the report shows them; "
                "leave it out."
            )
        name = named({"policy": policy.name, "params": asdict(policy.params)})
        found.append(replayed_view(batches, cell.hit, dropped, name, f"{name}, {mib(size)}"))
    shown = len(found) - trace.has("residency")
    if shown == len(wanted):
        return found, None
    return found, (
        f"To keep the page small, the matrix shows {shown} of the {len(wanted)} replays above."
    )

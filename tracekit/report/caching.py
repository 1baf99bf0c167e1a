"""The policy × budget table of the report, and the residency that its matrix can show."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby

import numpy as np

from tracekit.analysis.budget import DEFAULT_FRACTION, default_budget
from tracekit.figures import NONE, joined, settings
from tracekit.policies import POLICIES, Batches, Bound, Cell, Policy, load_policy
from tracekit.policies.bound import PRICES, bounded
from tracekit.replaying import ReplayResult, build_batches, inputs_of, replay, simulate
from tracekit.replaying.batches import model_of
from tracekit.replaying.budgets import budgets_in_bytes
from tracekit.replaying.prepare import prepare
from tracekit.replaying.rows import Row
from tracekit.replaying.run import rows_of_all
from tracekit.replaying.slots import batch_rows, lookup_of_slots
from tracekit.replaying.text import of_other_bounds
from tracekit.replaying.threads import threads_of
from tracekit.replaying.time_text import interval, typical
from tracekit.report.long import budgets_of_long
from tracekit.report.matrix import View, recorded_view, replayed_view
from tracekit.report.words import counted, mib, percent
from tracekit.routing.grid import DecodeGrid, decode_order
from tracekit.routing.turns import n_decode_passes
from tracekit.timing import Fit
from tracekit.trace import Trace, TraceError, UsageError

DEFAULT_POLICIES = ("lru", "follow", "ring", "lfu", "layer-lru", "layer-lfu", "belady", "bound")
FRACTIONS = (0.05, 0.1, 0.25, 0.5)
NEAR = 0.02  # a fraction so near to the recorded budget would only repeat it

# A view costs about a sixth of a byte of page for each lookup: this is 2 MB of them.
VIEW_LOOKUPS = 12_000_000
LEAST_VIEWS = 3


@dataclass(frozen=True)
class Sizes:
    """What a budget of the report counts: bytes, or experts where no size of one is known.

    Attributes
    ----------
    bank, token_cycle : int
        All experts, and those that one token touches over all layers.
    in_bytes : bool
    """

    bank: int
    token_cycle: int
    in_bytes: bool = True

    @classmethod
    def of(cls, trace: Trace) -> "Sizes":
        """Return the sizes of a trace.

        Raises
        ------
        TraceError
            The sizes of only some layers' experts are known.
        """
        if (trace.layer_columns["expert_bytes"] >= 0).any():
            return cls(trace.bank_bytes, trace.token_cycle_bytes)
        n_layers = len(trace.moe_layers)
        return cls(n_layers * trace.n_expert, n_layers * trace.top_k, in_bytes=False)

    def text(self, size: int) -> str:
        """Return a budget as the page writes it."""
        return mib(size) if self.in_bytes else counted(size, "expert")

    def about(self, size: int) -> str:
        """Return how large a budget is beside the bank and a token cycle."""
        cycles = f"{size / self.token_cycle:.3g} token cycles"
        return f"{percent(size / self.bank)} of all experts, {cycles}"


def default_budgets(trace: Trace) -> list[int]:
    """Return the recorded budget and some fractions of all experts, ascending, in bytes."""
    main = default_budget(trace)
    some = {round(fraction * trace.bank_bytes) for fraction in FRACTIONS}
    return sorted({main} | {size for size in some if abs(size - main) > NEAR * main})


@dataclass(frozen=True)
class Peak:
    """The text of what was resident at most, and whether that is more than the budget."""

    text: str
    over_budget: bool


@dataclass(frozen=True)
class PolicyTexts:
    """The texts of a policy at one budget; `share` is the fraction behind its bar."""

    name: str
    details: str
    share: float | None
    decode: str
    cumulative: str
    gap: str
    read: str
    peaks: tuple[Peak, Peak]
    tok_s: str
    tok_s_interval: str


@dataclass(frozen=True)
class Budget:
    """One budget of the table: its name, what a reader has to know of it, and its policies."""

    name: str
    note: str
    under_cycle: bool
    rows: list[PolicyTexts]


@dataclass(frozen=True)
class Cache:
    """What policies did at several budgets.

    Attributes
    ----------
    budgets : list of Budget
        The table.
    notes : list of str
        What a reader of the table needs.
    rows : list of Row
        The figures themselves, by ascending budget.
    main : int or None
        The budget that the headline is about.
    lacks : str or None
        Why there are no figures.
    bypass : bool
        The engine may drop at once what it has just used.
    sizes : Sizes or None
        None where there are no figures.
    result : ReplayResult or None
        Of which all this was made; of a long trace it has more budgets, for curves.
    """

    budgets: list[Budget] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    main: int | None = None
    lacks: str | None = None
    bypass: bool = False
    sizes: Sizes | None = None
    result: ReplayResult | None = None

    @property
    def of_bound(self) -> str:
        """Which policies the bound is of: what stands after *that*."""
        return bounded(self.bypass)

    @property
    def of_other_bounds(self) -> list[str]:
        """Which policies the bounds are of that hold in place of it, for which rows."""
        return of_other_bounds(self.rows)

    @property
    def has_times(self) -> bool:
        """Whether it is said how long a token takes."""
        return any(row.time is not None and row.time.typical_ms is not None for row in self.rows)

    @property
    def any_extrapolated(self) -> bool:
        """Whether some of the times are outside what the recording read."""
        return any(
            row.time is not None and row.time.typical_ms is not None and row.time.is_extrapolated
            for row in self.rows
        )

    @property
    def any_over_budget(self) -> bool:
        """Whether anything held more than its budget at some time."""
        return any(row.over_budget for row in self.rows)

    @property
    def at_main(self) -> dict[str, Row]:
        """The figures at the budget that the headline is about, by policy."""
        return {row.policy: row for row in self.rows if row.budget == self.main}

    def by_main_first(self) -> list[Row]:
        """Return the rows of the main budget, then the others."""
        return sorted(self.rows, key=lambda row: row.budget != self.main)


def replay_table(
    trace: Trace,
    policies: Sequence[str],
    cache_bytes: Sequence[int] | None,
    seed: int,
    jobs: int | None,
    bypass: bool = False,
    fitted: Fit | None = None,
) -> Cache:
    """Replay `policies` at `cache_bytes`; None: at the recorded budget and some fractions.

    With `fitted`, rows say how long a token takes.

    Where no size of an expert is known, the fractions alone are replayed.
    """
    loaded = [_loaded(name, seed) for name in policies]
    try:
        sizes = Sizes.of(trace)
        if not sizes.in_bytes and cache_bytes is None:
            main = None
            result = replay(trace, loaded, cache_fraction=FRACTIONS, bypass=bypass, jobs=jobs)
            everything = result
        else:
            main = default_budget(trace)
            asked = default_budgets(trace) if cache_bytes is None else cache_bytes
            model = model_of(trace, equal_sizes=True)
            given = sorted(budgets_in_bytes(model, None, cache_bytes=asked).tolist())
            main = main if main in given else given[-1]
            result, everything = _replayed(trace, loaded, given, main, jobs, bypass, fitted)
    except TraceError as error:
        return Cache(lacks=str(error), bypass=bypass)
    rows = sorted(result.rows, key=_budget_of)
    replayed = sorted({row.budget for row in rows})
    if main is None:
        main = min(replayed, key=lambda size: abs(size - DEFAULT_FRACTION * sizes.bank))
    n_passes = n_decode_passes(trace)
    budgets = [
        Budget(
            sizes.text(size),
            _about(trace, sizes, size),
            size < sizes.token_cycle,
            [_texts(row, trace.n_decoded, n_passes) for row in of_size],
        )
        for size, of_size in groupby(rows, key=_budget_of)
    ]
    return Cache(
        budgets,
        [note for note in result.notes if note not in trace.warnings],
        rows,
        main if main in replayed else replayed[-1],
        bypass=bypass,
        sizes=sizes,
        result=everything,
    )


def _replayed(
    trace: Trace,
    policies: Sequence[Policy],
    budgets: Sequence[int],
    main: int,
    jobs: int | None,
    bypass: bool,
    fitted: Fit | None,
) -> tuple[ReplayResult, ReplayResult]:
    """Replay `policies` at `budgets`, some of a long trace at `main` only.

    What comes second has the budgets of the curves of a long trace too.
    """
    asked = budgets_of_long(trace, budgets, main, fitted is not None)
    everywhere = sorted({size for policy in policies for size in asked(policy)})
    threads = threads_of(jobs)
    time = fitted or False
    work = prepare(trace, policies, cache_bytes=everywhere, bypass=bypass, time=time, jobs=threads)
    by_run = rows_of_all(work, threads, budgets_of=asked)
    in_table = [[row for row in rows if row.budget in budgets] for rows in by_run]
    result, everything = work.result(in_table), work.result(by_run)
    few = [policy.name for policy in policies if len(asked(policy)) < len(budgets)]
    if not few:
        return result, everything
    names = list(dict.fromkeys(few))
    note = (
        f"The trace is long: {joined(names)} {'was' if len(names) == 1 else 'were'} replayed at "
        f"{mib(main)} only; `tracekit replay` takes any budget."
    )
    return replace(result, notes=[note, *result.notes]), everything


def _loaded(name: str, seed: int) -> Policy:
    cls = POLICIES.find(name)
    params = {"seed": seed} if cls.stochastic else {}
    return load_policy(name, params | ({"prices": PRICES} if cls is Bound else {}))


def _budget_of(row: Row) -> int:
    return row.budget


def _about(trace: Trace, sizes: Sizes, budget: int) -> str:
    is_recorded = sizes.in_bytes and budget == trace.budget_bytes
    return sizes.about(budget) + (", the recorded budget" if is_recorded else "")


def _texts(row: Row, n_tokens: int, n_passes: int) -> PolicyTexts:
    at_most, at_least = ("≤ ", "≥ ") if row.is_bound else ("", "")
    gap, read = row.gap_to_bound, row.read_bytes_decode
    read_text = NONE
    if read is not None and n_tokens:
        read_text = at_least + mib(read / n_tokens)
        if n_passes != n_tokens:
            read_text += f" ({at_least}{mib(read / n_passes)} a pass)"
    return PolicyTexts(
        name=row.policy,
        details=" ".join(filter(None, [_params(row.replayed), _cost(row)])),
        share=row.hit_rate_decode,
        decode=at_most + percent(row.hit_rate_decode),
        cumulative=at_most + percent(row.hit_rate_cumulative),
        gap=NONE if gap is None else f"{100 * gap:.1f}",
        read=read_text,
        peaks=(
            Peak(mib(row.peak_resident_bytes_decode), bool(row.over_budget_decode)),
            Peak(mib(row.peak_resident_bytes), bool(row.over_budget)),
        ),
        tok_s=NONE if row.time is None else typical(row.time),
        tok_s_interval=NONE if row.time is None else interval(row.time),
    )


def _cost(row: Row) -> str:
    """Say of a policy that leaves experts out what that costs."""
    if not row.replayed.lossy:
        return ""
    lost = row.counters.get("mass_lost")
    how_much = "" if lost is None else f": {percent(lost)} of router weight lost"
    return f"changes what is computed{how_much}"


def _params(policy: Policy) -> str:
    text = settings(asdict(policy.params))
    return text and f"({text})"


def views(trace: Trace, grid: DecodeGrid, cache: Cache) -> tuple[list[View], str | None]:
    """Return what the matrix of `grid` can show, and a sentence if the page has no room for all of it.

    What was recorded comes first, then every policy at the main budget, then at the others.
    """
    found = []
    left_out = []
    if grid.n_tokens < trace.n_decoded:
        left_out.append(f"the first {grid.n_tokens:,} of {trace.n_decoded:,} decoded tokens")
    if trace.has("residency"):
        budget = "" if trace.budget_bytes is None else f", {mib(trace.budget_bytes)}"
        found.append(recorded_view(trace, grid, f"as recorded{budget}"))
    room = max(LEAST_VIEWS, VIEW_LOOKUPS // grid.experts.size) - len(found)
    # A lossy policy looks other experts up than the trace has; a bound looks up none.
    runs = [r for r in cache.by_main_first() if not (r.replayed.lossy or r.is_bound)]
    if runs:
        found += _replayed_views(trace, grid, runs[:room], cache)
    if len(runs) > room:
        left_out.append(f"{room} of the {len(runs)} replays above")
    if not left_out:
        return found, None
    return found, f"To keep the page small, the matrix shows {joined(left_out)}."


def _replayed_views(
    trace: Trace, grid: DecodeGrid, runs: Sequence[Row], cache: Cache
) -> Iterator[View]:
    """Run `runs` again, one at a time, and say of each lookup whether it hit.

    Raises
    ------
    UsageError
        A policy does not say which lookups hit.
    """
    batches = build_batches(trace, bypass=cache.bypass, equal_sizes=True)
    sizes = cache.sizes or Sizes.of(trace)
    rows = decode_order(trace)[: grid.n_tokens * grid.n_layers]
    n_shown = int(np.searchsorted(batch_rows(trace), rows.max(), side="right"))
    shown = np.arange(n_shown)
    lookups = lookup_of_slots(trace, batches, n_shown)[rows].reshape(grid.experts.shape)
    shared: dict[tuple[str, int], Batches] = {}
    for row in runs:
        policy = row.replayed
        inputs = inputs_of(policy, trace, batches, shared=shared)
        if not (policy.offline or policy.needs_predictor):  # what comes later changes nothing
            inputs = inputs.only(shown)
        (cell,) = simulate(policy, inputs, np.array([row.budget], np.int64), per_lookup=True)
        if not isinstance(cell, Cell) or cell.hit is None:
            raise UsageError(
                f"Policy {policy.name!r} does not say which lookups hit, as the report shows them; "
                "leave it out."
            )
        name = f"{policy.name} {_params(policy)}".rstrip()
        yield replayed_view(lookups, cell.hit, name, f"{name}, {sizes.text(row.budget)}")

"""What a cache did token by token: what was found resident, and what was read."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analysis.budget import budget_of
from tracekit.arguments import names_in
from tracekit.formats import as_trace
from tracekit.policies import Batches, Cell, Limit, Policy, load_policy
from tracekit.replaying import build_batches, inputs_of, simulate
from tracekit.replaying.reads import reads_of
from tracekit.routing.grid import decode_rows
from tracekit.routing.residency import recorded_decode_states
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.schema import DECODE, HIT, MISS, PREFETCHED

RECORDED = "recorded"


def residency_timeline(
    trace: Trace | str | Path,
    policy: str | Policy = "lru",
    cache_bytes: int | None = None,
    bypass: bool = False,
) -> pd.DataFrame:
    """Say what every decoded token found in the cache, layer by layer.

    Parameters
    ----------
    trace : Trace, str or Path
    policy : str or Policy
        A cache policy to replay, or ``"recorded"``: what the engine found. One with parameters of
        your own comes from ``tracekit.policies.load_policy(name, params)``.
    cache_bytes : int, optional
        Budget of the replay; the recorded one by default, or a quarter of the bank.
    bypass : bool
        As for `tracekit.replay`.

    Returns
    -------
    DataFrame
        One row per (decoded token, MoE layer): ``policy``, ``params`` (a mapping),
        ``cache_bytes`` (missing where the trace does not say), ``bypass`` (of a replay: whether
        what was just used could be dropped at once), ``token`` (from 0, over all turns),
        ``turn``, ``step``, ``layer``, ``kept_tokens``, ``lookups``, ``hits``, ``misses``,
        ``prefetched`` (found because it had been read ahead; not among the hits), ``read_bytes``.
        Drafted tokens that one pass verifies have their lookups together: ``token`` then counts
        passes, and ``kept_tokens`` says how many tokens of the pass stayed.

    Raises
    ------
    TraceError
        No decoded token, a layer's expert size is missing, or ``"recorded"`` of a trace without
        residency.
    UsageError
        An unknown policy, one that has totals only (`bound`) or no meaning with `bypass`, or a
        budget that is not a size in bytes.
    """
    columns = _timeline(as_trace(trace), policy, cache_bytes, bypass)
    return pd.DataFrame(columns | {"params": [columns["params"]] * len(columns["token"])})


def _timeline(
    trace: Trace, policy: str | Policy, cache_bytes: int | None, bypass: bool
) -> dict[str, Any]:
    """Return the columns of `residency_timeline`, of which some are one value for all rows."""
    if policy == RECORDED:
        return _recorded(trace)
    budget = budget_of(trace, cache_bytes)
    loaded = load_policy(policy) if isinstance(policy, str) else policy
    batches, cell = _replayed(trace, loaded, budget, bypass)
    decode = np.flatnonzero(batches.phase == DECODE)
    reads = reads_of(batches, cell)
    prefetched = 0 if cell.prefetched is None else cell.prefetched[decode]
    return {
        "policy": loaded.name,
        "params": asdict(loaded.params),
        "cache_bytes": budget,
        "bypass": bypass,
        "token": _count_passes(batches.pass_id[decode]),
        "turn": batches.turn[decode],
        "step": batches.step[decode],
        "layer": batches.layer_ids[batches.layer[decode]],
        "kept_tokens": _kept_tokens(trace, batches.pass_id[decode]),
        "lookups": reads.lookups[decode],
        "hits": cell.hits[decode] - prefetched,
        "misses": reads.missed[decode],
        "prefetched": prefetched,
        "read_bytes": reads.read_bytes[decode],
    }


def read_bytes_by_token(
    trace: Trace | str | Path,
    policies: str | Policy | Sequence[str | Policy] | None = None,
    cache_bytes: int | None = None,
    bypass: bool = False,
) -> pd.DataFrame:
    """Bytes that each decoded token read.

    Parameters
    ----------
    trace : Trace, str or Path
    policies : str, Policy, or several of them, optional
        As for `residency_timeline`. By default lru and belady, and the recording where it carries
        residency.
    cache_bytes : int, optional
    bypass : bool
        As for `residency_timeline`.

    Returns
    -------
    DataFrame
        One row per (policy, decoded token): ``policy``, ``params``, ``cache_bytes``, ``bypass``,
        ``token``, ``turn``, ``step``, ``kept_tokens``, ``read_bytes``, ``lookups``, ``hits`` (what
        was read ahead included), ``token_cycle_bytes``. Of drafted tokens that one pass verifies
        there is one row for the pass, as in `residency_timeline`.

    Raises
    ------
    TraceError, UsageError
        As for `residency_timeline`.
    """
    trace = as_trace(trace)
    if policies is None:
        policies = read_by_default(trace)
    tokens = []
    for policy in names_in(policies):
        tokens.append(_by_token(_timeline(trace, policy, cache_bytes, bypass)))
    return pd.concat(tokens, ignore_index=True).assign(token_cycle_bytes=trace.token_cycle_bytes)


def _by_token(timeline: dict[str, Any]) -> pd.DataFrame:
    """Add up what the layers of each token did; those of a token follow one another."""
    first = np.flatnonzero(np.diff(timeline["token"], prepend=-1))
    of_token = {name: timeline[name][first] for name in ("token", "turn", "step", "kept_tokens")}
    sums = {
        "read_bytes": timeline["read_bytes"],
        "lookups": timeline["lookups"],
        "hits": timeline["hits"] + timeline["prefetched"],
    }
    return pd.DataFrame(
        {
            "policy": timeline["policy"],
            "params": [timeline["params"]] * len(first),
            "cache_bytes": timeline["cache_bytes"],
            "bypass": timeline["bypass"],
            **of_token,
            **{name: np.add.reduceat(values, first) for name, values in sums.items()},
        }
    )


def read_by_default(trace: Trace) -> list[str]:
    """Return the policies that `read_bytes_by_token` takes by default."""
    return ["lru", "belady"] + ([RECORDED] if trace.has("residency") else [])


def _replayed(trace: Trace, policy: Policy, budget: int, bypass: bool) -> tuple[Batches, Cell]:
    batches = build_batches(trace, weights=policy.lossy, bypass=bypass)
    if not (batches.phase == DECODE).any():
        raise TraceError(f"{trace.name} holds no decoded token to look at.")
    inputs = inputs_of(policy, trace, batches)
    (cell,) = simulate(policy, inputs, np.array([budget], np.int64))
    if isinstance(cell, Limit):
        raise UsageError(f"{policy.name} has totals only; there is no run behind it to look at.")
    return batches, cell


def _recorded(trace: Trace) -> dict[str, Any]:
    if not trace.has("residency"):
        raise TraceError(
            f"{trace.name} does not say what the engine found resident; record with --stream, or "
            "name a policy to replay."
        )
    routing = decode_rows(trace, ["turn", "pass", "step", "layer"])
    states = recorded_decode_states(trace, lookups_only=True)
    found = {
        name: (states == code).sum(axis=1)
        for name, code in (("hits", HIT), ("misses", MISS), ("prefetched", PREFETCHED))
    }
    sizes = trace.expert_bytes[np.searchsorted(trace.moe_layers, routing["layer"])]
    budget = trace.budget_bytes
    return {
        "policy": RECORDED,
        "params": {},
        "cache_bytes": np.nan if budget is None else budget,
        "bypass": False,
        "token": _count_passes(routing["pass"]),
        "turn": routing["turn"],
        "step": routing["step"],
        "layer": routing["layer"],
        "kept_tokens": _kept_tokens(trace, routing["pass"]),
        "lookups": sum(found.values()),
        **found,
        "read_bytes": found["misses"] * sizes,
    }


def _count_passes(pass_id: np.ndarray) -> np.ndarray:
    """Give each decode pass its number, from 0."""
    return np.cumsum(np.diff(pass_id, prepend=pass_id[:1]) != 0)


def _kept_tokens(trace: Trace, pass_id: np.ndarray) -> np.ndarray:
    """Return how many tokens of each of the passes stayed, int64 of the shape of `pass_id`."""
    kept = trace.steps(["pass"])["pass"][trace.kept]
    first, last = (np.searchsorted(kept, pass_id, side=side) for side in ("left", "right"))
    return np.asarray(last - first)

"""A policy that is fed a run in pieces answers as if it had been given the whole, to the last bit."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cache_runs import long_case
from families import RARE_POLICIES, slow_where
from policy_replays import PARAMS, REGISTERED, drawn_cases

import tracekit
from tracekit.policies import POLICIES, Limit, load_policy
from tracekit.policies.fed import FedPolicy
from tracekit.replaying import build_batches
from tracekit.replaying.pieces import Future
from tracekit.trace.schema import DECODE

FED = [
    name
    for name in REGISTERED
    if issubclass(POLICIES.find(name), FedPolicy) and name not in ("bound-ahead",)
]
# A policy among these that goes back to whole runs is found here.
KNOWN = {
    *(
        "lru",
        "lfu",
        "ring",
        "random",
        "layer-lru",
        "layer-lfu",
        "follow",
        "lrfu",
        "belady",
        "bound",
    ),
}


def test_these_policies_are_fed_in_pieces():
    assert set(FED) >= KNOWN


# Pieces of one pass take longest; the fast suite asks that of two that look back, one that looks ahead,
# and of every policy that is new.
ALSO_PASS_BY_PASS = ("lru", "follow", "belady")


def is_slow(name, n_passes):
    is_known = name in KNOWN - {*ALSO_PASS_BY_PASS}
    return n_passes == 2 or (n_passes == 1 and is_known) or name in RARE_POLICIES


@pytest.mark.parametrize(
    ("n_passes", "name"),
    slow_where(product([1, 2, 17], FED), lambda both: is_slow(both[1], both[0])),
)
def test_pieces_give_what_the_whole_gives(name, n_passes):
    params = {"prices": 20} if name == "bound" else PARAMS.get(name)
    short = long_case()
    runs = [(case.batches, case.budgets) for case in drawn_cases()]
    runs.append((short.batches.only(np.arange(200)), short.budgets))
    for number, (batches, budgets) in enumerate(runs):
        drops = bool(number % 2) and POLICIES.find(name).can_bypass
        sizes = np.array(sorted({*budgets, 7, 13}), np.int64)
        check(load_policy(name, params), replace(batches, bypass=drops), sizes, n_passes)


def check(policy, batches, budgets, n_passes):
    whole = policy.simulate(batches, budgets, per_lookup=True)
    pieces = cut(batches, n_passes)
    future = Future(batches)
    for piece in pieces:
        future.note(piece)
    run = policy.start(batches, budgets)
    fed = [run.feed(piece, per_lookup=True) for piece in future.of(pieces)]
    for c, cell in enumerate(whole):
        of_pieces = [cells[c] for cells in fed]
        if isinstance(cell, Limit):
            assert of_pieces[-1] == cell
            continue
        for name in ("hits", "resident_bytes", "hit"):
            found = np.concatenate([getattr(each, name) for each in of_pieces])
            np.testing.assert_array_equal(found, getattr(cell, name), err_msg=name)


def cut(batches, n_passes):
    """Return the batches in pieces of so many passes."""
    number = np.cumsum(np.diff(batches.pass_id, prepend=batches.pass_id[:1]) != 0)
    return [
        batches.only(np.flatnonzero(number // n_passes == piece))
        for piece in range(int(number[-1]) // n_passes + 1)
    ]


def test_the_first_decode_pass_of_a_turn_may_lie_in_a_piece_before():
    batches = long_case().batches
    found = []
    for piece in cut(batches, 1):
        here = (batches.turn == piece.turn[0]) & (batches.phase == DECODE)
        before = batches.pass_id[here & (batches.pass_id < piece.pass_id[0])]
        first = int(before.min()) if len(before) else None
        found.append(replace(piece, first_decode=first).after_first_decode)
    np.testing.assert_array_equal(np.concatenate(found), batches.after_first_decode)


def test_what_was_touched_pieces_ago_is_older():
    """Of experts that `follow` has forgotten, all worth the same, the one touched longest ago goes."""
    chosen = [2, 3] * 3000
    chosen[5], chosen[19] = 0, 1  # in the second piece of 17 passes, 1 stands before the place of 0
    chosen += [4, 1, 0]
    trace = tracekit.from_arrays(np.array(chosen)[:, None, None], n_expert=8, expert_mib=1)
    batches = build_batches(trace)
    budgets = np.array([4 << 20])
    (whole,) = load_policy("follow").simulate(batches, budgets, per_lookup=True)
    assert whole.hit[-3:].tolist() == [False, True, False]
    check(load_policy("follow"), batches, budgets, 17)

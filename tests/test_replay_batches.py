"""From routings to batches: order, repeats, dropped routings, weights."""

import numpy as np
import pytest
from cache_runs import EXAMPLES, Run, runs
from hypothesis import given, settings

from tracekit.replaying import build_batches
from tracekit.trace import TraceError


@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs(max_tokens=8))
def test_batches_hold_each_load_in_both_orders(run):
    batches = build_batches(run.trace())
    loads = run.loads
    ids = batches.layer_ids.tolist()
    assert len(batches) == len(loads)
    for b, load in enumerate(loads):
        here = slice(batches.batch_start[b], batches.batch_start[b + 1])
        layer = ids.index(load.layer)
        keys = [
            (batches.layer_ids[k // run.n_expert], k % run.n_expert) for k in batches.keys[here]
        ]
        assert keys == load.recency
        assert [keys[i] for i in np.argsort(batches.admit_rank[here])] == load.distinct
        assert (batches.layer[b], batches.turn[b], batches.pass_id[b], batches.phase[b]) == (
            layer,
            load.turn,
            load.number,
            load.decode,
        )
    assert dict(zip(ids, batches.expert_bytes.tolist(), strict=True)) == run.layer_sizes


RUN = Run(
    sizes={1: 10, 3: 20},
    n_expert=5,
    top_k=2,
    passes=(
        (0, False, 0, {1: [(4, 0), (0, 2)], 3: [(1, 3)]}),
        (0, True, 2, {1: [(2, 1)], 3: [(3, 0)]}),
    ),
)


def test_a_dropped_routing_is_not_looked_up():
    dropped = np.zeros((5, 2), np.uint8)
    dropped[0, 0] = dropped[3, 1] = 1  # expert 4 of the prompt, expert 1 of the decoded token
    batches = build_batches(RUN.trace(dropped=dropped))
    assert batches.lookups.tolist() == [2, 2, 1, 2]
    assert batches.keys.tolist() == [0, 2, 5 + 1, 5 + 3, 2, 5 + 3, 5 + 0]


def test_a_batch_whose_routings_were_all_dropped_is_empty():
    dropped = np.zeros((5, 2), np.uint8)
    dropped[3] = 1
    batches = build_batches(RUN.trace(dropped=dropped))
    assert batches.lookups.tolist() == [3, 2, 0, 2]


def test_weights_stand_beside_the_keys_of_decode_batches():
    weights = np.arange(10, dtype=np.float32).reshape(5, 2) / 10
    weights[4, 1] = np.nan
    batches = build_batches(RUN.trace(weights=weights), weights=True)
    decode = batches.weights[5:]
    np.testing.assert_array_equal(decode, np.array([0.6, 0.7, 0.8, np.nan], np.float32))
    assert np.isnan(batches.weights[:5]).all()


def test_figures_of_the_bank_and_the_cycle():
    batches = build_batches(RUN.trace())
    assert batches.bank_bytes == 5 * 10 + 5 * 20
    assert batches.token_cycle_bytes == 2 * 10 + 2 * 20
    assert batches.step.tolist() == [1, 1, 2, 2]


def test_later_batches_come_after_the_first_decoded_token_of_each_turn():
    token = {1: [(0, 1)], 3: [(0, 1)]}
    run = Run(
        sizes={1: 1, 3: 1},
        n_expert=2,
        top_k=2,
        passes=(
            (0, False, 0, token),
            (0, True, 1, token),
            (0, True, 2, token),
            (1, True, 0, token),
            (1, True, 1, token),
            (2, False, 0, token),
        ),
    )
    later = build_batches(run.trace()).after_first_decode
    assert later.tolist() == [False] * 4 + [True] * 2 + [False] * 2 + [True] * 2 + [False] * 2


def test_an_unknown_expert_size_is_refused():
    run = Run(sizes={1: 10}, n_expert=2, top_k=1, passes=((0, True, 0, {1: [(0,)], 3: [(0,)]}),))
    with pytest.raises(TraceError, match="how many bytes an expert of layer 3 has"):
        build_batches(run.trace())


def test_a_trace_without_experts_is_refused():
    run = Run(sizes={}, n_expert=2, top_k=1, passes=())
    with pytest.raises(TraceError, match="has no layer with experts"):
        build_batches(run.trace())

"""Arrays and tables of a notebook: what people pass, and what contradicts itself."""

import numpy as np
import pandas as pd
import pytest
import runs_of_models as runs

from tracekit import from_arrays
from tracekit.replaying import replay
from tracekit.scoring import predict
from tracekit.trace import TraceError, TracekitError, UsageError

RNG = np.random.default_rng(0)
EXPERTS = np.argsort(RNG.random((20, 3, 8)), axis=2)[:, :, :2]
WEIGHTS = RNG.dirichlet([1, 1], (20, 3)).astype(np.float32)
PASSED = np.arange(20)
TWO = {"lengths": [5, 15]}


def in_two(values):
    return [values[:5], values[5:]]


def digest(experts=EXPERTS, **arguments):
    return from_arrays(experts, **arguments).digest


def test_masked_experts_are_none():
    hidden = np.ma.array(EXPERTS.astype(np.uint8))
    hidden[2, 1] = np.ma.masked
    with pytest.raises(TraceError, match="turn 0, step 2 lacks layer 1"):
        from_arrays(hidden)
    with pytest.raises(TraceError, match="lacks layer 1"):
        from_arrays(in_two(hidden))
    none = np.ma.array(EXPERTS)
    none[:, 1] = np.ma.masked
    assert from_arrays(none).moe_layers.tolist() == [0, 2]
    assert digest(np.ma.array(EXPERTS)) == digest()
    with pytest.raises(TraceError, match="is an array of float64"):
        from_arrays(none * 1.0)


def test_masked_weights_are_unknown():
    hidden = np.ma.masked_less(WEIGHTS, 0.3)
    assert hidden.mask.any()
    assert digest(weights=hidden) == digest(weights=hidden.filled(np.nan))
    assert digest(weights=hidden) != digest(weights=WEIGHTS)
    with pytest.raises(UsageError, match=r"^prompt has masked values; give all of them\.$"):
        from_arrays(EXPERTS, prompt=np.ma.masked_less(PASSED, 3))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"expert_bytes": 2**63}, "expert_bytes holds 9223372036854775808, which no trace has"),
        ({"expert_bytes": 1e30}, "expert_bytes holds float64 values and no whole numbers"),
        ({"expert_bytes": np.inf}, "expert_bytes holds float64 values and no whole numbers"),
        ({"expert_bytes": 5, "expert_mib": 1}, "both give the size of an expert; give one"),
        (
            {"phase": [0] * 5 + [1] * 15, "prompt_lengths": 3},
            "phase and prompt_lengths say different things of token 3; correct one of the two",
        ),
        (
            {"prompt": [0] * 5 + [1] * 15, "lengths": [10, 10]},
            "another prompt begins with token 5, within a run of lengths; correct one of the two",
        ),
        (
            {"token": [0] * 20},
            "position 0 follows position 0 of the same prompt; if another prompt",
        ),
        ({"token": PASSED % 10}, "position 0 follows position 9 of the same prompt"),
        ({"passes": PASSED[::-1]}, "pass 18 follows pass 19 of the same prompt; if another"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments, says):
    with pytest.raises(TracekitError, match=says):
        from_arrays(EXPERTS, **arguments)


def test_what_is_said_twice_and_is_the_same_is_taken():
    alone = digest(prompt_lengths=[5, 3], lengths=[10, 10])
    phase = np.repeat([0, 1, 0, 1], [5, 5, 3, 7])
    assert digest(prompt_lengths=[5, 3], lengths=[10, 10], phase=phase) == alone
    assert digest(prompt_lengths=[5, 3], prompt=[0] * 10 + [7] * 10, lengths=[10, 10]) == alone
    assert digest(prompt_lengths=[5, 3], lengths=[10, 10], token=PASSED % 10) == alone


def test_drafted_tokens_may_go_back_with_their_passes():
    trace = from_arrays(EXPERTS[:5], token=[0, 1, 2, 2, 3], passes=[0, 1, 1, 2, 3], phase=[1] * 5)
    assert trace.kept.tolist() == [True, True, False, True, True]


def test_a_list_of_prompts_may_have_lists_beside_it():
    phase = [0] * 3 + [1] * 2 + [0] * 4 + [1] * 11
    wanted = digest(**TWO, weights=WEIGHTS, phase=phase)
    found = digest(in_two(EXPERTS), weights=in_two(WEIGHTS), phase=in_two(np.array(phase)))
    assert found == wanted
    turned = [[each.swapaxes(0, 1) for each in in_two(values)] for values in (EXPERTS, WEIGHTS)]
    axes = ("layers", "tokens", "k")
    assert digest(turned[0], weights=turned[1], axes=axes) == digest(**TWO, weights=WEIGHTS)


@pytest.mark.parametrize("other", [EXPERTS[5:, :, :1], EXPERTS[5:, :2], EXPERTS[5]])
def test_prompts_of_other_shapes_are_refused(other):
    with pytest.raises(TraceError, match=r"an array with the shape \(5, 3, 2\) and one with \("):
        from_arrays([EXPERTS[:5], other])


def test_a_categorical_column_is_what_it_names():
    frame = pd.DataFrame(runs.rows_of(runs.made()))
    assert digest(frame.astype("category")) == digest(frame)


def test_numbers_of_numpy_are_numbers():
    trace = from_arrays(EXPERTS, n_expert=EXPERTS.max() + 1, expert_bytes=1 << 20)
    assert trace.n_expert == 8
    of_array = replay(trace, "lru", cache_mib=np.array(3)).frame
    pd.testing.assert_frame_equal(of_array, replay(trace, "lru", cache_mib=3).frame)


def test_no_predictor_is_refused():
    with pytest.raises(UsageError, match=r"^There is no predictor to score; name at least one\.$"):
        predict(from_arrays(EXPERTS), [])

"""The text of a replay, from made-up figures."""

import dataclasses

import pytest
from cli_helpers import csv_lines, write_csv

from tracekit.figures import Figure, Unit
from tracekit.formats import open_any
from tracekit.policies import Policy, load_policy
from tracekit.replaying import ReplayResult
from tracekit.replaying.rows import LAYER_COLUMNS, LayerRow, Row

MIB = 1 << 20
PLAIN = {
    "lookups": 1000,
    "hits": 500,
    "hit_rate_cumulative": 0.5,
    "lookups_decode": 800,
    "hits_decode": 480,
    "hit_rate_decode": 0.6,
    "read_bytes": 700 * MIB,
    "read_bytes_decode": 500 * MIB,
    "bound_class": "demand",
    "bound_hit_rate_cumulative": 0.6,
    "bound_hit_rate_decode": 0.75,
    "gap_to_bound": 0.1,
    "gap_to_bound_decode": 0.15,
    "peak_resident_bytes": 9 * MIB,
    "peak_resident_bytes_decode": 8 * MIB,
    "over_budget": False,
    "over_budget_decode": False,
}
BOUND = {
    **PLAIN,
    "hit_rate_cumulative": 0.6,
    "hit_rate_decode": 0.75,
    "gap_to_bound": None,
    "gap_to_bound_decode": None,
    "peak_resident_bytes": None,
    "peak_resident_bytes_decode": None,
    "over_budget": None,
    "over_budget_decode": None,
}


def row(policy, cache_mib=10, figures=PLAIN, params=None, **changes):
    replayed = load_policy(policy, params)
    return Row(
        policy=policy,
        params=dataclasses.asdict(replayed.params),
        cache_bytes=round(cache_mib * MIB),
        cache_mib=cache_mib,
        cache_fraction=cache_mib / 20,
        cache_slots=None,
        budget=round(cache_mib * MIB),
        under_token_cycle=cache_mib < 5,
        bypass=False,
        replayed=replayed,
        **{**figures, **changes},
    )


WHOLE = """\
small.csv: small, 2 MoE layers × 8 experts, 2 used per token and layer
expert bank 20.00 MiB, token cycle 5.00 MiB, 5 decoded tokens
expert lookups: 800 decode, 1000 cumulative

                                                                             decode                decode  cumulative
                      cache    decode     decode  cumulative   cumulative  read per  cumulative      peak        peak
               cache   % of  hit rate  above LRU    hit rate  below bound     token        read  resident    resident
policy          MiB    bank         %     points           %       points       MiB         MiB      MiB         MiB
layer-lru       2.5^  12.50     60.00          -       50.00            -     100.0       700.0     8.00        9.00*

lru              10   50.00     60.00          -       50.00        10.00     100.0       700.0     8.00        9.00
bound            10   50.00   ≤ 75.00   ≤ +15.00     ≤ 60.00            -   ≥ 100.0     ≥ 700.0        -           -
random seed=0    10   50.00     60.00       0.00       50.00        10.00     100.0       700.0     8.00        9.00
belady           10   50.00         -          -       50.00        10.00     100.0       700.0     8.00        9.00

decode: generated tokens only; cumulative: prompts (prefill) and generated tokens
^ cache smaller than one token cycle
* more was resident than the budget
≤ ≥ bound: proven limits of every policy that keeps to its budget, reads only what is asked for, and keeps what it reads until the load ends
- above LRU, below bound: what keeps more than its budget, leaves experts out, or hits what it read ahead by a wrong guess does not compare
belady: knows the future, so no engine can run it
A note.
"""


@pytest.fixture
def trace(tmp_path):
    opened = open_any(write_csv(tmp_path / "small.csv", csv_lines(decode=5)))
    opened.name = "small.csv"
    return opened


def text_of(trace, *rows, per_layer=False, notes=()):
    config = {
        "per_layer": per_layer,
        "flash_mib_s": None,
        "time": None,
        "tokens_decode": trace.n_decoded,
        "passes_decode": trace.n_decoded,
        "skip": 0,
        "warm": None,
    }
    return ReplayResult(list(rows), config, list(notes), trace).to_text()


def test_the_whole_text(trace):
    text = text_of(
        trace,
        row("lru"),
        row("layer-lru", 2.5, gap_to_bound=None, over_budget=True, kept_to_budget=False),
        row("bound", figures=BOUND),
        row("random"),
        row("belady", hit_rate_decode=None),
        notes=["A note."],
    )
    assert f"{text}\n" == WHOLE


def test_what_varies_names_a_row_and_counters_have_tables_of_their_own(trace):
    counters = {"dropped": 100, "saved_bytes": 3 * MIB, "mass_lost": 0.0946}
    dropping = {**PLAIN, "lookups_decode": 700}
    text = text_of(
        trace,
        row("lru"),
        row("drop-cold", figures=dropping, params={"frac": 0.5}, counters=counters),
        row("drop-cold", figures=dropping, counters={**counters, "mass_lost": None}),
        row("retention", counters={"promoted": 7}),
    )
    head, figures, dropped, promoted = text.split("\n\n")[:4]
    assert "expert lookups" not in head
    rows = [line.split() for line in figures.split("\n")[-4:]]
    assert [cells[-10:-8] for cells in rows] == [
        ["800", "1000"],
        ["700", "1000"],
        ["700", "1000"],
        ["800", "1000"],
    ]
    assert dropped.split("\n") == [
        "                                           mass",
        "                    cache           saved  lost",
        "policy               MiB   dropped    MiB     %",
        "drop-cold frac=0.5    10       100   3.00  9.46",
        "drop-cold frac=1.0    10       100   3.00     -",
    ]
    assert promoted.split("\n") == [
        "           cache",
        "policy      MiB   promoted",
        "retention    10          7",
    ]


def test_no_difference_has_no_sign(trace):
    rates = {"lru": 0.46, "ring": 0.46001, "lfu": 0.45999, "belady": 0.4599}
    rows = [row(name, hit_rate_decode=rate) for name, rate in rates.items()]
    lines = text_of(trace, *rows).split("\n\n")[1].split("\n")[-4:]
    assert [line.split()[4] for line in lines] == ["-", "0.00", "0.00", "-0.01"]


def test_what_overran_in_the_prompt_only_is_compared_with_a_mark(trace):
    """Its decode hits are of the same lookups at the same budget as those of LRU."""
    in_prompt = {"over_budget": True, "kept_to_budget": False, "gap_to_bound": None}
    rows = [
        row("lru"),
        row("layer-lfu", hit_rate_decode=0.55, **in_prompt),
        row("layer-lru", hit_rate_decode=0.55, kept_to_budget_decode=False, **in_prompt),
    ]
    lines = text_of(trace, *rows).split("\n\n")[1].split("\n")[-3:]
    assert [line.split()[4] for line in lines] == ["-", "-5.00*", "-"]


def test_a_policy_of_ones_own_that_reads_ahead_is_compared_whatever_it_counts(trace):
    class Eager(Policy):
        name = "eager"
        summary = "reads ahead"
        speculative = True
        counters = (Figure("luck", Unit.FRACTION, "how often it was lucky"),)

        def simulate(self, batches, budgets, per_lookup=False):
            raise NotImplementedError

    eager = dataclasses.replace(
        row("lru", hit_rate_decode=0.7, gap_to_bound=None),
        policy="eager",
        replayed=Eager(),
        counters={"luck": 0.5, "guesses": 3},
    )
    figures, counters = text_of(trace, row("lru"), eager).split("\n\n")[1:3]
    assert figures.split("\n")[-1].split()[4] == "+10.00"
    assert counters.split("\n") == [
        "        cache   luck",
        "policy   MiB       %  guesses",
        "eager     10   50.00        3",
    ]


def test_layers_are_a_matrix_for_each_size(trace):
    def layers(*rates):
        names = [figure.name for figure in LAYER_COLUMNS]
        empty = dict.fromkeys(names)
        return tuple(
            LayerRow(**empty | {"layer": i, "hit_rate_decode": rate})
            for i, rate in enumerate(rates)
        )

    text = text_of(
        trace,
        row("lru", layers=layers(0.5, None)),
        row("lfu", layers=layers(0.25, 1.0)),
        row("bound", figures=BOUND, layers=layers(None, None)),
        per_layer=True,
    )
    assert text.split("\n\n")[2].split("\n") == [
        "decode hit rate of each layer, %, at a cache of 10 MiB",
        "layer    lru     lfu",
        "    0  50.00   25.00",
        "    1      -  100.00",
    ]


def test_an_incomplete_trace_is_marked(trace):
    trace.facts = dataclasses.replace(trace.facts, complete=False)
    assert text_of(trace, row("lru", 1)).startswith("small.csv (incomplete): small, ")

"""The text of a replay, from made-up figures."""

import dataclasses

import pytest
from cli_helpers import csv_lines, write_csv

from tracekit.formats import open_any
from tracekit.replaying import ReplayResult

MIB = 1 << 20
PLAIN = {
    "params": {},
    "under_token_cycle": False,
    "lookups": 1000,
    "hits": 500,
    "hit_rate_cumulative": 0.5,
    "lookups_decode": 800,
    "hits_decode": 480,
    "hit_rate_decode": 0.6,
    "read_bytes": 700 * MIB,
    "read_bytes_decode": 500 * MIB,
    "gap_to_bound": 0.1,
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
    "peak_resident_bytes": None,
    "peak_resident_bytes_decode": None,
    "over_budget": None,
    "over_budget_decode": None,
}

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
≤ ≥ bound: proven limits of every policy that keeps to its budget and reads only what is asked for
- above LRU, below bound: what keeps more than its budget or leaves experts out does not compare; the bound does not hold for what reads ahead either
belady: knows the future, so no engine can run it
A note.
"""


@pytest.fixture
def trace(tmp_path):
    opened = open_any(write_csv(tmp_path / "small.csv", csv_lines(decode=5)))
    opened.name = "small.csv"
    return opened


def text_of(trace, *records, per_layer=False, notes=()):
    sized = [{**r, "cache_bytes": round(r["cache_mib"] * MIB)} for r in records]
    return ReplayResult(sized, {"per_layer": per_layer}, list(notes), trace).to_text()


def test_the_whole_text(trace):
    text = text_of(
        trace,
        {**PLAIN, "policy": "lru", "cache_mib": 10},
        {
            **PLAIN,
            **{"policy": "layer-lru", "cache_mib": 2.5, "under_token_cycle": True},
            **{"gap_to_bound": None, "over_budget": True},
        },
        {**BOUND, "policy": "bound", "cache_mib": 10},
        {**PLAIN, "policy": "random", "params": {"seed": 0}, "cache_mib": 10},
        {**PLAIN, "policy": "belady", "cache_mib": 10, "hit_rate_decode": None},
        notes=["A note."],
    )
    assert f"{text}\n" == WHOLE


def test_what_varies_names_a_row_and_counters_have_tables_of_their_own(trace):
    dropping = {**PLAIN, "policy": "drop-cold", "cache_mib": 10, "lookups_decode": 700}
    counters = {"dropped": 100, "saved_bytes": 3 * MIB, "mass_lost": 0.0946}
    text = text_of(
        trace,
        {**PLAIN, "policy": "lru", "cache_mib": 10},
        {**dropping, "params": {"frac": 0.5, "static": False}, **counters},
        {**dropping, "params": {"frac": 1.0, "static": False}, **counters, "mass_lost": None},
        {**PLAIN, "policy": "retention", "params": {"horizon": 2}, "cache_mib": 10, "promoted": 7},
    )
    head, figures, dropped, promoted = text.split("\n\n")[:4]
    assert "expert lookups" not in head
    rows = [line.split() for line in figures.split("\n")[-4:]]
    assert [row[-10:-8] for row in rows] == [
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
    rates = {"lru": 0.46, "ring": 0.46001, "lfu": 0.45999, "random": 0.4599}
    figures = text_of(
        trace,
        *({**PLAIN, "policy": n, "cache_mib": 10, "hit_rate_decode": r} for n, r in rates.items()),
    ).split("\n\n")[1]
    rows = [line.split() for line in figures.split("\n")[-4:]]
    assert [row[4] for row in rows] == ["-", "0.00", "0.00", "-0.01"]


def test_layers_are_a_matrix_for_each_size(trace):
    def layers(*rates):
        return [{"layer": i, "hit_rate_decode": rate} for i, rate in enumerate(rates)]

    text = text_of(
        trace,
        {**PLAIN, "policy": "lru", "cache_mib": 10, "layers": layers(0.5, None)},
        {**PLAIN, "policy": "lfu", "cache_mib": 10, "layers": layers(0.25, 1.0)},
        {**BOUND, "policy": "bound", "cache_mib": 10, "layers": layers(None, None)},
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
    assert text_of(trace, {**PLAIN, "policy": "lru", "cache_mib": 1}).startswith(
        "small.csv (incomplete): small, "
    )

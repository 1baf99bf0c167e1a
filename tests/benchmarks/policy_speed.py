"""What a lookup costs under each policy that an engine can run, beside one of lru.

    python tests/benchmarks/policy_speed.py

All run on one thread and in turns, on one generated run of 48 layers × 128 experts × top-8, at a tenth, a
quarter and a half of the bank, so that a slow moment of the machine affects all. Figures are medians over
the turns: nanoseconds a lookup at one budget, and the ratio to lru at the same budget.
"""

import argparse
import statistics
import time

import numpy as np

from tracekit.analysis.closure import demand_policies
from tracekit.policies import Policy, load_policy
from tracekit.replaying import build_batches, inputs_of
from tracekit.trace import synthesize

LAYERS, EXPERTS, TOP_K = 48, 128, 8
FRACTIONS = (0.1, 0.25, 0.5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000, help="decoded tokens of the run")
    parser.add_argument("--rounds", type=int, default=7, help="turns that all take")
    options = parser.parse_args()
    trace = synthesize(LAYERS, EXPERTS, TOP_K, options.tokens, n_turns=4, prefill=32)
    batches = build_batches(trace)
    policies = [load_policy(name) for name in ["lru", *sorted(set(demand_policies()) - {"lru"})]]
    given = {policy.name: inputs_of(policy, trace, batches) for policy in policies}
    budgets = [int(fraction * batches.bank_bytes) for fraction in FRACTIONS]

    def nanoseconds(policy: Policy, budget: int) -> float:
        start = time.perf_counter()
        policy.simulate(given[policy.name], np.array([budget]))
        return 1e9 * (time.perf_counter() - start) / len(batches.keys)

    print(f"{len(batches.keys):,} lookups; ns a lookup (ratio to lru)")
    print(f"{'':<12}" + "".join(f"{f'{fraction:.0%} of the bank':>20}" for fraction in FRACTIONS))
    times: dict[tuple[str, int], list[float]] = {}
    for turn in range(options.rounds + 1):
        for budget in budgets:
            for policy in policies:
                taken = nanoseconds(policy, budget)
                if turn:  # the first turn compiles
                    times.setdefault((policy.name, budget), []).append(taken)
    for policy in policies:
        cells = []
        for budget in budgets:
            own, lru = times[policy.name, budget], times["lru", budget]
            ratio = statistics.median(a / b for a, b in zip(own, lru, strict=True))
            cells.append(f"{statistics.median(own):>12.1f} ({ratio:>4.1f})")
        print(f"{policy.name:<12}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()

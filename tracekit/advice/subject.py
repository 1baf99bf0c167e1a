"""What advice is about: a trace, a cache size, and what its recorded times say."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracekit.advice.findings import Number
from tracekit.figures import MIB, exact_mib, percent
from tracekit.replaying.inputs import Kept
from tracekit.replaying.rows import Row
from tracekit.timing import Fit
from tracekit.trace import Trace


@dataclass(frozen=True, eq=False)
class Subject:
    """What advice is about.

    Attributes
    ----------
    trace : Trace
    where : str
        What a command calls the trace.
    budget : int
        The cache size in bytes that most findings are about.
    fit : Fit or None
        What its times say; None: they say nothing, or there are none.
    ram_mib : float or None
        Memory of the device.
    calibrated_on : str or None
        What a command calls the recording whose times are taken, if that is another one.
    params : mapping
        Parameters of policies that the user has set: ``{"prefetch.spec_max": ["4"]}``.
    kept : dict
        What predictors guess, so that each of them is asked once.
    """

    trace: Trace
    where: str
    budget: int
    fit: Fit | None = None
    ram_mib: float | None = None
    calibrated_on: str | None = None
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    kept: Kept = field(default_factory=dict)

    def params_of(
        self, policies: Sequence[str], chosen: Mapping[str, Sequence[Any]] | None = None
    ) -> dict[str, Sequence[Any]]:
        """Return the parameters of `policies`: those `chosen` here, and before them the user's."""
        given = {
            name: values
            for name, values in self.params.items()
            if name.rpartition(".")[0] in policies
        }
        return {**(chosen or {}), **given}

    def one(self, name: str, default: Any) -> Any:
        """Return the value that the user has set for a parameter, or `default`."""
        return self.params.get(name, [default])[0]

    def replay(
        self,
        policies: Sequence[str],
        budgets: Sequence[int],
        params: Mapping[str, Sequence[Any]] | None = None,
    ) -> str:
        """Return the command that replays `policies` at `budgets` (bytes)."""
        words = ["tracekit", "replay", self.where, "--policy", ",".join(policies)]
        words += ["--cache-mib", ",".join(map(exact_mib, budgets))]
        for name, values in self.params_of(policies, params).items():
            words += ["--param", f"{name}={','.join(map(str, values))}"]
        if self.fit is not None:
            words.append("--time")
            if self.calibrated_on is not None:
                words += ["--calibrate", self.calibrated_on]
            if self.ram_mib is not None:
                words += ["--ram-mib", f"{self.ram_mib:.10g}"]
        return shlex.join(words)

    def plot_gains(self, policy: str) -> str:
        """Return the command that writes what `policy` gains over LRU at the budget."""
        words = ["tracekit", "plot", "gains", self.where, "--policy", policy]
        for name, values in self.params_of([policy]).items():
            words += ["--param", f"{name}={','.join(map(str, values))}"]
        return shlex.join([*words, "--cache-mib", exact_mib(self.budget), "-o", "gains.csv"])


def rate(fraction: float | None, digits: int = 1) -> str:
    """Write a fraction in percent, with the sign."""
    return f"{percent(fraction, digits)} %"


def round_size(size: float) -> int:
    """Return a cache size near `size` bytes that takes at most three digits in MiB."""
    return round(float(f"{size / MIB:.3g}") * MIB)


def number(text: str, row: Row, column: str, command: str) -> Number:
    """Return a figure that `command`, a replay, shows in `row`."""
    record = row.to_record()
    identity = {"policy": row.policy, "cache_bytes": row.cache_bytes, "params": dict(row.params)}
    return Number(text, float(record[column]), column, identity, command)

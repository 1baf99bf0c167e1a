"""One trace replayed and scored in this process, as ``tracekit replay`` was asked to.

In: a trace, and what the user asked for. Out: what is said of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.replay_output import Said, said
from tracekit.trace.errors import MissingDataError

if TYPE_CHECKING:
    from tracekit.replaying import ReplayResult
    from tracekit.scoring import PredictResult
    from tracekit.trace import Trace


@dataclass(frozen=True)
class Task:
    """What is done with each trace.

    Attributes
    ----------
    console : Console
    policies, predictors : list of str
        At least one of them is not empty.
    replayed_with, scored_with : mapping
        Arguments of `tracekit.replay` and `tracekit.predict`.
    fitted_with : mapping or None
        Arguments of `tracekit.timing.fit`, and `calibrate`: the path of the recording that has the times,
        None for the trace itself. Without a mapping no time is predicted.
    """

    console: Console
    policies: Sequence[str]
    predictors: Sequence[str]
    replayed_with: Mapping[str, Any]
    scored_with: Mapping[str, Any]
    fitted_with: Mapping[str, Any] | None

    def said_of(self, path: Path, of: str = "") -> Said:
        """Return what is said of the trace at `path`; progress lines call it `of`.

        Raises
        ------
        UsageError, TraceError, MissingDataError
            As for `tracekit.replay` and `tracekit.predict`.
        """
        trace = open_trace(path, self.console)
        replayed = self._replayed(trace, f"replay{of}") if self.policies else None
        scored = None
        if self.predictors:
            try:
                scored = self._scored(trace, f"predict{of}")
            except MissingDataError as error:
                if replayed is None:
                    raise
                replayed.notes.append(f"Left out: {error}")
        return said(replayed, scored, self.replayed_with["per_layer"])

    def _replayed(self, trace: "Trace", label: str) -> "ReplayResult":
        from tracekit.replaying import replay

        time = False if self.fitted_with is None else _fitted(trace, **self.fitted_with)
        with self.console.progress(label) as progress:
            return replay(trace, self.policies, time=time, progress=progress, **self.replayed_with)

    def _scored(self, trace: "Trace", label: str) -> "PredictResult":
        from tracekit.scoring import predict

        with self.console.progress(label) as progress:
            return predict(trace, self.predictors, progress=progress, **self.scored_with)


def _fitted(trace: "Trace", calibrate: Path | None, repeated: Sequence[Path], **facts: Any) -> Any:
    from tracekit.formats import open_any
    from tracekit.timing import fit

    timed = open_any(calibrate) if calibrate else trace
    return fit(timed, repeated=[open_any(path) for path in repeated], **facts)

"""Does a claim about traces hold when anyone runs it again? Studies, and how they are run.

A study is a TOML file that names traces, runs over them, and claims about the result. `sweep` runs it
and says of each claim whether it holds.
"""

from tracekit.studies.claims import Verdict
from tracekit.studies.find import measured_paths, trace_paths
from tracekit.studies.finished import FinishedWork
from tracekit.studies.former import is_former_result
from tracekit.studies.run import StudyResult, sweep
from tracekit.studies.spec import Study, read_study

__all__ = [
    "FinishedWork",
    "Study",
    "StudyResult",
    "Verdict",
    "is_former_result",
    "measured_paths",
    "read_study",
    "sweep",
    "trace_paths",
]

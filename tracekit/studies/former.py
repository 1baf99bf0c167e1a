"""Former results of a study, which a new one may replace; other files may be anything.

In: a study. Out: whether what stands in the place of its result table is one of its own.
"""

import csv

from tracekit.figures import from_csv_cell, printable
from tracekit.studies.spec import Study


def is_former_result(study: Study) -> bool:
    """Say whether the file in the place of the result of `study` is such a result.

    A result table begins with the column `trace`, says of each row which policy, predictor or transfer
    it is of, and names no trace that the study does not have.
    """
    traces = {printable(name) for name in (*study.traces, *study.measured)}
    try:
        with study.result_path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if header[:1] != ["trace"] or not {"policy", "predictor", "transfer"} & {*header}:
                return False
            return all(row and from_csv_cell(row[0]) in traces for row in rows)
    except (OSError, UnicodeDecodeError, csv.Error):
        return False

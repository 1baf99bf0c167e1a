"""Validation of the layers and the steps of a trace: types of columns, then values, then order.

In: the columns of the files, and the passes of the routings. Out: nothing, or a `TraceError` that
names file, row, column, value and remedy. The checks are in `typecheck`, `checks`, `layers`, `order`
and `costs`; `routings` checks the routings.
"""

from tracekit.trace import order, typecheck
from tracekit.trace.costs import check_costs
from tracekit.trace.facts import TraceFacts
from tracekit.trace.layers import LayerTable, check_layers
from tracekit.trace.pass_table import PassTable
from tracekit.trace.schema import steps_schema
from tracekit.trace.steps import PLACE, StepTable

# Embeddings can be large: they are checked as they are read.
STEP_COLUMNS = frozenset(steps_schema().names)


def check_layers_and_steps(
    facts: TraceFacts, routed: PassTable, layers: LayerTable, steps: StepTable
) -> None:
    """Check the other files, and that they agree with the routings.

    Parameters
    ----------
    facts : TraceFacts
    routed : PassTable
        The passes of the routings, checked.
    layers : LayerTable
    steps : StepTable

    Raises
    ------
    TraceError
    """
    typecheck.check_layers_types(layers.columns.file, layers.columns.rows.schema)
    check_layers(layers.columns.where(), layers.scalars, facts.model)
    columns = steps.columns
    typecheck.check_steps_types(columns.file, columns.rows.schema, facts.model)
    order.check_steps(columns.where(), steps.places, routed)
    others = [name for name in columns.names if name in STEP_COLUMNS.difference(PLACE)]
    spans, after_s = columns.spans(others), 0.0
    for (start, _), part in zip(spans, columns.read_each(others, spans), strict=True):
        after_s = check_costs(columns.where(start), part, after_s)

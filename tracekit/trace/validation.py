"""Validation of a trace, file by file: first the types of its columns, then values, then order.

In: the columns of the files. Out: sentences to warn of, or a `TraceError` that names file, row,
column, value and remedy. The checks are in `typecheck`, `checks`, `layers`, `order`, `costs` and
`missing`.
"""

from tracekit.trace import order, typecheck
from tracekit.trace.checked import CheckedColumns
from tracekit.trace.checks import Arrays
from tracekit.trace.costs import check_costs
from tracekit.trace.facts import TraceFacts
from tracekit.trace.layers import LayerTable, check_layers
from tracekit.trace.missing import missing_rows
from tracekit.trace.schema import routing_schema, steps_schema
from tracekit.trace.steps import StepTable

# All columns that a trace can have. Others are their author's, and not checked.
ROUTING_COLUMNS = frozenset(routing_schema(1, 1, 1, layer_times=True).names)
STEP_COLUMNS = frozenset(steps_schema(1).names)
PLACE = ("turn", "pass", "phase", "step", "layer")


def check_routing_file(columns: CheckedColumns, complete: bool, most_bytes: int) -> None:
    """Check the routings; columns of more than `most_bytes` are checked as they are read.

    Parameters
    ----------
    columns : CheckedColumns
    complete : bool
        An incomplete trace may lack the last layers of its last pass.
    most_bytes : int

    Raises
    ------
    TraceError
    """
    typecheck.check_routing_types(columns.file, columns.rows.schema, columns.model)
    columns.check(ROUTING_COLUMNS, most_bytes)
    order.check_routing(columns.where(), columns.whole(PLACE), complete)


def check_layers_and_steps(
    name: str, facts: TraceFacts, routings: Arrays, layers: LayerTable, steps: StepTable
) -> list[str]:
    """Check the other files, and that they agree with the routings.

    Parameters
    ----------
    name : str
        What sentences call the trace.
    facts : TraceFacts
    routings : mapping
        Their places, checked.
    layers : LayerTable
    steps : StepTable

    Returns
    -------
    list of str
        A sentence, if rows seem to be missing.

    Raises
    ------
    TraceError
    """
    typecheck.check_layers_types(layers.columns.file, layers.columns.rows.schema)
    check_layers(layers.columns.where(), layers.scalars, facts.model)
    columns = steps.columns
    typecheck.check_steps_types(columns.file, columns.rows.schema, facts.model)
    # Embeddings can be large: they are checked as they are read.
    known = [name for name in columns.names if name in STEP_COLUMNS - {"embedding"}]
    places = columns.read(known)
    order.check_steps(columns.where(), places, routings)
    check_costs(columns.where(), places)
    lacks = missing_rows(name, facts, routings, places, lambda: steps.kept, layers.scalars)
    return [] if lacks is None else [lacks]

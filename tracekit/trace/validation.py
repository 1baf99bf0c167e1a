"""Validation of a trace, file by file: first the types of its columns, then values, then order.

In: the columns of a file. Out: nothing, or a `TraceError` that names file, row, column, value and
remedy. The checks themselves are in `typecheck`, `checks`, `layers` and `order`.
"""

from tracekit.trace import order, typecheck
from tracekit.trace.checked import CheckedColumns
from tracekit.trace.checks import Arrays
from tracekit.trace.layers import LayerTable, check_layers
from tracekit.trace.schema import routing_schema, steps_schema

# All columns that a trace can have. Others are their author's, and not checked.
ROUTING_COLUMNS = frozenset(routing_schema(1, 1, 1).names)
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


def check_steps_file(columns: CheckedColumns, routings: Arrays) -> None:
    """Check the steps, and that they agree with the places of the `routings`.

    Raises
    ------
    TraceError
    """
    typecheck.check_steps_types(columns.file, columns.rows.schema, columns.model)
    # Embeddings can be large: they are checked as they are read.
    known = [name for name in columns.names if name in STEP_COLUMNS - {"embedding"}]
    order.check_steps(columns.where(), columns.read(known), routings)


def check_layers_file(columns: CheckedColumns, table: LayerTable) -> None:
    """Check the layers; the arrays of the routers are checked as they are read.

    Raises
    ------
    TraceError
    """
    typecheck.check_layers_types(columns.file, columns.rows.schema)
    check_layers(columns.where(), table.scalars, columns.model)

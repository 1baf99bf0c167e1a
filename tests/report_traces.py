"""Traces on disk for the tests of the report, with text that tries to be markup."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace import Trace, synthesize, write_trace

HOSTILE_NAME = "<img src=x onerror=\"window.hacked='name'\">&amp;<b>model</b>"
HOSTILE_PROMPT = "</dd></script><script>window.hacked='prompt'</script>\u2028<!--"
HOSTILE_PIECES = [
    b"</script><script>window.hacked='piece'</script>",
    b"<img src=x onerror=window.hacked='piece'>",
    b"<!--",
    "\u2028\u202eesrever".encode(),
    b"\xe2\x28",
    b"\n",
    b" plain",
]


def write(path: Path, *, hostile: bool = False, **sizes) -> Path:
    """Write a synthetic trace; a hostile one has markup wherever a trace holds text."""
    defaults = {
        "n_layer": 4,
        "n_expert": 16,
        "top_k": 2,
        "n_tokens": 40,
        "n_turns": 2,
        "prefill": 5,
    }
    write_trace(synthesize(**{**defaults, **sizes}), path)
    if hostile:
        edit_facts(
            path,
            lambda facts: (
                facts["model"].update(name=HOSTILE_NAME, quantisation=HOSTILE_NAME),
                facts.update(prompts=[HOSTILE_PROMPT], command=["tracekit", HOSTILE_PROMPT]),
            ),
        )
        edit_pieces(path, HOSTILE_PIECES)
    return path


def edit_facts(path: Path, change) -> None:
    """Let `change` edit the JSON object of the facts in place."""
    file = path / "trace.json"
    facts = json.loads(file.read_text())
    change(facts)
    file.write_text(json.dumps(facts))


def edit_pieces(path: Path, pieces: list[bytes]) -> None:
    """Give the steps of a trace these pieces of text, over and over."""
    file = path / "steps.parquet"
    steps = pq.read_table(file)
    column = steps.schema.get_field_index("piece")
    repeated = [pieces[i % len(pieces)] for i in range(len(steps))]
    field = steps.schema.field(column)
    pq.write_table(steps.set_column(column, field, pa.array(repeated, pa.binary())), file)


def open_written(path: Path, **sizes) -> Trace:
    """Write a trace and open it."""
    return Trace.open(write(path, **sizes))

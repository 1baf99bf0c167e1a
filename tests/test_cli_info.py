"""``tracekit info``, ``import`` and ``policies``."""

import gzip
import json

import pytest
from cli_helpers import csv_lines, run, write_csv

from tracekit.policies import POLICIES
from tracekit.predictors import PREDICTORS

INFO = """\
trace     {path} (imported, complete)
model     small (small), 2 layers, 2 of them MoE: 8 experts, 2 used per token
experts   1.0 MiB to 1.5 MiB each, bank 20.00 MiB, token cycle 5.00 MiB (what one token touches over \
all layers)
engine    BigMoeOnEdge; cache size unknown; `tracekit import --cache-mib` takes it
tokens    3 prefill, 5 decode; 1 turn, 6 passes
routings  4 prefill, 10 decode
recorded  hit rate 0.00 % decode (20 lookups), 0.00 % cumulative (27 lookups)
replayed  not compared with the recording: the size of the engine's cache is not known
carries   weights, residency
lacks     logits, gate_input, embedding, router_matrix
"""


@pytest.fixture
def small(tmp_path):
    return write_csv(tmp_path / "small.csv")


def test_info_prints_what_a_trace_holds(small):
    done = run("info", small)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(INFO.format(path=small))


def test_info_as_json(small, tmp_path):
    facts = json.loads(run("info", small, "--format", "json").out)
    assert facts["schema"] == "tracekit.info/1"
    assert (facts["turns"], facts["tokens_decode"], facts["token_cycle_bytes"]) == (1, 5, 5 << 20)
    out = tmp_path / "info.json"
    assert run("info", small, "-o", out).err == f"Wrote {out}.\n"
    assert json.loads(out.read_text()) == facts


def test_info_of_a_model_name_with_control_characters(tmp_path):
    lines = csv_lines()
    lines[1] = lines[1].replace("small.gguf", "evil\x1b[31m.gguf")
    done = run("info", write_csv(tmp_path / "x.csv", lines))
    assert "evil\\x1b[31m" in done.out
    assert "\x1b" not in done.out


def test_an_imported_trace_replays_like_its_file(small, tmp_path):
    out = tmp_path / "small.trace"
    done = run("import", small, "-o", out)
    assert (done.code, done.out) == (0, "")
    wrote, unknown, next_command = done.err.splitlines()
    assert wrote.startswith(f"Wrote {out}: 14 routings, ")
    assert unknown.endswith("does not say how large the engine's cache was; give --cache-mib.")
    assert next_command == f"Next: tracekit replay {out}"
    of_file, of_trace = (
        json.loads(run("replay", path, "--format", "json").out)["results"] for path in (small, out)
    )
    assert of_file == of_trace


def test_import_takes_the_size_of_the_engines_cache(small, tmp_path):
    out = tmp_path / "x.trace"
    imported = run("import", small, "-o", out, "--cache-mib", "4.5")
    assert imported.err.endswith(f"Next: tracekit replay {out} --validate\n")
    assert "cache of 4.5 MiB" in run("info", out).out
    done = json.loads(run("replay", out, "--format", "json").out)
    assert done["config"]["cache_bytes"] == [9 << 19]
    refused = run("import", small, "-o", out, "--cache-mib", "-1", "--force")
    assert (refused.code, "from 0 to 1e12" in refused.err) == (2, True)


def test_import_recognises_a_format_by_content(tmp_path):
    packed = tmp_path / "oddly.named"
    packed.write_bytes(gzip.compress("\r\n".join([*csv_lines(turns=2), ""]).encode()))
    out = tmp_path / "x.trace"
    assert run("import", packed, "-o", out).code == 0
    assert json.loads(run("info", out, "--format", "json").out)["turns"] == 2


def test_import_overwrites_only_with_force(small, tmp_path):
    out = tmp_path / "x.trace"
    assert run("import", small, "-o", out).code == 0
    again = run("import", small, "-o", out)
    assert again.code == 2
    assert again.err == f"Error: {out} exists; use --force to overwrite it, or another name.\n"
    assert run("import", small, "-o", out, "--force").code == 0


def test_import_never_replaces_a_folder_that_is_no_trace(small, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_text("dear")
    done = run("import", small, "-o", folder, "--force")
    assert done.code == 2
    assert done.err == (
        f"Error: {folder} is a directory but no trace; it is not overwritten: use another name.\n"
    )
    assert (folder / "a.jpg").read_text() == "dear"


def test_policies_lists_every_registered_class():
    document = json.loads(run("policies", "--format", "json").out)
    assert {entry["name"] for entry in document["policies"]} == {cls.name for cls in POLICIES}
    assert {entry["name"] for entry in document["predictors"]} == {cls.name for cls in PREDICTORS}
    by_name = {entry["name"]: entry for entry in document["policies"]}
    assert by_name["random"]["params"] == {"seed": 0}
    assert by_name["random"]["stochastic"] is True
    table = run("policies").out
    for name in by_name:
        assert f"\n{name} " in table
    rows = run("policies", "--format", "csv").out.splitlines()
    assert len(rows) == 1 + len(document["policies"]) + len(document["predictors"])

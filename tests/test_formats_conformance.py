"""What holds for every registered format: its sample is read, and anything else is one sentence.

A new format is tested here as soon as `format_samples` has a sample of it.
"""

import gzip
import io
import json
import os
import random
import re
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from families import slow_unless
from format_samples import SAMPLES, Sample
from mutations import SENTENCE, mutate, not_one_sentence, refusals, time_limit

from tracekit.formats import FORMATS, ImportOptions, import_any, open_any
from tracekit.formats.given import Given
from tracekit.trace import Trace, TracekitError
from tracekit.trace.schema import DECODE

NAMES = [each.name for each in FORMATS]
SAMPLED = [name for name in NAMES if name in SAMPLES]
OF_ONE_FILE = [name for name in SAMPLED if isinstance(SAMPLES[name].files, bytes)]
OF_TEXT = [name for name in OF_ONE_FILE if SAMPLES[name].is_text]
SECONDS = 20  # far more than any of these files takes


def readers(name: str) -> list:
    """Return the ways to read a file: by content, and as the format `name` at once."""
    return [open_any, FORMATS.find(name)().read]


def sentence_of(read, path: Path) -> str:
    """Return the sentence with which `read` refuses `path`, in bounded time."""
    with time_limit(SECONDS), pytest.raises(TracekitError) as error:
        read(path)
    assert SENTENCE.fullmatch(str(error.value)), str(error.value)
    return str(error.value)


@pytest.fixture
def write(tmp_path):
    def write(content: bytes | dict[str, bytes] | Sample, name: str = "file") -> Path:
        files = content.files if isinstance(content, Sample) else content
        path = tmp_path / name
        for inside, data in files.items() if isinstance(files, dict) else [(".", files)]:
            file = path / inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return path

    return write


def opened(name: str, path: Path) -> Trace:
    """Open a file of the format `name` with the options that it needs."""
    return open_any(path, options=SAMPLES[name].options)


# ---- the sample ---------------------------------------------------------------------------------


def test_every_format_has_a_sample():
    missing = [name for name in NAMES if name not in SAMPLES]
    assert missing == [], (
        f"tests/format_samples.py has no sample of {', '.join(missing)}; add a small valid file "
        "of the format under its name."
    )
    unknown = [name for name in SAMPLES if name not in NAMES]
    assert unknown == [], f"No format is called {', '.join(unknown)}; correct the samples' names."


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_is_a_complete_trace(name, write):
    path = write(SAMPLES[name])
    assert refusals(path, SAMPLES[name].options) == []
    trace = opened(name, path)
    assert trace.name == str(path)
    assert trace.complete
    assert trace.warnings == []
    assert trace.facts.source == "imported"
    assert len(trace.moe_layers) >= 2
    assert trace.n_decoded >= 3 * SAMPLES[name].has_decoded
    assert trace.n_steps >= trace.n_decoded


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_is_imported_as_it_is_opened(name, write, tmp_path):
    path, options = write(SAMPLES[name]), SAMPLES[name].options
    done = import_any(path, tmp_path / "out.trace", options)
    imported, trace = open_any(tmp_path / "out.trace"), opened(name, path)
    assert imported.digest == trace.digest
    assert imported.facts == trace.facts == done.facts
    assert done.n_rows == trace.n_rows
    for column in ("turn", "pass", "step", "phase", "kept", "token"):
        assert np.array_equal(imported.steps([column])[column], trace.steps([column])[column])


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_that_needs_a_flag_is_refused_without_it(name, write):
    needs = FORMATS.find(name).needs
    assert bool(needs) == (SAMPLES[name].options != ImportOptions())
    if needs:
        sentence = sentence_of(open_any, write(SAMPLES[name]))
        assert all(flag in sentence for flag in needs)
        assert "tracekit import" in sentence


@pytest.mark.parametrize("name", NAMES)
def test_a_format_says_what_it_is(name):
    format_class = FORMATS.find(name)
    assert re.fullmatch(r"[a-z0-9_-]+", format_class.name)
    for text in (format_class.summary, format_class.told_by):
        assert text
        assert "\n" not in text


@pytest.mark.parametrize("name", SAMPLED)
def test_only_its_own_format_recognises_a_sample(name, write):
    given = Given.of(write(SAMPLES[name]))
    recognising = [each for each in FORMATS if each().recognises(given)]
    own = [each for each in recognising if not each.is_universal] or recognising
    assert [each.name for each in own] == [name]


@pytest.mark.parametrize("name", [name for name in NAMES if not FORMATS.find(name).is_universal])
def test_a_format_recognises_no_sample_of_another(name, write):
    own = FORMATS.find(name)()
    others = [other for other in SAMPLED if other != name]
    assert [o for o in others if own.recognises(Given.of(write(SAMPLES[o], o)))] == []


# All formats open a file by the same means.
@pytest.mark.parametrize("name", slow_unless(OF_ONE_FILE, "route_trace", "vllm"))
@pytest.mark.parametrize("called", slow_unless(["x.trace", "x.csv", "x.gz", "x"], "x.gz"))
def test_the_name_of_a_file_does_not_matter(name, called, write):
    sample = SAMPLES[name].files
    expected = opened(name, write(sample, "expected")).digest
    assert opened(name, write(sample, called)).digest == expected
    assert opened(name, write(gzip.compress(sample), called)).digest == expected


# ---- cut files ----------------------------------------------------------------------------------


def is_beginning_of(trace: Trace, whole: Trace) -> bool:
    """Say whether the routings of `trace` are the first of `whole`."""
    columns = ["turn", "pass", "phase", "step", "layer", "experts"]
    rows, expected = trace.routing(columns), whole.routing(columns)
    return all(np.array_equal(rows[c], expected[c][: trace.n_rows]) for c in columns)


def may_be_whole(trace: Trace, whole: Trace) -> bool:
    """Say whether nobody can see that `trace` lacks something: it ends with a whole pass."""
    rows = trace.routing(["pass", "phase"])
    in_last_pass = np.count_nonzero(rows["pass"] == rows["pass"][-1])
    is_prompt = rows["phase"][-1] != DECODE
    return trace.n_rows == whole.n_rows or is_prompt or in_last_pass == len(whole.moe_layers)


@pytest.mark.parametrize("name", OF_ONE_FILE)
@pytest.mark.parametrize(
    ("n_cuts", "n_near_end"),
    slow_unless([(4, 4), (15, 20), (60, 20)], (4, 4)),
)
def test_a_cut_file_is_refused_or_read_as_far_as_it_goes(name, n_cuts, n_near_end, write):
    sample, options = SAMPLES[name].files, SAMPLES[name].options
    whole = opened(name, write(sample))
    first_pass = np.count_nonzero(whole.routing(["pass"])["pass"] == 0)
    n_warned = n_refused = 0
    line_ends = [found.end() for found in re.finditer(rb"\n", sample.rstrip())]
    sizes = {
        *np.linspace(1, len(sample) - 1, n_cuts).astype(int),
        *range(len(sample) - n_near_end, len(sample)),
        *line_ends[-n_near_end // 2 :],
    }
    for size in sorted(sizes):
        path = write(sample[:size], "cut")
        if refused := refusals(path, options):
            assert not_one_sentence(refused) == []
            n_refused += 1
            continue
        trace = opened(name, path)
        if (
            trace.n_rows < first_pass
        ):  # of that, not even the layers or k can be told from all files
            n_warned += 1
            continue
        assert is_beginning_of(trace, whole), size
        assert trace.complete == (trace.warnings == []), size
        n_warned += not trace.complete
        assert not trace.complete or may_be_whole(trace, whole), size
        if size in line_ends and trace.n_rows == whole.n_rows:
            assert not trace.complete, "the last line says something, and nobody misses it"
    assert n_refused + n_warned > len(sizes) / 2


@pytest.mark.parametrize("name", OF_ONE_FILE)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_a_cut_gzip_file_is_refused(name, share, write):
    packed = gzip.compress(SAMPLES[name].files)
    path = write(packed[: max(3, int(share * len(packed)))])
    for read in readers(name):
        assert "is a damaged or cut gzip file" in sentence_of(read, path)


# ---- other files --------------------------------------------------------------------------------


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"step": [1, 2, 3]}), file)
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("trace.json", "{}")
    return file.getvalue()


RANDOM = random.Random(0).randbytes(20_000)
EMPTY = {
    "empty": b"",
    "line breaks": b"\r\n\n \t",
    "zeros": b"\0" * 5000,
    "gzip": gzip.compress(b""),
}
FOREIGN = {
    "prose": b"Dear diary,\ntoday I recorded nothing.\n" * 200,
    "UTF-16": "turn,phase,step,layer\n".encode("utf-16") * 100,
    "bytes": RANDOM,
    "gzip of bytes": gzip.compress(RANDOM),
    "gzip without content": b"\x1f\x8b",
    "gzip of gzip": gzip.compress(gzip.compress(b"turn,phase,step,layer")),
    "table": b"step,steps,wall_ms\n1,2,3\n" * 500,
    "JSON": json.dumps({"model": "a", "rows": [[1, 2, 3]] * 100}).encode(),
    "JSON lines": b'{"turn": 0, "experts": [1, 2]}\n' * 100,
    "Parquet": parquet(),
    "ZIP": archive(),
    "PNG": b"\x89PNG\r\n\x1a\n" + RANDOM,
    "ELF": b"\x7fELF\x02\x01\x01" + RANDOM,
    "one long line": b"9" * 5_000_000,
    "zeros, then text": b"\0" * 5000 + b"turn,phase,step,layer",
    "open brackets": b"[" * 1_000_000,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("content", EMPTY)
def test_an_empty_file_is_refused(name, content, write):
    path = write(EMPTY[content])
    by_content, as_format = (sentence_of(read, path) for read in readers(name))
    assert by_content == f"{path} is empty; record or copy it again."
    assert str(path) in as_format


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file_is_refused(content, write):
    path = write(FOREIGN[content])
    assert str(path) in sentence_of(open_any, path)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_refuses_foreign_files(name, write):
    for content, data in FOREIGN.items():
        path = write(data, content)
        assert str(path) in sentence_of(FORMATS.find(name)().read, path), content


@pytest.mark.parametrize("name", NAMES)
def test_a_format_refuses_the_samples_of_others(name, write):
    for other in SAMPLED:
        if other != name:
            sentence_of(FORMATS.find(name)().read, write(SAMPLES[other], other))


def test_a_file_of_no_format_is_told_which_there_are(write):
    path = write(FOREIGN["prose"])
    sentence = sentence_of(open_any, path)
    assert sentence.startswith(f"{path} is no trace that tracekit knows: ")
    assert "`tracekit formats`" in sentence
    assert "docs/formats.md" in sentence


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_is_refused(name, tmp_path):
    by_content, as_format = (sentence_of(read, tmp_path) for read in readers(name))
    assert by_content.startswith(f"{tmp_path} is a directory but no trace: it holds no trace.json")
    assert as_format.startswith(f"{tmp_path} is not of the format {name}")


NO_FILE = "{} is a directory, pipe or device and no file; "


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_refused_without_waiting(name, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for read in readers(name):
        assert sentence_of(read, path).startswith(NO_FILE.format(path))


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_refused(device):
    assert sentence_of(open_any, Path(device)).startswith(NO_FILE.format(device))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("called", ["nothing", "n" * 300, "nothing/at all"])
def test_a_file_that_does_not_exist_is_refused(name, called, tmp_path):
    for read in readers(name):
        assert sentence_of(read, tmp_path / called).startswith(f"{tmp_path / called} ")


# ---- hostile files ------------------------------------------------------------------------------

HOSTILE = {
    "digits": b"9" * 1_000_000,
    "digits that end wrong": b"9" * 1_000_000 + b"x",
    "spaces": b" " * 1_000_000 + b".",
    "keys": b" a=" * 300_000,
    "key without an end": b" key=" + b" " * 1_000_000 + b".",
    "commas": b"," * 1_000_000,
    "quotes": b'"' * 100_001,
    "line breaks": b"\n" * 300_000,
    "carriage returns": b"\r" * 300_000,
    "zeros": b"\0" * 1_000_000,
    "brackets": b"[" * 200_000,
    "objects": b'{"a":' * 200_000,
    "not UTF-8": b"\xff\xfe\x80" * 1000,
    "long number": b"1" * 5000,
    "exponent": b"1e999999999",
    "negative": b"-1",
    "not a number": b"nan",
    "line of a number": b"-1\n",
    "line of a list": b"[1]\n",
    "line of null": b"null\n",
}
# Those that the fast suite tries: of each kind of fault one.
FEW_HOSTILE = ("brackets", "long number", "line of a list")


@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.parametrize("content", slow_unless(HOSTILE, *FEW_HOSTILE))
@pytest.mark.parametrize("everywhere", slow_unless([False, True], False))
def test_hostile_text_in_a_sample_is_read_or_refused(name, content, everywhere, write):
    sample, rng = SAMPLES[name].files, random.Random(content)
    lines = [m.end() for m in re.finditer(rb"\n", sample)]
    inside = [rng.randrange(len(sample)) for _ in range(3)]
    places = (0, lines[0], lines[len(lines) // 2], len(sample), *inside)
    for at in places if everywhere else places[2::2]:
        path = write(sample[:at] + HOSTILE[content] + sample[at:])
        with time_limit(SECONDS):
            assert not_one_sentence(refusals(path, SAMPLES[name].options)) == []


@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.parametrize(
    "content",
    slow_unless(
        ["digits", "spaces", "commas", "zeros", "brackets", "not UTF-8"],
        *("digits", "zeros", "brackets"),
    ),
)
@pytest.mark.parametrize("share", slow_unless([0.5, 0.1, 0.9], 0.5))
def test_a_sample_that_goes_on_as_something_else_is_never_read_as_complete(
    name, content, share, write
):
    """The first half of a file whose rest was overwritten is no trace without a warning."""
    sample = SAMPLES[name].files
    start = sample[: int(share * len(sample))]
    path = write(start + HOSTILE[content])
    with time_limit(SECONDS):
        refused = refusals(path, SAMPLES[name].options)
        assert refused or not opened(name, path).complete
    assert not_one_sentence(refused) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.parametrize("number", [b"9" * 5000, b"1e999", b"-1", b"nan", b"9" * 20, b""])
def test_a_number_of_another_size_is_read_or_refused(name, number, write):
    sample = SAMPLES[name].files
    numbers = list(re.finditer(rb"\d+", sample))
    refused = []
    for found in random.Random(0).sample(numbers, min(40, len(numbers))):
        path = write(sample[: found.start()] + number + sample[found.end() :])
        with time_limit(SECONDS):
            refused += refusals(path, SAMPLES[name].options)
    assert len(refused) > 10
    assert not_one_sentence(refused) == []


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize(
    ("seed", "n_mutants"), slow_unless([(0, 8), *((s, 50) for s in range(22))], (0, 8))
)
def test_a_mutated_sample_is_read_or_refused(name, seed, n_mutants, write):
    rng = random.Random(seed)
    files = SAMPLES[name].files
    refused = []
    for _ in range(n_mutants):
        if isinstance(files, dict):
            inside = rng.choice(list(files))
            path = write({**files, inside: mutate(files[inside], rng)})
        else:
            path = write(mutate(files, rng))
        with time_limit(SECONDS):
            refused += refusals(path, SAMPLES[name].options)
    assert len(refused) > n_mutants / 4
    assert not_one_sentence(refused) == []

"""What holds for every format of counts: its sample is read, it is no trace, anything else is a sentence.

A new format is tested here as soon as `counts_samples` has a sample of it.
"""

import gzip
import random
import re
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run
from counts_samples import COUNTS_SAMPLES, TABLE
from families import slow_unless
from format_samples import SAMPLES
from mutations import SENTENCE, mutate, not_one_sentence, time_limit

from tracekit.formats import COUNTS, ExpertCounts, open_any, open_counts
from tracekit.formats.given import Given
from tracekit.trace import TraceError, TracekitError

NAMES = [each.name for each in COUNTS]
SAMPLED = [name for name in NAMES if name in COUNTS_SAMPLES]
OF_ONE_FILE = [name for name in SAMPLED if isinstance(COUNTS_SAMPLES[name].files, bytes)]
SECONDS = 20


@pytest.fixture
def write(tmp_path):
    def write(files: bytes | dict[str, bytes], name: str = "file") -> Path:
        path = tmp_path / name
        for inside, data in files.items() if isinstance(files, dict) else [(".", files)]:
            file = path / inside
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return path

    return write


def sentence_of(read, path: Path) -> str:
    with time_limit(SECONDS), pytest.raises(TracekitError) as error:
        read(path)
    assert SENTENCE.fullmatch(str(error.value)), str(error.value)
    return str(error.value)


def refusals(path: Path) -> list[str]:
    """Open counts; return the sentence that refused them, if one did."""
    try:
        with time_limit(SECONDS):
            open_counts(path)
    except TracekitError as error:
        return [str(error)]
    return []


def test_every_format_of_counts_has_a_sample():
    assert sorted(NAMES) == sorted(COUNTS_SAMPLES)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_gives_its_counts(name, write):
    sample = COUNTS_SAMPLES[name]
    counts = open_counts(write(sample.files))
    assert isinstance(counts, ExpertCounts)
    assert counts.counts.dtype == np.int64
    assert counts.counts.tolist() == TABLE[1:].tolist()
    assert counts.layers == sample.layers
    assert (counts.format, counts.n_expert, counts.warnings) == (name, 4, [])
    assert counts.top_k in (None, 2)
    assert counts.n_tokens in (None, 5)
    assert not counts.counts.flags.writeable


@pytest.mark.parametrize("name", SAMPLED)
def test_only_its_own_format_recognises_a_sample(name, write):
    given = Given.of(write(COUNTS_SAMPLES[name].files))
    assert [each.name for each in COUNTS if each().recognises(given)] == [name]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_format_of_counts_recognises_a_trace(name, write):
    path = write(SAMPLES[name].files)
    assert [each.name for each in COUNTS if each().recognises(Given.of(path))] == []
    assert "holds no counts that tracekit knows" in sentence_of(open_counts, path)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_of_counts_says_what_it_is(name):
    format_class = COUNTS.find(name)
    assert re.fullmatch(r"[a-z0-9-]+", format_class.name)
    for text in (format_class.summary, format_class.told_by):
        assert text
        assert "\n" not in text


@pytest.mark.parametrize("name", SAMPLED)
def test_counts_are_no_trace(name, write):
    path = write(COUNTS_SAMPLES[name].files)
    sentence = sentence_of(open_any, path)
    assert str(path) in sentence
    assert "`tracekit info`" in sentence
    assert "counts" in sentence


@pytest.mark.parametrize("name", slow_unless(SAMPLED, "imatrix", "sglang-csv"))
def test_every_command_opens_counts_or_says_why_not(name, write, tmp_path):
    path = write(COUNTS_SAMPLES[name].files)
    for command in (["replay"], ["predict"], ["report", "-o", tmp_path / "x.html"]):
        done = run(command[0], path, *command[1:])
        assert (done.code, done.out) == (3, "")
        assert "counts" in done.err
    done = run("info", path)
    assert (done.code, done.err) == (0, "")
    assert f"({name}: how often each expert was used)" in done.out
    for kind in ("popularity", "popularity-sorted", "concentration", "pinning"):
        assert run("plot", kind, path, "-o", tmp_path / f"{kind}.csv").code == 0
    assert run("plot", "reuse", path, "-o", tmp_path / "x.csv").code == 3


@pytest.mark.parametrize("name", OF_ONE_FILE)
@pytest.mark.parametrize("called", ["x.trace", "x.csv", "x.gz", ".coli_usage"])
def test_the_name_of_a_file_does_not_matter(name, called, write):
    sample = COUNTS_SAMPLES[name].files
    for content in (sample, gzip.compress(sample)):
        assert open_counts(write(content, called)).counts.tolist() == TABLE[1:].tolist()


@pytest.mark.parametrize("name", OF_ONE_FILE)
def test_a_cut_file_is_refused(name, write):
    sample = COUNTS_SAMPLES[name]
    for size in np.linspace(1, len(sample.files) - 1, 60).astype(int):
        data = sample.files[:size]
        if sample.is_text and data.endswith(b"\n"):
            continue  # nobody can see that the rest is missing
        refused = refusals(write(data, "cut"))
        assert refused or not sample.files[size:].strip(b"\0"), size  # all but padding
        assert not_one_sentence(refused) == []


FOREIGN = {
    "empty": b"",
    "prose": b"Dear diary,\ntoday I recorded nothing.\n" * 200,
    "zeros": b"\0" * 5000,
    "bytes": random.Random(0).randbytes(20_000),
    "three numbers": b"0 1 2\n" * 100,
    "JSON": b'{"num_experts": 4, "num_experts_per_token": 2}',
    "GGUF": b"GGUF" + b"\0" * 100,
    "gzip without content": b"\x1f\x8b",
    "one long line": b"9" * 1_000_000,
    "brackets": b"[" * 1_000_000,
}


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file_is_refused(content, write):
    path = write(FOREIGN[content])
    assert str(path) in sentence_of(open_counts, path)


@pytest.mark.parametrize("path", ["nothing", "nothing/at all"])
def test_a_file_that_does_not_exist_is_refused(path, tmp_path):
    sentence_of(open_counts, tmp_path / path)


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("seed", slow_unless(range(2), 0))
def test_a_mutated_sample_is_read_or_refused(name, seed, write):
    rng = random.Random(seed)
    files = COUNTS_SAMPLES[name].files
    refused = []
    for _ in range(100):
        if isinstance(files, dict):
            inside = rng.choice(list(files))
            path = write({**files, inside: mutate(files[inside], rng)})
        else:
            path = write(mutate(files, rng))
        refused += refusals(path)
    assert len(refused) > 20
    assert not_one_sentence(refused) == []


NUMBERS = [b"9" * 5000, b"1e999", b"-1", b"nan", b"9" * 20, b"", b"99999", b"1.5"]


@pytest.mark.parametrize("name", [name for name in OF_ONE_FILE if COUNTS_SAMPLES[name].is_text])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_of_another_size_is_read_or_refused(name, number, write):
    sample, refused = COUNTS_SAMPLES[name].files, []
    for found in re.finditer(rb"\d+", sample):
        refused += refusals(write(sample[: found.start()] + number + sample[found.end() :]))
    assert len(refused) > 5
    assert not_one_sentence(refused) == []


def test_counts_that_are_handed_over_are_no_trace_either(write):
    from tracekit.formats import as_trace

    counts = open_counts(write(COUNTS_SAMPLES["imatrix"].files))
    with pytest.raises(TraceError, match="holds counts: how often each expert was used"):
        as_trace(counts)

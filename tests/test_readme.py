"""The pages for people: their commands run, print what is shown, and their links lead somewhere."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from cli_helpers import run
from families import slow_unless, slow_where
from pages import ROOT, WRITTEN, check_shown, commands, links, shown_outputs, words_of

from tracekit import open_trace, replay

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = [shown for page in WRITTEN for shown in shown_outputs(page)]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_outputs_are_shown() -> None:
    assert len(shown_outputs(ROOT / "README.md")) == 3


@pytest.mark.parametrize(
    ("command", "output"),
    # Advice replays every policy that there is.
    slow_where(SHOWN, lambda shown: shown[0].startswith("tracekit advise")),
    ids=[command for command, _ in SHOWN],
)
def test_a_command_prints_what_is_shown(command: str, output: str) -> None:
    done = run(*words_of(command))
    assert done.code == 0
    has_predictor = command.startswith("tracekit predict") or "predictor=" in command
    check_shown(done.out, output, exact=not has_predictor)


def test_the_figures_of_the_first_page_are_those_of_a_replay() -> None:
    sentence = r"LRU hits ([\d.]+) % .*? more than ([\d.]+) %, or ([\d.]+) % if it keeps"
    (shown,) = re.findall(sentence, README, re.DOTALL)
    trace = open_trace("bundled:tiny-moe-64e.trace")
    (lru, kept), (_, dropped) = (
        replay(trace, ["lru", "bound"], cache_mib=2.4, bypass=bypass).records
        for bypass in (False, True)
    )
    found = [f"{100 * record['hit_rate_decode']:.1f}" for record in (lru, dropped, kept)]
    assert list(shown) == found


@pytest.mark.slow  # the fast suite runs the commands of the README beside it
def test_what_reading_ahead_is_said_to_bring_is_what_it_brings() -> None:
    sentence = (
        r"Here LRU hits ([\d.]+) %\sand follow ([\d.]+) %; reading ahead by recall makes that "
    )
    sentence += r"([\d.]+) and ([\d.]+) %, by the stale gate ([\d.]+) and ([\d.]+) %"
    (shown,) = re.findall(sentence, README)
    command = re.search(r"^(tracekit replay .* --param prefetch.base=lru,follow)$", README, re.M)[1]
    results = json.loads(run(*words_of(command), "--format", "json").out)["results"]
    assert [f"{100 * row['hit_rate_decode']:.1f}" for row in results] == list(shown)


def test_the_first_table_is_that_of_the_study() -> None:
    frame = pd.read_csv(ROOT / "replays" / "policies.csv")
    shown = re.findall(r"^\|[^|]*\| ([\d.]+) MiB, .*", README, re.MULTILINE)
    assert len(shown) == 3
    lines = re.findall(r"^\|[^|]*\| [\d.]+ MiB, [^|]*\|(.*)\|$", README, re.MULTILINE)
    for trace, mib, line in zip(("tiny", "qwen", "gptoss"), shown, lines, strict=True):
        rows = frame[(frame["trace"] == trace) & (frame["cache_mib"].sub(float(mib)).abs() < 0.01)]
        rates = rows.set_index("policy")["hit_rate_decode"]
        found = [f"{100 * rates[name]:.1f}" for name in ("lru", "lrfu", "follow", "belady")]
        assert re.findall(r"[\d.]+(?= %)", line) == found
    closed = frame.groupby("policy")["mean_closure"].unique()
    for policy, sentence in (
        ("follow", r"it closes (\d+), (\d+) and (\d+) % of the way"),
        ("lrfu", r"LRFU (\d+), (\d+) and\s(\d+) %"),
    ):
        (figures,) = re.findall(sentence, README)
        assert list(figures) == [f"{100 * mean:.0f}" for mean in closed[policy]]


def test_the_first_command_runs() -> None:
    command = re.search(r"&& (tracekit replay data/[^\n]+)", README)[1]
    assert run(*words_of(command)).code == 0


def test_the_python_example_runs() -> None:
    code = re.search(r"```python\n(import tracekit\n.*?)```", README, re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})


def test_the_lines_that_write_arrays_lead_to_a_trace(tmp_path, monkeypatch) -> None:
    code = re.search(r"```python\n(import numpy as np\n.*?np.savez.*?)```", README, re.DOTALL)[1]
    assert set(code.split("\n")) <= {
        line.strip() for line in run("import", "--help").out.split("\n")
    }
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    chosen = rng.permuted(np.tile(np.arange(64), (520, 3, 1)), axis=2)[:, :, :4]
    exec(compile(code, "README.md", "exec"), {"chosen": list(chosen)})
    (command,) = re.findall(r"tracekit (import run\.npz .*)", README)
    done = run(*command.split())
    assert (done.code, done.out) == (0, "")
    assert "512 prefill, 8 decode; 1 turn, 9 passes" in run("info", "run.trace").out


AHEAD = "prefetch.predictor=again:Again"
OWN = {
    "a policy": ("replay {} --policy lru,first_in:FirstIn --cache-mib 2.4", "\nfirst-in "),
    "a predictor": ("predict {} --predictor again:Again,prev-token", "again "),
    "both": (f"replay {{}} --policy lru,prefetch --param {AHEAD}", AHEAD.partition(".")[2]),
}


@pytest.mark.parametrize("what", slow_unless(OWN, "a policy"))
def test_what_is_shown_of_ones_own_is_an_example_that_runs(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = ROOT / "tests" / "examples"
    page = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
    for name in ("first_in", "again"):
        assert f"```python\n{(examples / name).with_suffix('.py').read_text()}```" in page
    monkeypatch.syspath_prepend(examples)
    command, found = OWN[what]
    done = run(*command.format("bundled:tiny-moe-64e.trace").split())
    assert done.code == 0
    assert found in done.out


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_option_named_exists(page) -> None:
    for command in commands(page):
        words = words_of(command)
        offered = run(words[0], "--help").out if not words[0].startswith("-") else run("--help").out
        for word in words:
            if word.startswith("--"):
                assert word.split()[0] in offered, command  # --versus takes several words


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page) -> None:
    for link in links(page):
        assert (page.parent / link).exists(), link

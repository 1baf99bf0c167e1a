"""The forms that anybody can write: how, and what each array or column means.

Every array, column and alias that a reader knows has to have a meaning here; otherwise the page is not
written.
"""

from collections.abc import Mapping

from tracekit.formats.array_run import KEYS, NUMBERS, TEXTS
from tracekit.formats.names import ALIASES

Rows = list[tuple[str, ...]]

COLUMNS = {
    "prompt": "which prompt, or conversation: a number or a text; rows of one follow each other, and are one turn",
    "token": "position of the token in its prompt, from 0, the generated ones too",
    "layer": "the model's own number of the layer, from 0",
    "experts": "the selected expert, or the list of them; −1: none",
    "slot": "rank of the expert in its routing, 0 is the heaviest; then the slots count as ranked",
    "weights": "its routing weight; weights rank the slots; empty or nan: unknown",
    "phase": "`prefill` or `prompt`, `decode` or `generated`; 0 or 1",
    "pass": "number of the forward pass, which ascends within a prompt",
    "token_id": "id of the token",
    "residency": "what the engine's cache did: `miss`, `hit` or `prefetched`; 0, 1 or 2; empty: unknown",
    "dropped": "whether the engine left the expert out: `true` or `false`, 1 or 0",
    "kept": "whether the token stayed; false of a rejected draft that no later pass shows",
    "expert_bytes": "bytes of one expert of the layer; empty: unknown",
}
ARRAYS = {
    "experts": "integers [tokens, layers, k]; −1: none. The one that must be there",
    "prompt_lengths": "[prompts]: how many tokens of each run are the prompt",
    "lengths": "[prompts]: tokens of each run, where there are several",
    "layers": "[layers]: the model's own numbers; without them they count from 0. Of 2 or more experts a token, a layer of zeros is dense",
    "weights": "[tokens, layers, k]",
    "logits": "[tokens, layers, n_expert]: the router's logits",
    "gate_input": "[tokens, layers, n_embd]: what the router multiplied",
    "prompt": "[tokens]: instead of `lengths`",
    "pass": "[tokens]: where the passes are known",
    "phase": "[tokens]: 0 prefill, 1 decode, or these words; instead of `prompt_lengths`",
    "token": "[tokens]: positions, where they do not count from 0 in each run",
    "token_id": "[tokens]",
    "residency": "[tokens, layers, k]: 0 miss, 1 hit, 2 prefetched by the engine's cache; 255: unknown",
    "dropped": "[tokens, layers, k]: 1: the engine left the expert out; 255: unknown",
    "kept": "[tokens]: 0 of a rejected draft that no later pass shows",
    "expert_bytes": "bytes of one expert: a number, or one for each layer; −1: unknown",
    "n_expert": "experts of a layer",
    "n_layer": "layers of the model, dense ones too",
    "top_k": "experts of a routing",
    "model": "name of the model",
    "arch": "its architecture",
    "slot_order": "`ranked`, `sorted` (by id) or `unknown`",
}

MODEL = """\
No routing trace says how large an expert is, and many do not say how many there are. `tracekit import
FILE --model PATH` takes that from the model's own file: a GGUF file (of a split model the first part),
a safetensors file or a folder of them, or a `config.json`. Headers are read, and of the weights only
the routers, their biases and the norms before them, so that `stale-gate` and `ctrl` work on imported
gate inputs. With `--embeddings`, each token whose id the file says keeps its embedding too, so that
`embedding-gate` works without any gate input: 4 bytes for each value of each token. Of a GGUF file the
bytes of an expert are those of its weights, which an engine reads; biases of experts stay in memory. Of
safetensors files they are all of its tensors. A `config.json`
gives an estimate, and the trace says so. `--expert-mib M` gives a size by hand."""

COUNTS = """\
Some files hold how often each expert was used, and nothing of the order. They are no trace: `import`,
`replay`, `predict` and `report` refuse them. `tracekit info FILE`, `tracekit plot popularity FILE` (and
`popularity-sorted`, `concentration`, `pinning`) and `tracekit.open_counts(FILE)` open them. `info`
estimates which share of the lookups would hit if the hottest experts stayed in memory, as if each
token selected independently; `--cache-slots N`, or `--cache-mib M` with `--expert-mib` or `--model`,
lists the experts that fit a budget: the N hottest of every layer, or those with the most hits for each byte. Of a trace `info`
lists them too."""

INTRODUCTION = (
    "Whoever has arrays writes one of these forms in a few lines; all names of a column are read, in "
    "any case of letters. What nobody says is inferred, and `tracekit info` says so: without a phase, "
    "a pass or prompt lengths every token counts as decoded; without passes a prompt is one prefill "
    "pass (`--chunk N`: passes of N tokens) and each generated token one decode pass. The last token "
    "that was sampled has no row, since no layer ran on it. Every routing has the same number of "
    "experts. Sizes of experts come from the file, from `--model` or from `--expert-mib`: without "
    "them, caches are replayed at `--cache-fraction` alone."
)
NPZ = """\
```python
import numpy as np

experts = np.random.default_rng(0).permuted(np.tile(np.arange(64), (600, 24, 1)), axis=2)[:, :, :8]
np.savez("run.npz", experts=experts, prompt_lengths=[100], lengths=[600], n_expert=64)
```"""
# What people have at hand, and how it becomes `experts`; a test runs these lines.
AT_HAND = {
    "router logits [tokens, layers, n_expert], of a model that selects the k largest": (
        "np.argsort(-logits, axis=2)[:, :, :k]"
    ),
    "a mask [tokens, layers, n_expert] of the selected experts": (
        'np.argsort(~mask, axis=2, kind="stable")[:, :, :k]'
    ),
    "an array [tokens, k] for each layer": "np.stack(layers, axis=1)",
    "an array [layers, k] for each token": "np.stack(tokens)",
    "one layer, [tokens, k]": "routed[:, None, :]",
    "floats": "routed.astype(int)",
}
CSV = """\
```python
import csv

with open("run.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["prompt", "token", "layer", "slot", "expert", "weight", "phase"])
    for token in range(10):
        for slot, expert in enumerate([token % 7, 7]):
            phase = "prefill" if token < 4 else "decode"
            rows.writerow(["first", token, 0, slot, expert, 0.5, phase])
```"""
PARQUET = """\
```python
import pandas as pd

places = [(token, layer) for token in range(9) for layer in (0, 1)]
rows = [{"token": t, "layer": n, "experts": [t % 7, 7], "phase": "decode"} for t, n in places]
pd.DataFrame(rows).to_parquet("run.parquet")
```"""
JSONL = """\
```python
import json

with open("run.jsonl", "w") as file:
    print(json.dumps({"model": "mine", "num_experts": 8}), file=file)  # may be left out
    for token in range(9):
        for layer in (0, 1):
            row = {"token": token, "layer": layer, "expert_ids": [token % 7, 7]}
            print(json.dumps({"prompt_id": "a", **row}), file=file)
```"""
GRAPH = (
    "A file `layer,expert` with nothing else, with a header or without, holds every selected expert "
    "in the order of the graph: with `--top-k K`, a pass ends where the layer falls back, and K rows "
    "of a layer are a token."
)
MEMORY = """\
```python
import numpy as np
import tracekit

experts = np.array([[[0, 3], [5, 1]], [[0, 2], [5, 4]], [[3, 2], [5, 0]]])  # [tokens, layers, k]
trace = tracekit.from_arrays(experts, prompt_lengths=1, n_expert=8, expert_mib=3.5)
print(tracekit.replay(trace, ["lru", "bound"], cache_mib=21).to_text())
```

`tracekit.export(trace, "run.npz")` writes it for the command line: `tracekit report run.npz -o
report.html`."""


def arrays() -> Rows:
    """Return the arrays of the npz form: name, other names, meaning."""
    of_rows = {"layer", "slot"}  # an array has axes for them
    _check({*(set(ALIASES) - of_rows), *KEYS, *NUMBERS, *TEXTS, "slot_order"}, ARRAYS)
    return [(f"`{name}`", _others(name), means) for name, means in ARRAYS.items()]


def columns() -> Rows:
    """Return the columns of the long forms: name, other names, meaning."""
    _check(set(ALIASES), COLUMNS)
    return [(f"`{name}`", _others(name), means) for name, means in COLUMNS.items()]


def _others(name: str) -> str:
    return ", ".join(f"`{alias}`" for alias in ALIASES.get(name, ()) if alias != name) or "-"


def _check(names: set[str], meanings: Mapping[str, str]) -> None:
    if names != set(meanings):
        raise ValueError(f"docs/forms.py has to explain exactly: {sorted(names ^ set(meanings))}")

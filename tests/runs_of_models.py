"""A made-up run of a model, and the same run in every universal form and order of rows."""

import csv
import io
import json
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracekit.trace import Trace
from tracekit.trace.schema import DECODE, PREFILL


@dataclass(frozen=True)
class Run:
    """What was routed.

    Attributes
    ----------
    experts : int [tokens, layers, k]
        Of all prompts, one after the other.
    weights : float32 [tokens, layers, k]
        Descending in each routing.
    layers : int [layers]
        Numbers of the MoE layers.
    lengths, prompts : int [prompts]
        Routed tokens, and how many of them are the prompt.
    n_expert : int
    """

    experts: np.ndarray
    weights: np.ndarray
    layers: np.ndarray
    lengths: np.ndarray
    prompts: np.ndarray
    n_expert: int

    @property
    def turn(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def step(self) -> np.ndarray:
        return np.arange(len(self.turn)) - np.repeat(
            np.cumsum(self.lengths) - self.lengths, self.lengths
        )

    @property
    def phase(self) -> np.ndarray:
        return np.where(self.step < self.prompts[self.turn], PREFILL, DECODE)


def made(
    prompts: int = 3, layers: int = 4, k: int = 2, n_expert: int = 16, dense: int = 1, seed: int = 0
) -> Run:
    rng = np.random.default_rng(seed)
    prompt_lengths = rng.integers(1, 6, prompts)
    lengths = prompt_lengths + rng.integers(2, 5, prompts)
    grid = int(lengths.sum()), layers
    experts = rng.permuted(np.tile(np.arange(n_expert), (*grid, 1)), axis=2)[:, :, :k]
    experts[0, :, 0] = n_expert - 1  # the largest id appears
    for at in np.argwhere((experts[0, :, 1:] == n_expert - 1).any(axis=1)).ravel():
        experts[0, at] = np.arange(n_expert - 1, n_expert - 1 - k, -1)
    weights = -np.sort(-rng.random((*grid, k), np.float32), axis=2)
    return Run(
        experts,
        weights,
        np.arange(dense, dense + layers),
        lengths,
        prompt_lengths,
        n_expert,
    )


def rows_of(run: Run, order: str = "engine", slots: bool = True) -> list[dict]:
    """Return one row a slot in an order: engine, token, layer, slot, random."""
    rows = []
    for token in range(len(run.experts)):
        for at, layer in enumerate(run.layers.tolist()):
            for slot in range(run.experts.shape[2]):
                rows.append(
                    {
                        "prompt": int(run.turn[token]),
                        "token": int(run.step[token]),
                        "layer": layer,
                        "slot": slot,
                        "expert": int(run.experts[token, at, slot]),
                        "weight": float(run.weights[token, at, slot]),
                        "phase": "prefill" if run.phase[token] == PREFILL else "decode",
                    }
                )
    keys = {
        "engine": lambda r: (
            r["prompt"],
            -1 if r["phase"] == "prefill" else r["token"],
            r["layer"],
            r["token"],
            r["slot"],
        ),
        "token": lambda r: (r["prompt"], r["token"], r["layer"], r["slot"]),
        "layer": lambda r: (r["prompt"], r["layer"], r["token"], r["slot"]),
        "slot": lambda r: (r["slot"], r["prompt"], r["token"], r["layer"]),
    }
    if order == "random":
        np.random.default_rng(1).shuffle(rows)
        rows.sort(key=lambda r: r["prompt"])
    else:
        rows.sort(key=keys[order])
    if not slots:
        rows = [{name: value for name, value in row.items() if name != "slot"} for row in rows]
    return rows


def lists_of(run: Run, order: str = "engine") -> list[dict]:
    """Return one row a routing, its experts and weights as lists."""
    frame = pd.DataFrame(rows_of(run, order))
    places = ["prompt", "token", "layer", "phase"]
    grouped = frame.groupby(places, sort=False).agg({"expert": list, "weight": list}).reset_index()
    return grouped.rename(columns={"expert": "experts", "weight": "weights"}).to_dict("records")


def as_csv(rows: list[dict]) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def as_jsonl(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[dict]) -> bytes:
    file = io.BytesIO()
    pd.DataFrame(rows).to_parquet(file)
    return file.getvalue()


def as_npz(run: Run, save=np.savez, **more) -> bytes:
    file = io.BytesIO()
    lengths = {"lengths": run.lengths, "prompt_lengths": run.prompts}
    save(file, experts=run.experts, layers=run.layers, weights=run.weights, **lengths, **more)
    return file.getvalue()


def is_of(trace: Trace, run: Run, weights: bool = True) -> bool:
    """Say whether a trace has the routing of a run: experts, weights, turns, phases, passes."""
    rows = trace.routing(["turn", "pass", "phase", "step", "layer", "experts", "weights"])
    order = np.lexsort((rows["layer"], rows["step"], rows["turn"]))
    in_grid = {name: values[order] for name, values in rows.items()}
    n_layers = len(run.layers)
    expected = {
        "turn": np.repeat(run.turn, n_layers),
        "step": np.repeat(run.step, n_layers),
        "phase": np.repeat(run.phase, n_layers),
        "layer": np.tile(run.layers, len(run.turn)),
        "experts": run.experts.reshape(-1, run.experts.shape[2]),
    }
    same = all(np.array_equal(in_grid[name], values) for name, values in expected.items())
    if weights:
        flat = run.weights.reshape(-1, run.experts.shape[2])
        same &= np.array_equal(in_grid["weights"], flat)
    first_decoded = np.concatenate(([True], rows["pass"][1:] != rows["pass"][:-1]))
    n_passes = int(first_decoded.sum())
    return same and n_passes == len(run.lengths) + int((run.phase == DECODE).sum())


def saved(*args, **arrays) -> bytes:
    """Return what ``numpy.savez``, or the function given first, writes."""
    file = io.BytesIO()
    if args:
        args[0](file, *args[1:])
    else:
        np.savez(file, **arrays)
    return file.getvalue()

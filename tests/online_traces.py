"""Small runs with all that an online predictor may meet on its way through a trace."""

import numpy as np
import pyarrow as pa

from tracekit.trace import ModelFacts, Trace, TraceFacts
from tracekit.trace.schema import layers_schema, routing_schema, steps_schema

N_EMBD = 6


def wild_trace(
    seed, n_layers=4, n_expert=9, top_k=2, n_turns=3, drafts=3, gates=False, n_decoded=12
) -> Trace:
    """Return a trace of prompts in chunks, drafts that are verified together, a cancelled prompt.

    A prompt's token does not reach the last layer, but for the last of the prompt. Tokens resemble
    each other: there are few kinds of them, and each layer mostly selects what the kind does.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, n_expert, (4, n_layers, n_expert)).argsort(axis=2)[:, :, :top_k]
    matrix = rng.standard_normal((n_layers, n_expert, N_EMBD)).astype(np.float32)
    routing, steps = [], []
    number = -1

    def run(turn, phase, first, n, kept, reached):
        """Run a pass of n tokens from step `first` on; `reached` layers of each."""
        nonlocal number
        number += 1
        for i in range(n):
            place = {"turn": turn, "pass": number, "phase": phase, "step": first + i}
            steps.append({**place, "kept": bool(kept[i])})
            kind = kinds[rng.integers(len(kinds))]
            for layer in range(reached[i]):
                chosen = kind[layer].copy()
                if rng.random() < 0.5:
                    others = np.setdiff1d(np.arange(n_expert), chosen)
                    chosen[rng.integers(top_k)] = rng.choice(others)
                row = {**place, "layer": layer, "experts": chosen.tolist()}
                row["weights"] = [1 / top_k] * top_k
                if gates:
                    row["gate_input"] = rng.standard_normal(N_EMBD).astype(np.float16).tolist()
                routing.append(row)

    for turn in range(n_turns):
        if turn == 1:  # cancelled in its third layer, and begun anew
            run(turn, 0, 0, 4, [False] * 4, [n_layers - 2] * 4)
        at = 0
        for chunk, is_last in ((3, False), (int(rng.integers(1, 4)), True)):
            reached = [n_layers - 1] * (chunk - 1) + [n_layers if is_last else n_layers - 1]
            run(turn, 0, at, chunk, [True] * chunk, reached)
            at += chunk
        left = n_decoded
        more_text = turn == 2  # comes in the middle of the turn
        while left > 0:
            if more_text and left <= n_decoded // 2:
                run(turn, 0, at, 2, [True] * 2, [n_layers - 1, n_layers])
                at += 2
                more_text = False
            n = int(rng.integers(1, drafts + 1))
            accepted = int(rng.integers(1, n + 1))
            run(turn, 1, at, n, [i < accepted for i in range(n)], [n_layers] * n)
            at += accepted
            left -= accepted
    facts = TraceFacts(
        ModelFacts(
            name="wild",
            arch="wild",
            n_layer=n_layers,
            n_expert=n_expert,
            top_k=top_k,
            n_embd=N_EMBD if gates else None,
        ),
        source="recorded",
        complete=True,
    )
    unused = ("logits", "embedding") if gates else ("logits", "embedding", "gate_input")
    schemas = [
        pa.schema([field for field in schema if field.name not in unused])
        for schema in (routing_schema(top_k, n_expert, N_EMBD), steps_schema(N_EMBD))
    ]
    routing.sort(key=lambda row: (row["pass"], row["layer"], row["step"]))
    layers = [
        {
            "layer": layer,
            "expert_bytes": 1000,
            "router_matrix": matrix[layer].ravel().tolist() if gates else None,
        }
        for layer in range(n_layers)
    ]
    return Trace.from_tables(
        facts,
        pa.Table.from_pylist(layers, layers_schema()),
        pa.Table.from_pylist(routing, schemas[0]),
        pa.Table.from_pylist(steps, schemas[1]),
        name=f"wild-{seed}.trace",
    )

"""Small runs, drawn at random or given, as traces and as the plain loads of `reference`."""

import os
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import permutations

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from reference import Load

from tracekit.policies import Guesses, Popularity
from tracekit.replaying import build_batches
from tracekit.trace import EngineFacts, ModelFacts, Trace, TraceFacts
from tracekit.trace.columns import from_numpy
from tracekit.trace.schema import layers_schema, routing_schema

EXAMPLES = int(os.environ.get("TRACEKIT_EXAMPLES", "15"))  # drawn runs for each test


@dataclass(frozen=True)
class Run:
    """A run as a trace has it: passes of (turn, decode, first step, {layer: rows of experts}).

    Attributes
    ----------
    sizes : dict
        Expert bytes of each MoE layer, by the model's own layer number.
    """

    sizes: dict
    n_expert: int
    top_k: int
    passes: tuple

    @cached_property
    def loads(self):
        """The run for the oracles; layers without a row in a pass load nothing."""
        return [
            Load(
                turn,
                number,
                decode,
                layer,
                tuple(e for row in rows for e in row),
                tuple(rows),
                self.n_expert,
            )
            for number, (turn, decode, _, layers) in enumerate(self.passes)
            for layer, rows in sorted(layers.items())
            if rows
        ]

    @cached_property
    def layer_sizes(self):
        """Sizes of the layers that appear in the run."""
        seen = {load.layer for load in self.loads}
        return {layer: size for layer, size in self.sizes.items() if layer in seen}

    def trace(self, cache_bytes=None, **given):
        """The run as a trace, recorded with a budget and with columns `given` (a row a routing)."""
        columns = {name: [] for name in ("turn", "pass", "phase", "step", "layer", "experts")}
        for number, (turn, decode, first_step, layers) in enumerate(self.passes):
            n_tokens = max(map(len, layers.values()))
            for layer, rows in sorted(layers.items()):
                for i, row in enumerate(rows):
                    columns["turn"].append(turn)
                    columns["pass"].append(number)
                    columns["phase"].append(int(decode))
                    # A layer that got fewer tokens got the last ones.
                    columns["step"].append(first_step + n_tokens - len(rows) + i)
                    columns["layer"].append(layer)
                    columns["experts"].append(row)
        n_rows = len(columns["turn"])
        schema = routing_schema(self.top_k)
        arrays = []
        for field in schema:
            values, valid = given.get(field.name), None
            if field.name == "experts":
                values = np.array(columns["experts"], np.uint16).reshape(n_rows, self.top_k)
            elif field.name in columns:
                values = np.array(columns[field.name], field.type.to_pandas_dtype())
            elif field.name == "weights" and values is not None:
                valid = ~np.isnan(values)
            arrays.append(from_numpy(values, field.type, n_rows, valid))
        n_layer = max([*self.sizes, *columns["layer"], 0]) + 1
        layers = pa.table(
            {
                "layer": pa.array(range(n_layer), pa.int16()),
                "expert_bytes": pa.array([self.sizes.get(i) for i in range(n_layer)], pa.int64()),
                "dense_bytes": pa.nulls(n_layer, pa.int64()),
            }
        )
        for field in list(layers_schema())[3:]:
            layers = layers.append_column(field, pa.nulls(n_layer, field.type))
        facts = TraceFacts(
            model=ModelFacts(
                name="drawn", arch="none", n_layer=n_layer, n_expert=self.n_expert, top_k=self.top_k
            ),
            source="synthetic",
            engine=EngineFacts(name="none", cache_bytes=cache_bytes),
            complete=True,
        )
        return Trace.from_tables(facts, layers, pa.Table.from_arrays(arrays, schema=schema))


@st.composite
def runs(draw, max_layers=3, max_expert=6, max_tokens=6, equal_sizes=False):
    """Draw a run: several turns, prefills in chunks and gathered to their last token, decoding."""
    n_expert = draw(st.integers(1, max_expert))
    top_k = draw(st.integers(1, min(n_expert, 3)))
    layer_ids = draw(
        st.lists(st.integers(0, 5), min_size=1, max_size=max_layers, unique=True).map(sorted)
    )
    size = st.integers(1, 7)
    if equal_sizes:
        sizes = dict.fromkeys(layer_ids, draw(size))
    else:
        sizes = {layer: draw(size) for layer in layer_ids}
    routing = st.sampled_from(list(permutations(range(n_expert), top_k)))
    passes = []
    turn = 0
    for turn in range(draw(st.integers(1, 3))):
        step = 0
        for _ in range(draw(st.integers(0, 2))):  # chunks of the prompt
            n_tokens = draw(st.integers(1, max_tokens))
            rows = {
                layer: draw(st.lists(routing, min_size=n_tokens, max_size=n_tokens))
                for layer in layer_ids
            }
            gathered = draw(st.integers(0, n_tokens)) if len(layer_ids) > 1 else n_tokens
            rows[layer_ids[-1]] = rows[layer_ids[-1]][n_tokens - gathered :]
            passes.append((turn, False, step, rows))
            step += n_tokens
        for _ in range(draw(st.integers(0 if passes else 1, max_tokens))):  # decoded tokens
            passes.append((turn, True, step, {layer: [draw(routing)] for layer in layer_ids}))
            step += 1
    return Run(sizes, n_expert, top_k, tuple(passes))


def budgets_of(run):
    """Budgets that matter for `run`: none, under a batch, under a cycle, around and above all.

    At the last one every layer fits its share.
    """
    bank = sum(run.layer_sizes.values()) * run.n_expert
    cycle = sum(run.layer_sizes.values()) * run.top_k
    return sorted(
        {0, 1, min(run.sizes.values()), cycle - 1, cycle, bank // 2, bank - 1, bank, 4 * bank}
    )


@dataclass(frozen=True)
class Case:
    """A run with made-up weights and guesses, as batches for a policy and as loads for its oracle.

    Attributes
    ----------
    run : Run
    seed : int
        Of the weights, guesses and popularity. A guess is of the next routed layer; half of the guesses are
        right, some name fewer than k experts or none.
    bypass : bool
        What was just used may be dropped at once.
    """

    run: Run
    seed: int
    bypass: bool = False

    @cached_property
    def budgets(self):
        return budgets_of(self.run)

    @cached_property
    def loads(self):
        """The loads with popularity, and with the weights and guesses of decoded tokens."""
        rng = np.random.default_rng(self.seed)
        uses = {turn: tuple(self.uses[turn].items()) for turn in self.uses}
        loads = [replace(load, bypass=self.bypass, uses=uses[load.turn]) for load in self.run.loads]
        k = self.run.top_k
        following = loads[1:] + loads[:1]
        return [
            self._decoded(load, after, k, rng) if load.decode else load
            for load, after in zip(loads, following, strict=True)
        ]

    @cached_property
    def uses(self):
        """How often each key was used elsewhere, for each turn."""
        rng = np.random.default_rng(self.seed + 1)
        return {
            turn: {
                (n, e): int(rng.integers(0, 4))
                for n in self.run.layer_sizes
                for e in range(self.run.n_expert)
            }
            for turn in sorted({turn for turn, *_ in self.run.passes})
        }

    def _decoded(self, load, after, k, rng):
        layers = sorted(self.run.layer_sizes)
        layer = layers[(layers.index(load.layer) + 1) % len(layers)]
        experts = list(after.distinct) if rng.random() < 0.5 and after.layer == layer else []
        experts = [e for _, e in experts] or rng.permutation(self.run.n_expert).tolist()
        guess = [(layer, e) for e in experts[: k if rng.random() < 0.7 else rng.integers(0, k + 1)]]
        weights = np.sort(rng.dirichlet(np.ones(len(guess) or 1)))[::-1][: len(guess)]
        weights[rng.random(len(guess)) < 0.1] = np.nan  # a weight that is not known
        return replace(
            load,
            weights=tuple(float(w) for w in rng.choice(np.float32([0.1, 0.2, 0.3, 0.4]), k)),
            guess=tuple(guess),
            guess_weights=tuple(float(w) for w in weights.astype(np.float32)),
        )

    @cached_property
    def batches(self):
        batches = build_batches(self.run.trace(), bypass=self.bypass)
        place = {layer: i for i, layer in enumerate(batches.layer_ids.tolist())}
        weights = np.full(len(batches.keys), np.nan, np.float32)
        keys = np.full((len(batches), self.run.top_k), -1, np.int32)
        predicted = np.full(keys.shape, np.nan, np.float32)
        for b, load in enumerate(self.loads):
            if load.decode:
                weights[batches.batch_start[b] : batches.batch_start[b + 1]] = load.weights
                n = len(load.guess)
                keys[b, :n] = [place[layer] * self.run.n_expert + e for layer, e in load.guess]
                predicted[b, :n] = load.guess_weights
        known = Popularity(self._counts(batches), np.array([*self.uses], np.int32))
        return replace(batches, weights=weights, guesses=Guesses(keys, predicted), popularity=known)

    def _counts(self, batches):
        counts = np.zeros((len(self.uses), batches.n_keys), np.int64)
        for row, uses in zip(counts, self.uses.values(), strict=True):
            row[:] = [
                uses[layer, expert]
                for layer in batches.layer_ids.tolist()
                for expert in range(self.run.n_expert)
            ]
        return counts


def cases(bypass=None, **limits):
    """Draw a case, with or without bypass where that is not said; `limits` are those of `runs`."""
    admission = st.booleans() if bypass is None else st.just(bypass)
    return st.builds(Case, runs(**limits), st.integers(0, 2**32 - 1), admission)


@cache
def long_case():
    """Return a run of some thousand lookups, in which other experts become popular now and then."""
    rng = np.random.default_rng(0)
    popular = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    passes = [(0, False, 0, {layer: [(0, 1), (4, 5)] for layer in (1, 2)})]
    for step in range(2, 1202):
        popular = np.roll(popular, step % 300 == 0)
        drawn = {
            layer: [tuple(rng.choice(6, 2, replace=False, p=popular).tolist())] for layer in (1, 2)
        }
        passes.append((0, True, step, drawn))
    return Case(Run(sizes={1: 2, 2: 3}, n_expert=6, top_k=2, passes=tuple(passes)), seed=1)

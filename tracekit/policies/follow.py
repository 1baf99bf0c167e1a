"""Evict what is least likely to be used soon, by what followed what so far."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, StateArray, register
from tracekit.policies.fed import FedPolicy, Run
from tracekit.policies.following import Following, judge, learn, nothing_learned
from tracekit.policies.model import Model
from tracekit.policies.offers import NONE, cheapest_of, least_of, nearness_of, next_to_go

_NO_KEYS, _NO_COUNTS = np.empty(0, np.int32), np.empty(0, np.int64)


class Residents(NamedTuple):
    """Which experts are resident at each of C budgets, and what may go.

    Attributes
    ----------
    is_resident : bool [C, n_keys]
    offer : float32 [C, n_keys]
        What keeping a key is worth, or infinity where it cannot go.
    least : float32 [C, L]
        The least offer of each layer.
    touched : int64 [n_keys]
        The lookup that touched each key last, counted over the whole run; -1: none.
    used : int64 [C]
        Resident bytes.
    counts : int64 [2]
        Rows of the table that are given out, and lookups so far.
    """

    is_resident: np.ndarray
    offer: np.ndarray
    least: np.ndarray
    touched: np.ndarray
    used: np.ndarray
    counts: np.ndarray


@register
class Follow(FedPolicy):
    """Evict the resident that is least likely to be used soon, judged by what followed what so far.

    Each layer keeps a table: when a token used expert i, how often did the next token use expert e?
    It is learned from every token, those of prompts one by one too. From the experts of the layer's
    last token the table gives the chance q that e is used when the layer runs next. An expert that is
    not used then may be used in a later round, at its average use a. The value of a resident is
    ``q + (1 − q) · a / (1 + a)``, where a use one round later counts half.

    The victim is the resident of the least value. The value of a layer that runs later counts less:
    ``2^(−d / L)`` of it, where d of the L layers run before. Of equal values the layer that comes
    round last goes first, within a layer the expert that was touched longest ago.

    It needs no token ids, no logits, no predictor and no training, and reads nothing of the future.
    A device carries a table of L × E × E numbers of 4 bytes: 3.1 MB for 48 layers of 128 experts.

    With ``--bypass`` the experts that a batch has just used compete with the others.
    """

    name = "follow"
    summary = "evicts what is least likely to be used soon, by what followed what so far"
    can_bypass = True
    pseudo_code = """\
at the start   fast, slow, avg, value [L][E] = k / E;  table[L][E][E];  n[L][E] = 0;  last[L] = none

token(l, ids)  for each token of a batch, in order, those of a prompt too: its k experts at layer l
    for i in last[l]:
        if n[l][i] == 0: table[l][i][:] = avg[l][:]
        r = max(0.07, 1 / (n[l][i] + 2));  n[l][i] += 1
        table[l][i][:] *= 1 - r
        for e in ids: table[l][i][e] += r
    fast[l][:] *= 0.6;   for e in ids: fast[l][e] += 0.4
    slow[l][:] *= 0.96;  for e in ids: slow[l][e] += 0.04
    last[l] = ids

end_batch(l)   once, after the tokens and before evicting
    avg[l][:] = 0.2 * fast[l][:] + 0.8 * slow[l][:]
    for each expert e:
        q = mean over i in last[l] of (table[l][i][e] if n[l][i] > 0 else k / E);  q = min(q, 1)
        value[l][e] = q + (1 - q) * avg[l][e] / (1 + avg[l][e])

victim(l)      while the residents exceed the budget
    of the residents (m, e) that the batch did not use, the one with the least
        value[m][e] * 2 ** (-d / L)   with d = (m - l - 1) mod L
    ties: the largest d, then the one used longest ago
    (value changes only when its layer runs: keep the cheapest resident of every layer)

All numbers are 32-bit floats."""

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (
            StateArray("table", "L × E × E", 4 * keys * n_expert, "what followed each expert"),
            StateArray("fast, slow", "2 × L × E", 8 * keys, "two running averages of use"),
            StateArray("avg, value", "2 × L × E", 8 * keys, "their mixture, and what is kept"),
            StateArray("n", "L × E", 4 * keys, "how often a row of the table was learned"),
            StateArray("last", "L × k", 2 * n_layers * top_k, "the last token's experts"),
        )

    def start(self, model: Model, budgets: np.ndarray) -> "FollowRun":
        return FollowRun(model, budgets)

    def victims(self, batches: Batches, budget: int) -> list[list[int]]:
        """Return the keys that are evicted after each batch, in order: what a port is checked with.

        Parameters
        ----------
        batches : Batches
        budget : int
            Bytes.
        """
        gone = np.empty(len(batches.keys), np.int32)
        n_gone = np.zeros(len(batches), np.int64)
        FollowRun(batches, np.array([budget], np.int64)).feed(batches, gone=gone, n_gone=n_gone)
        stops = np.cumsum(n_gone)
        return [part.tolist() for part in np.split(gone[: stops[-1]], stops[:-1])]


class FollowRun(Run):
    """All budgets in one pass over each piece, since what is learned does not depend on them."""

    def __init__(self, model: Model, budgets: np.ndarray):
        self._budgets = budgets
        self._nearness = nearness_of(model.n_layers)
        self._learned = nothing_learned(model)
        self._residents = Residents(
            is_resident=np.zeros((len(budgets), model.n_keys), np.bool_),
            offer=np.full((len(budgets), model.n_keys), NONE),
            least=np.full((len(budgets), model.n_layers), NONE),
            touched=np.full(model.n_keys, -1, np.int64),
            used=np.zeros(len(budgets), np.int64),
            counts=np.array([1, 0], np.int64),
        )

    def feed(
        self,
        batches: Batches,
        per_lookup: bool = False,
        gone: np.ndarray = _NO_KEYS,
        n_gone: np.ndarray = _NO_COUNTS,
    ) -> list[Cell]:
        """Replay the next piece; `gone` int32 [N] and `n_gone` int64 [B] get the keys that are evicted."""
        hits = np.empty((len(self._budgets), len(batches)), np.int32)
        resident = np.empty(hits.shape, np.int64)
        hit = np.empty((len(self._budgets), len(batches.keys) if per_lookup else 0), np.bool_)
        rows, row_start = batches.routing_rows()
        _follow(
            batches.keys,
            batches.batch_start,
            batches.layer,
            rows,
            row_start,
            batches.expert_bytes,
            self._nearness,
            self._learned,
            self._residents,
            np.empty(batches.n_layers, np.float32),
            self._budgets,
            batches.bypass,
            hits,
            resident,
            hit,
            gone,
            n_gone,
        )
        return [
            Cell(int(budget), hits[c], resident[c], hit=hit[c] if per_lookup else None)
            for c, budget in enumerate(self._budgets)
        ]


# What is learned does not depend on the budget, so all budgets share one pass. Each budget keeps an
# `offer` for every key, which is its value, or infinity where it cannot go; and of each layer the
# cheapest. All are positive, and positive floats are ordered as their bits are, read as integers: the
# minima are taken of those, since a compiler turns that into vector instructions.
@kernel
def _follow(
    keys: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    rows: np.ndarray,
    row_start: np.ndarray,
    expert_bytes: np.ndarray,
    nearness: np.ndarray,
    state: Following,
    residents: Residents,
    scaled: np.ndarray,
    budgets: np.ndarray,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
    gone: np.ndarray,
    n_gone: np.ndarray,
) -> None:
    n_expert = state.table.shape[1]
    is_resident, offer, least, touched, used, counts = residents
    offer_bits = offer.view(np.int32)
    least_bits = least.view(np.int32)
    n_rows, before = counts
    n_logged = 0
    for b in range(batch_layer.size):
        layer = int(batch_layer[b])
        base = layer * n_expert
        start = batch_start[b]
        stop = batch_start[b + 1]
        for r in range(row_start[b], row_start[b + 1]):
            n_rows = learn(state, n_rows, layer, rows[r])
        judge(state, layer)
        for p in range(start, stop):
            touched[keys[p]] = before + p
        for c in range(budgets.size):
            n_hits = np.int64(0)
            here = is_resident[c]
            for p in range(start, stop):
                key = keys[p]
                if hit.shape[1]:
                    hit[c, p] = here[key]
                if here[key]:
                    n_hits += 1
                else:
                    here[key] = True
            used[c] += (stop - start - n_hits) * expert_bytes[layer]
            offers = offer[c]
            bits = offer_bits[c]
            of_layer = offers[base : base + n_expert]
            value = state.value[base : base + n_expert]
            stays = here[base : base + n_expert]
            for e in range(n_expert):
                of_layer[e] = value[e] if stays[e] else NONE
            if used[c] > budgets[c]:
                if not bypass:
                    for p in range(start, stop):
                        offers[keys[p]] = NONE
                least_bits[c, layer] = least_of(bits, layer, n_expert)
                while used[c] > budgets[c]:
                    other = next_to_go(least[c], nearness, scaled, layer)
                    if least[c, other] == NONE:
                        break
                    victim = cheapest_of(bits, touched, other, n_expert, least_bits[c, other])
                    here[victim] = False
                    offers[victim] = NONE
                    used[c] -= expert_bytes[other]
                    least_bits[c, other] = least_of(bits, other, n_expert)
                    if gone.size:
                        gone[n_logged] = victim
                        n_logged += 1
                        n_gone[b] += 1
                if not bypass:
                    for p in range(start, stop):
                        offers[keys[p]] = state.value[keys[p]]
            least_bits[c, layer] = least_of(bits, layer, n_expert)
            hits[c, b] = n_hits
            resident[c, b] = used[c]
    counts[0], counts[1] = n_rows, before + keys.size

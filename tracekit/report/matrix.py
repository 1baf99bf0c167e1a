"""The data of the step × layer matrix: small pieces that the page unpacks as it shows them.

The arrays of T decoded tokens, L MoE layers and k slots are cut into chunks of tokens. Of each
chunk the page holds the experts and weights once, and the residency once for every *view*: as it
was recorded, or under one policy at one budget.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracekit.figures import visible
from tracekit.replaying.slots import DROPPED
from tracekit.routing.grid import DecodeGrid, decode_grid, decode_weights
from tracekit.routing.residency import recorded_decode_states
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE, MISS, PREFETCHED

CHUNK_LOOKUPS = 1 << 16
# A lookup takes about a byte of page for its expert, and more with a weight: this is some 5 MB.
MOST_LOOKUPS = 4_000_000
NOT_LOOKED_UP = 3  # beside the residency codes of a trace: dropped, or not recorded
UNKNOWN_WEIGHT = 255
WEIGHT_STEPS = 254


@dataclass(frozen=True, eq=False)
class View:
    """The residency of every decode lookup, uint8 [T, L, k], and what a reader calls it."""

    group: str
    label: str
    states: np.ndarray


@dataclass(frozen=True)
class Browser:
    """What the page needs to show the matrix.

    Attributes
    ----------
    config : dict
        Sizes, layers, turns: what the page's script reads first. Numbers only; all text of a trace
        is in the pieces.
    blobs : list of (str, str)
        Name and base64 text of each deflated piece.
    views : list of View
    note : str or None
        What is left out.
    lacks : str or None
        Why there is no matrix.
    """

    config: dict[str, Any] = field(default_factory=dict)
    blobs: list[tuple[str, str]] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    note: str | None = None
    lacks: str | None = None

    @property
    def groups(self) -> dict[str, list[tuple[int, str]]]:
        """Numbers and labels of the views, by group."""
        groups: dict[str, list[tuple[int, str]]] = {}
        for number, view in enumerate(self.views):
            groups.setdefault(view.group, []).append((number, view.label))
        return groups

    @property
    def prefetched(self) -> bool:
        """Whether any expert was found because it had been read ahead."""
        return any((view.states == PREFETCHED).any() for view in self.views)


def recorded_view(trace: Trace, grid: DecodeGrid, label: str) -> View:
    """Return the residency that the engine recorded."""
    states = recorded_decode_states(trace).ravel()[: grid.experts.size].reshape(grid.experts.shape)
    states[states > PREFETCHED] = NOT_LOOKED_UP
    return View("the engine", label, states)


def replayed_view(lookups: np.ndarray, hit: np.ndarray, group: str, label: str) -> View:
    """Return the residency that a replay gives.

    Parameters
    ----------
    lookups : int64 [T, L, k]
        The lookup of each slot, from `lookup_of_slots`; `DROPPED` of a slot that had none.
    hit : bool [N]
        Of each lookup.
    """
    # A miss is 0 and a hit 1 in a trace, too.
    states = np.where(lookups == DROPPED, np.uint8(NOT_LOOKED_UP), hit[lookups].astype(np.uint8))
    return View(group, label, states)


def shown_grid(trace: Trace) -> DecodeGrid:
    """Return the decoded tokens that the matrix shows: the first of them, if there are many."""
    grid = decode_grid(trace)
    return grid.first(max(1, MOST_LOOKUPS // (grid.n_layers * grid.top_k)))


def pack(trace: Trace, grid: DecodeGrid, views: Sequence[View], note: str | None = None) -> Browser:
    """Pack the tokens of `grid`, which is the `shown_grid` of `trace`, under each of `views`."""
    weights = decode_weights(trace, grid) if trace.has("weights") else None
    per_token = grid.n_layers * grid.top_k
    chunk_tokens = max(1, CHUNK_LOOKUPS // per_token)
    id_type = np.uint8 if trace.n_expert <= 256 else np.dtype("<u2")
    scale = None if weights is None else _weight_scale(weights)
    pieces = _pieces(trace, grid.n_tokens)
    blobs = []
    for chunk, start in enumerate(range(0, grid.n_tokens, chunk_tokens)):
        here = slice(start, start + chunk_tokens)
        blobs.append((f"experts-{chunk}", _coded(grid.experts[here].astype(id_type).tobytes())))
        if weights is not None and scale is not None:
            blobs.append((f"weights-{chunk}", _coded(_levels(weights[here], scale))))
        if pieces is not None:
            blobs.append((f"pieces-{chunk}", _coded(json.dumps(pieces[here]).encode())))
        for number, view in enumerate(views):
            blobs.append((f"view-{number}-{chunk}", _coded(_packed(view.states[here]), zlib.Z_RLE)))
    for number, view in enumerate(views):
        missed = (view.states == MISS).sum(axis=(1, 2), dtype="<u4")
        blobs.append((f"missed-{number}", _coded(missed.tobytes())))
    sizes = trace.layer_columns
    size = dict(zip(sizes["layer"].tolist(), sizes["expert_bytes"].tolist(), strict=True))
    config = {
        "tokens": grid.n_tokens,
        "layers": grid.layer.tolist(),
        "topK": grid.top_k,
        "perToken": per_token,
        "expertBytes": [s if (s := size.get(n, -1)) >= 0 else None for n in grid.layer.tolist()],
        "chunkTokens": chunk_tokens,
        "wideExperts": id_type is not np.uint8,
        "weightScale": scale,
        "hasPieces": pieces is not None,
        "turns": len(np.unique(grid.turn)),
        "segments": list(_segments(grid)),
    }
    return Browser(config, blobs, list(views), note)


def _weight_scale(weights: np.ndarray) -> float | None:
    """Return what one step of a byte stands for; None where no weight is known."""
    if np.isnan(weights).all():
        return None
    return max(float(np.nanmax(weights)), 0.0) / WEIGHT_STEPS


def _levels(weights: np.ndarray, scale: float) -> bytes:
    levels = np.rint(weights / scale) if scale > 0 else np.zeros_like(weights)
    known = np.nan_to_num(levels.clip(0, WEIGHT_STEPS), nan=UNKNOWN_WEIGHT)
    return bytes(known.astype(np.uint8))


def _pieces(trace: Trace, n_tokens: int) -> list[str | None] | None:
    """Return the text of the first decoded tokens; what cannot be seen, or is no UTF-8, as its escape."""
    if not trace.has_steps("piece"):
        return None
    steps = trace.steps(["phase", "piece"])
    return [
        None if piece is None else visible(piece.decode(errors="backslashreplace"))
        for piece in steps["piece"][steps["phase"] == DECODE][:n_tokens]
    ]


def _segments(grid: DecodeGrid) -> Iterator[dict[str, int]]:
    """Yield where a run of consecutive steps of one turn begins."""
    breaks = (np.diff(grid.turn) != 0) | (np.diff(grid.step) != 1)
    for token in (0, *(np.flatnonzero(breaks) + 1).tolist()):
        yield {"token": token, "turn": int(grid.turn[token]), "step": int(grid.step[token])}


def _packed(states: np.ndarray) -> bytes:
    """Pack four states to a byte, the first in the lowest bits."""
    flat = np.zeros(-(-states.size // 4) * 4, np.uint8)
    flat[: states.size] = states.ravel()
    return bytes((flat.reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(1, np.uint8))


def _coded(data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> str:
    deflate = zlib.compressobj(strategy=strategy)
    return base64.b64encode(deflate.compress(data) + deflate.flush()).decode()

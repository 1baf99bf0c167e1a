"""What Megatron-LM captures beside a router trace: logits, hidden states, router weights.

In: ``logits_rank{R}.bin`` and ``hidden_states_rank{R}.bin``, raw bfloat16, and ``router_state_rank{R}.pt``.
Out: the values of records as float32; the routers of the layers.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.formats.archives import damaged, opened
from tracekit.formats.given import File, Given
from tracekit.formats.torch_files import Tensor, TorchFile
from tracekit.trace import TraceError

SIDECARS = re.compile(r"(hidden_states|logits)_rank\d+\.bin|router_state_rank\d+\.pt")
FILES = ("hidden_states_rank{}.bin", "logits_rank{}.bin")
STATE = "router_state_rank{}.pt"
GATINGS = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrt-softplus"}
_MOST_TIMES_READ = 2
_SMALL_BYTES = 64 << 20


def beside(given: Given, trace: Path, name: str) -> File | None:
    """Return the file of this name among those given, or beside the trace; None: there is none."""
    for file in given.files:
        if file.path.name == name and file.path.parent == trace.parent:
            return file
    path = trace.parent / name
    return File(path) if path.is_file() else None


class Sidecar:
    """A file of bfloat16 values, a run of them for each record.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = opened(path)
        self._size = self._file.seek(0, os.SEEK_END)
        self._left = _MOST_TIMES_READ * self._size + _SMALL_BYTES

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the values of records one after the other, float32.

        Parameters
        ----------
        offsets, sizes : int [records]
            In bytes.

        Raises
        ------
        TraceError
            The file ends before, or records share its values many times.
        """
        if not len(offsets):
            return np.empty(0, np.float32)
        end = int((offsets + sizes).max())
        if end > self._size:
            raise TraceError(
                f"{self._path} has {self._size} bytes, but the trace refers to its byte {end}; it is "
                "cut or of another run: copy it again."
            )
        self._left -= int(sizes.sum())
        if self._left < 0:
            raise TraceError(
                f"{self._path}: the trace refers to {_MOST_TIMES_READ} times the bytes that it has; "
                "it is of another run."
            )
        if (offsets[1:] == offsets[:-1] + sizes[:-1]).all():
            offsets, sizes = offsets[:1], np.array([sizes.sum()])
        data = bytearray()
        with damaged(str(self._path)):
            for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
                self._file.seek(offset)
                data += self._file.read(size)
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


class RouterState:
    """The routers of one rank.

    Parameters
    ----------
    file : TorchFile
        Holds a dict of a layer's number to its router.

    Raises
    ------
    TraceError
        It holds something else.
    """

    def __init__(self, file: TorchFile):
        self._file = file
        value = file.value
        if not isinstance(value, dict) or not all(
            type(layer) is int and 0 <= layer < 1 << 15 and self._is_router(router)
            for layer, router in value.items()
        ):
            raise TraceError(
                f"{file.path} holds no routers of layers, as Megatron writes them; copy it again."
            )
        self.routers: Mapping[int, Mapping[str, Any]] = value

    @staticmethod
    def _is_router(router: object) -> bool:
        if not isinstance(router, dict):
            return False
        weight, bias = router.get("weight"), router.get("expert_bias")
        return (
            isinstance(weight, Tensor)
            and len(weight.shape) == 2
            and 0 not in weight.shape
            and not weight.is_integer
            and (bias is None or (isinstance(bias, Tensor) and bias.shape == weight.shape[:1]))
        )

    def first_weight(self) -> tuple[int, bytes] | None:
        """Return the first layer and its weights, by which stages are told apart; None: no layer."""
        if not self.routers:
            return None
        layer = min(self.routers)
        with self._file.reading() as read:
            return layer, np.ascontiguousarray(read(self.routers[layer]["weight"])).tobytes()

    def layers(self, first: int) -> list[dict[str, Any]]:
        """Return what the table of layers says of each.

        Parameters
        ----------
        first : int
            The model's number of the stage's layer 0.
        """
        rows = []
        with self._file.reading() as read:
            for layer, router in sorted(self.routers.items()):
                row = {
                    "layer": first + layer,
                    "router_matrix": read(router["weight"]).astype(np.float32).reshape(-1),
                }
                if router.get("expert_bias") is not None:
                    row["selection_bias"] = read(router["expert_bias"]).astype(np.float32)
                rows.append(row)
        return rows

    def facts(self) -> dict[str, Any]:
        """Return what the routers say of the model."""
        routers = list(self.routers.values())
        shapes = {router["weight"].shape for router in routers}
        if len(shapes) != 1:
            raise TraceError(
                f"{self._file.path}: its routers have different sizes, which a trace does not hold."
            )
        ((n_expert, n_embd),) = shapes
        facts: dict[str, Any] = {"n_expert": n_expert, "n_embd": n_embd}
        function = routers[0].get("score_function")
        if isinstance(function, str) and function in GATINGS:
            facts["gating"] = GATINGS[function]
        return facts


def router_states(given: Given, traces: Mapping[int, Path]) -> dict[int, RouterState]:
    """Return the routers of the ranks that have any.

    Parameters
    ----------
    given : Given
    traces : mapping of int to Path
        The trace of each rank.
    """
    states = {}
    for rank, path in traces.items():
        file = beside(given, path, STATE.format(rank))
        if file is None:
            continue
        if file.torch is None:
            raise TraceError(f"{file.path} is no file of torch.save; copy it again.")
        state = RouterState(file.torch)
        if state.routers:
            states[rank] = state
    return states


def stages_of(states: Mapping[int, RouterState], ranks: Sequence[int]) -> dict[int, int] | None:
    """Return the pipeline stage of each rank, told by the weights of its routers; None: not known."""
    if not set(ranks) <= set(states):
        return None
    known: list[tuple[int, bytes] | None] = []
    stages = {}
    for rank in ranks:
        weight = states[rank].first_weight()
        if weight not in known:
            known.append(weight)
        stages[rank] = known.index(weight)
    return stages

"""``tracekit.recording``: record a model that the user runs, from the first evaluation to the last.

In: a model, a path. Out: a trace, written as it is recorded. Nothing here runs the model.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from tracekit import meter
from tracekit.figures import MIB
from tracekit.hooks.forward import Forward, Hooks
from tracekit.hooks.routers import Router, layer_rows, routers_of
from tracekit.hooks.rule import Found, Given, rule_of
from tracekit.hooks.turns import Columns, Turns
from tracekit.trace import EngineFacts, ModelFacts, TraceFacts, TracekitError, TraceWriter
from tracekit.trace.folder import check_target
from tracekit.version import version

DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass
class Recorded:
    """A recording that runs, or has run.

    Attributes
    ----------
    path : Path
    n_turns, n_prefilled, n_decoded : int
        Turns, and tokens of their prompts and after them, so far.
    warnings : list of str
        One sentence each.
    prompts : list of str
        What the turns began with, where the user wants to keep it in the trace.
    sampling : dict
        How tokens were chosen, to be kept in the trace.
    seed : int or None
    ended : str or None
        Why the recording ended, where the user says it.
    """

    path: Path
    n_turns: int = 0
    n_prefilled: int = 0
    n_decoded: int = 0
    warnings: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    ended: str | None = None


@contextmanager
def recording(
    model: Any,
    path: str | Path,
    *,
    tokenizer: Any = None,
    logits: bool = True,
    gate_inputs: bool = True,
    gate_dtype: str = "f32",
    force: bool = False,
    command: Sequence[str] = (),
) -> Iterator[Recorded]:
    """Record how a transformers model routes whatever it evaluates inside the ``with`` block.

    Each call of ``generate`` makes one turn of each sequence of its batch. An evaluation with an
    empty cache begins turns; those that follow go on with them. Padding is left out. Keep the cache
    on, and beams off: beams trade their pasts.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Run in eager mode: compiled models and CUDA graphs pass the hooks by.
    path : str or Path
        The ``.trace`` directory to write. Passes are written as they come: a recording that is
        killed keeps those written so far, but of a batch only the first sequence.
    tokenizer : optional
        Gives the texts of the tokens.
    logits, gate_inputs : bool
        Keep the router's logits; its input and its matrix.
    gate_dtype : {"f32", "f16"}
        Type of the gate inputs in the file.
    force : bool
        Replace the trace that is at `path`.
    command : sequence of str
        The command line, which the trace keeps.

    Yields
    ------
    Recorded

    Raises
    ------
    UsageError
        Something is at `path`.
    TracekitError
        The model is of a family that is not recorded, or evaluated nothing, or the trace cannot be
        written.

    Examples
    --------
    >>> with tracekit.recording(model, "run.trace", tokenizer=tokenizer):
    ...     model.generate(**tokenizer("Once upon a time", return_tensors="pt"), max_new_tokens=64)
    """
    path = Path(path)
    check_target(path, force)
    recorded = Recorded(path)
    keep = _Kept(logits, gate_inputs, gate_dtype, force, list(command))
    run = _Run(model, routers_of(model), recorded, tokenizer, keep)
    hooks = Hooks(model, run.routers, run.take, gate_inputs)
    try:
        try:
            yield recorded
        finally:
            hooks.remove()
            run.turns.end_batch()
    except BaseException as error:
        run.leave(error)
        raise
    run.close()


@dataclass(frozen=True)
class _Kept:
    """What of a run the trace keeps, and where it may go."""

    logits: bool
    gate_inputs: bool
    gate_dtype: str
    force: bool
    command: list[str]


class _Run:
    """A recording while it runs: the writer is made with the first evaluation, which shows k."""

    def __init__(
        self, model: Any, routers: list[Router], recorded: Recorded, tokenizer: Any, keep: _Kept
    ):
        self.model, self.routers, self.recorded = model, routers, recorded
        self.turns = Turns(self._write)
        self._tokenizer = tokenizer
        self._keep = keep
        self._writer: TraceWriter | None = None

    def take(self, forward: Forward) -> None:
        """Take an evaluation of the model."""
        if self._writer is None:
            self._writer = self._begin(forward)
        self.turns.add(forward)
        self.recorded.n_turns = self.turns.n_turns

    def close(self) -> None:
        """End the recording well.

        Raises
        ------
        TracekitError
            The model evaluated nothing.
        """
        if self._writer is None:
            raise TracekitError(
                f"The model evaluated nothing, so {self.recorded.path} is not written; call generate "
                "inside the with block."
            )
        writer, recorded = self._writer, self.recorded
        writer.facts = replace(
            writer.facts,
            prompts=list(recorded.prompts),
            sampling=dict(recorded.sampling),
            seed=recorded.seed,
        )
        writer.close(complete=True, ended=recorded.ended)

    def leave(self, error: BaseException) -> None:
        """Leave an incomplete trace of what was written."""
        if self._writer is not None:
            self._writer.__exit__(type(error), error, error.__traceback__)

    def _begin(self, forward: Forward) -> TraceWriter:
        given = [
            Given(router, routed.logits, routed.weights, routed.ids)
            for router, routed in ((each, forward.routed[each.layer]) for each in self.routers)
        ]
        found = rule_of(_kind(self.model), given)
        self._warn(found)
        layers = layer_rows(self.model, self.routers, self._keep.gate_inputs)
        facts = self._facts(forward, found, len(layers))
        keep = self._keep
        writer = TraceWriter(
            self.recorded.path,
            facts,
            top_k=facts.model.top_k,
            n_expert=facts.model.n_expert if keep.logits else None,
            n_embd=facts.model.n_embd if keep.gate_inputs else None,
            gate_dtype=keep.gate_dtype,
            force=keep.force,
        )
        writer.write_layers(layers)
        return writer

    def _warn(self, found: Found) -> None:
        if found.rule.gating is None:
            self.recorded.warnings.append(
                "The routing weights follow no gating function that is known here; predictors that "
                "rank by the router's scores may be wrong for this model."
            )
        elif found.missed:
            self.recorded.warnings.append(
                f"The selection rule that is known here names other experts in {found.missed} of "
                f"{found.routings} routings of the first pass; predictors that use the router are "
                "wrong by as much. The recorded experts are the model's own."
            )

    def _facts(self, forward: Forward, found: Found, n_layer: int) -> TraceFacts:
        import torch

        config = self.model.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        routed = forward.routed[self.routers[0].layer]
        n_embd = None if routed.gate_input is None else routed.gate_input.shape[1]
        experts = next(iter(self.routers[0].block.experts.parameters()))
        dtype = str(experts.dtype).removeprefix("torch.")
        ram = meter.total_bytes()
        types = sorted({router.dtype for router in self.routers})
        return TraceFacts(
            model=ModelFacts(
                name=str(getattr(config, "name_or_path", "")) or type(self.model).__name__,
                arch=_kind(self.model),
                n_layer=n_layer,
                n_expert=routed.logits.shape[1],
                top_k=routed.ids.shape[1],
                n_embd=n_embd,
                quantisation=DTYPES.get(dtype, dtype),
                gating=found.rule.gating,
                n_group=found.rule.n_group,
                n_group_used=found.rule.n_group_used,
                norm_eps=getattr(text, "rms_norm_eps", None),
            ),
            source="recorded",
            engine=EngineFacts(
                name="transformers",
                version=f"{_version('transformers')} (torch {torch.__version__}, "
                f"tracekit {version()})",
                compute_threads=torch.get_num_threads(),
            ),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=self._keep.command,
            notes={
                "router_types": {
                    DTYPES.get(name, name): [r.layer for r in self.routers if r.dtype == name]
                    for name in types
                }
            }
            | ({} if ram is None else {"ram_mib": ram / MIB}),
            captured=["logits", *["gate_input"] * self._keep.gate_inputs],  # logits always are
        )

    def _write(self, routing: Columns, steps: Columns) -> None:
        assert self._writer is not None
        if not self._keep.logits:
            del routing["logits"]
        if self._tokenizer is not None and "token" in steps:
            steps["piece"] = [
                self._tokenizer.decode([token]).encode() for token in steps["token"].tolist()
            ]
        self._writer.write_pass(routing, steps)
        if steps["phase"][0]:
            self.recorded.n_decoded += len(steps["step"])
        else:
            self.recorded.n_prefilled += len(steps["step"])


def _kind(model: Any) -> str:
    return str(getattr(model.config, "model_type", type(model).__name__))


def _version(package: str) -> str:
    try:
        return version_of(package)
    except PackageNotFoundError:
        return "unknown"

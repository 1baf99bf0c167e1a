"""What ``trace.json`` says of a recording: the model, the engine, how it was run.

In: a session, the prompts and what is generated. Out: the facts of a trace.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tracekit import meter
from tracekit.figures import MIB
from tracekit.trace import EngineFacts, ModelFacts, TraceFacts
from tracekit.trace.facts import CAPTURES
from tracekit.version import version
from tracekit_engine import binding
from tracekit_engine.generation import Generation
from tracekit_engine.prompts import Prompt
from tracekit_engine.session import Session


def facts_of_recording(
    session: Session, turns: Sequence[Prompt], generation: Generation, command: Sequence[str]
) -> TraceFacts:
    """Return the facts of a recording that begins now.

    Parameters
    ----------
    session : Session
    turns : sequence of Prompt
    generation : Generation
    command : sequence of str
        The command line that ran it.
    """
    file, plan, store = session.file, session.plan, session.store
    streaming = session.options.streaming
    sampling = generation.sampling
    notes: dict[str, Any] = {
        "context": session.options.n_ctx,
        "chunk": session.chunk,
        "token_cycle_bytes": session.token_cycle,
        "bytes_outside_layers": file.dense_bytes.get(-1, 0),
    }
    types = sorted({layer.router_type for layer in plan.layers if layer.router_type is not None})
    notes["router_types"] = {
        name: [layer.layer for layer in plan.layers if layer.router_type == name] for name in types
    }
    if streaming is not None:
        notes["mode"] = "serial"  # a layer computes when all of its reads have ended
    if (ram := meter.total_bytes()) is not None:
        notes["ram_mib"] = ram / MIB
    by_token = [layer.layer for layer in plan.layers if not layer.selects_by_logits]
    if by_token:
        notes["layers_selected_by_token"] = by_token
    return TraceFacts(
        model=ModelFacts(
            name=file.name,
            arch=file.arch,
            n_layer=session.model.n_layer,
            n_expert=plan.n_expert,
            top_k=plan.top_k,
            n_embd=plan.n_embd,
            quantisation=file.quantisation,
            gating=plan.typical.gating,
            n_group=file.n_group,
            n_group_used=file.n_group_used,
            norm_eps=plan.typical.norm_eps,
            file_bytes=file.file_bytes,
        ),
        source="recorded",
        engine=EngineFacts(
            name="tracekit",
            version=f"{version()} (llama-cpp-python {binding.version()})",
            cache_policy="lru" if store else None,
            cache_bytes=store.budget if store else None,
            io_threads=streaming.lanes if streaming else None,
            direct_io=streaming.direct_io if streaming else None,
            compute_threads=session.threads,
        ),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        prompts=[turn.as_given for turn in turns],
        sampling={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "n_decode": generation.n_decode,
            "ignore_eos": generation.ignore_eos,
            "chat": generation.chat,
        },
        seed=sampling.seed,
        command=list(command),
        notes=notes,
        captured=_captured(session),
    )


def _captured(session: Session) -> list[str]:
    capture = session.options.capture
    wanted = zip(CAPTURES, (capture.logits, capture.gate_inputs, capture.embeddings), strict=True)
    return [name for name, is_wanted in wanted if is_wanted]

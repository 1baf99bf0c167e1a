"""Passes of several tokens: chunks of a prompt, drafted tokens, rejected ones, a prompt begun anew."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runs import TEXT, replay_lru, totals_by_pass

from tracekit.replaying import replay
from tracekit.replaying.agreement import verify
from tracekit.trace import EngineFacts, ModelFacts, Trace, TraceFacts, TracekitError, TraceWriter
from tracekit.trace.schema import DECODE, PREFILL
from tracekit_engine import Options, Session, Streaming
from tracekit_engine.model_file import ModelFile
from tracekit_engine.own_check import verify_recording
from tracekit_engine.rows import Place, layer_rows, routing_rows, step_rows

N_DRAFTED = 3


class Driver:
    """Evaluates and writes passes, and notes in plain numbers what they were."""

    def __init__(self, session: Session, writer: TraceWriter):
        self.session, self.writer = session, writer
        self.began = time.perf_counter()
        self.passes: list[tuple[int, int, int, int]] = []  # turn, phase, first step, tokens
        self.kept: dict[tuple[int, int], int] = {}  # (turn, step): its pass in the end

    def evaluate(self, turn: int, phase: int, tokens: list[int], want_logits: bool = True) -> None:
        evaluated = self.session.evaluate(tokens, want_logits, every_token=phase == DECODE)
        number, first = len(self.passes), evaluated.first_step
        for step in [s for t, s in self.kept if t == turn and s >= first]:
            del self.kept[turn, step]
        self.kept |= {(turn, first + i): number for i in range(len(tokens))}
        self.passes.append((turn, phase, first, len(tokens)))
        place = Place(turn, number, phase)
        pieces = [self.session.model.piece(token) for token in tokens]
        steps = step_rows(evaluated, place, pieces, self.began)
        self.writer.write_pass(routing_rows(evaluated, place), steps)

    def turn(self, turn: int, prompt: list[int], rng: random.Random) -> None:
        self.session.clear()
        if rng.random() < 0.5:  # cancelled, and begun anew
            self.evaluate(turn, PREFILL, prompt[: self.session.chunk], want_logits=False)
            self.session.clear()
        for start in range(0, len(prompt), self.session.chunk):
            part = prompt[start : start + self.session.chunk]
            self.evaluate(turn, PREFILL, part, want_logits=start + len(part) == len(prompt))
        for _ in range(12):
            drafted = rng.randint(0, N_DRAFTED)
            tokens = [
                int(self.session.logits().argmax()),
                *(rng.randrange(200) for _ in range(drafted)),
            ]
            self.evaluate(turn, DECODE, tokens)
            accepted = rng.randint(0, drafted)
            if accepted < drafted:
                # The next pass begins where the first rejected token stood, and needs a token.
                self.session.rewind(self.session.position - drafted + accepted)
                self.evaluate(turn, DECODE, [rng.randrange(200)])


def facts(session: Session) -> TraceFacts:
    plan, budget = session.plan, session.store.budget
    model = ModelFacts(
        "m", "a", session.model.n_layer, plan.n_expert, plan.top_k, n_embd=plan.n_embd
    )
    return TraceFacts(model, "recorded", EngineFacts("tracekit", None, "lru", budget))


def write_run(model: Path, path: Path, budget: int, seed: int) -> Driver:
    rng = random.Random(seed)
    options = Options(
        threads=1, chunk=7, n_outputs=1 + N_DRAFTED, streaming=Streaming(budget, lanes=1)
    )
    with Session(model, options) as session:
        model_facts = facts(session)
        with TraceWriter(
            path,
            model_facts,
            layer_times=True,
            top_k=model_facts.model.top_k,
            n_expert=model_facts.model.n_expert,
            n_embd=model_facts.model.n_embd,
        ) as writer:
            writer.write_layers(layer_rows(session))
            driver = Driver(session, writer)
            for turn, n_tokens in enumerate((20, 5, 13)):
                driver.turn(turn, session.model.tokenize(TEXT)[:n_tokens], rng)
    return driver


@pytest.mark.parametrize(
    ("arch", "seed"),
    [
        ("qwen3moe", 0),
        ("gpt-oss", 1),
        *(pytest.param("qwen3moe", s, marks=pytest.mark.slow) for s in range(2, 30)),
    ],
)
def test_a_session_of_passes_of_several_tokens_replays_exactly(
    arch: str, seed: int, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model, path = tiny_model(arch), tmp_path / "run.trace"
    budget = random.Random(seed).randint(14, 20) * max(ModelFile.open(model).expert_bytes.values())
    driver = write_run(model, path, budget, seed)
    trace = Trace.open(path)
    assert trace.warnings == []
    assert any(phase == DECODE and n > 1 for _, phase, _, n in driver.passes)

    steps = trace.steps(["turn", "pass", "step", "phase", "kept"])
    found = list(zip(*(steps[n].tolist() for n in steps), strict=True))
    assert {(t, s): p for t, p, s, _, kept in found if kept} == driver.kept
    assert [(t, p, s, phase) for t, p, s, phase, _ in found] == [
        (turn, number, first + i, phase)
        for number, (turn, phase, first, n) in enumerate(driver.passes)
        for i in range(n)
    ]
    assert not steps["kept"].all()
    assert trace.n_decoded == sum(phase == DECODE and kept for *_, phase, kept in found)

    expected = replay_lru(trace, budget)
    first = trace.routing(["residency"])["residency"] == 0
    assert np.array_equal(first, expected.residency == 0)
    for name in ("lookups", "hits", "read_bytes"):
        assert totals_by_pass(trace, name) == {
            number: getattr(expected, name).get(number, 0) for number in range(len(driver.passes))
        }
    (row,) = replay(trace, "lru", validate=True).rows
    assert row.validation.mismatches == 0
    assert row.read_bytes == sum(expected.read_bytes.values())

    agreement = verify(trace)
    assert agreement.holds
    assert (agreement.n_lookups, agreement.n_passes) == (row.lookups, len(driver.passes))
    assert verify_recording(path, budget) == agreement
    assert Trace.open(path).facts.current_agreement == agreement


def test_the_logits_of_drafted_tokens_are_those_of_one_at_a_time(model: Path) -> None:
    """What was drafted and rejected leaves nothing behind."""
    with Session(model, Options(threads=1, n_outputs=4)) as session:
        prompt = session.model.tokenize(TEXT)[:10]
        session.evaluate(prompt, want_logits=True)
        alone = []
        for token in (5, 6, 7):
            session.evaluate([token], want_logits=True)
            alone.append(session.logits())
        session.rewind(len(prompt))
        session.evaluate([5, 9, 9, 9], want_logits=True, every_token=True)
        np.testing.assert_allclose(session.logits(-4), alone[0], atol=1e-4)
        session.rewind(len(prompt) + 1)
        assert session.position == len(prompt) + 1
        session.evaluate([6, 7], want_logits=True, every_token=True)
        for index, expected in ((-2, alone[1]), (-1, alone[2])):
            np.testing.assert_allclose(session.logits(index), expected, atol=1e-4)


def test_what_a_pass_of_several_tokens_refuses(model: Path) -> None:
    with Session(model, Options(threads=1, n_outputs=2)) as session:
        with pytest.raises(ValueError, match="the logits of 3 tokens are wanted: open the session"):
            session.evaluate([1, 2, 3], want_logits=True, every_token=True)
        evaluated = session.evaluate([1, 2, 3], want_logits=True)
        with pytest.raises(ValueError, match="evaluate with every_token=True"):
            routing_rows(evaluated, Place(0, 0, DECODE))
        for index in (-2, 0, 1):
            with pytest.raises(ValueError, match="only the last 1 tokens have logits"):
                session.logits(index)
        for step in (-1, 4):
            with pytest.raises(ValueError, match=f"there are steps 0 to 2; {step} is none of them"):
                session.rewind(step)
        session.rewind(3)  # nothing is forgotten
        assert session.logits().size
        session.rewind(1)
        with pytest.raises(ValueError, match="no logits"):
            session.logits()


def test_a_recurrent_model_cannot_forget_its_last_tokens(tiny_model: Callable[[str], Path]) -> None:
    with Session(tiny_model("lfm2moe"), Options(threads=1)) as session:
        session.evaluate([1, 2, 3], want_logits=True)
        with pytest.raises(TracekitError, match=r"\(lfm2moe\) cannot forget its last tokens alone"):
            session.rewind(2)
        assert session.position == 3

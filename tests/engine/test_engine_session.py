"""What a session and its model refuse: tokens that are none, logits of no pass, what is closed."""

from pathlib import Path

import numpy as np
import pytest

from engine import Session


@pytest.mark.parametrize("token", [-1, 257, 2**32, 2**40])
def test_tokens_outside_the_vocabulary(token: int, model: Path) -> None:
    with Session(model) as session:
        for use in (
            session.model.piece,
            session.model.ends_text,
            lambda token: session.evaluate([0, token], want_logits=True),
        ):
            with pytest.raises(ValueError, match=f"{token} is no token: the vocabulary has 257"):
                use(token)


def test_logits_of_no_pass(model: Path) -> None:
    with Session(model) as session:
        for before in (
            lambda: None,
            lambda: session.evaluate([1], want_logits=False),
            session.clear,
        ):
            before()
            with pytest.raises(ValueError, match="no logits: evaluate with want_logits"):
                session.logits()
            with pytest.raises(ValueError, match="no logits"):
                session.context  # noqa: B018
            session.evaluate([1], want_logits=True)
            assert np.isfinite(session.logits()).all()


def test_what_is_closed(model: Path) -> None:
    with Session(model) as session:
        session.evaluate([1], want_logits=True)
    for use in (
        session.clear,
        session.logits,
        lambda: session.context,
        lambda: session.evaluate([1], want_logits=True),
    ):
        with pytest.raises(ValueError, match="the session is closed"):
            use()
    for use in (
        lambda: session.model.tokenize("a"),
        lambda: session.model.piece(1),
        lambda: session.model.ends_text(1),
        lambda: session.model.chat_prompt([("user", "a")]),
        lambda: session.model.n_layer,
        lambda: session.model.n_ctx_train,
    ):
        with pytest.raises(ValueError, match="the model is closed"):
            use()

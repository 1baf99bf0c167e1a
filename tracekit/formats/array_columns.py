"""Columns of an array run that contradict each other: what is said twice must be the same.

In: the place of each token as the lengths say, and the columns beside. Out: nothing, or an error.
"""

from collections.abc import Mapping

import numpy as np

from tracekit.formats.tokens import Tokens
from tracekit.trace import TraceError
from tracekit.trace.checks import first_true


def check_columns(
    name: str, tokens: Tokens, columns: Mapping[str, np.ndarray], has_prompt_lengths: bool
) -> None:
    """Check that what is said twice is the same, and that passes and positions ascend.

    Parameters
    ----------
    name : str
        What sentences call the run.
    tokens : Tokens
        As the lengths say.
    columns : mapping
        Arrays [tokens] by name: `prompt`, `phase`, `pass`, `token`; any may be missing.
    has_prompt_lengths : bool
        The phases of `tokens` come from the lengths of the prompts.

    Raises
    ------
    TraceError
        Two of them disagree, or a pass or a position goes back.
    """
    in_turn = np.diff(tokens.turn) == 0
    at = first_true(in_turn & (np.diff(columns.get("prompt", tokens.turn)) != 0))
    if at is not None:
        raise TraceError(
            f"{name}: another prompt begins with token {at + 1}, within a run of lengths; "
            "correct one of the two, or leave it out."
        )
    if has_prompt_lengths:
        at = first_true(columns.get("phase", tokens.phase) != tokens.phase)
        if at is not None:
            raise TraceError(
                f"{name}: phase and prompt_lengths say different things of token {at}; "
                "correct one of the two, or leave it out."
            )
    at = first_true(in_turn & (np.diff(columns.get("pass", tokens.turn)) < 0))
    if at is not None:
        raise TraceError(
            f"{name}: pass {columns['pass'][at + 1]} follows pass {columns['pass'][at]} of "
            "the same prompt; if another prompt begins there, add lengths or prompt, else sort "
            "the tokens."
        )
    if "token" in columns and "pass" not in columns:
        at = first_true(in_turn & (np.diff(columns["token"]) <= 0))
        if at is not None:
            before, after = columns["token"][at : at + 2].tolist()
            raise TraceError(
                f"{name}: position {after} follows position {before} of the same prompt; "
                "if another prompt begins there, add lengths or prompt; if drafted tokens were "
                "rejected, add pass."
            )

"""``tracekit.record_transformers``: run a transformers model on prompts, one by one, and record it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit.hooks.record import Recorded, recording
from tracekit.trace.errors import TracekitError, UsageError

Messages = Sequence[Mapping[str, str]]


def record_transformers(
    model: Any,
    tokenizer: Any,
    prompts: str | Sequence[str | Messages],
    path: str | Path,
    *,
    n_decode: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    ignore_eos: bool = False,
    chat: bool = False,
    logits: bool = True,
    gate_inputs: bool = True,
    gate_dtype: str = "f32",
    force: bool = False,
    command: Sequence[str] = (),
    on_turn: Callable[[int, str], None] | None = None,
) -> Recorded:
    """Run a transformers model on prompts and record how it routes every token.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In eager mode.
    tokenizer : transformers.PreTrainedTokenizerBase
    prompts : str, or sequence of str or of messages
        Each makes one turn; messages are ``{"role": "user", "content": "text"}``, with `chat`.
    path : str or Path
        The ``.trace`` directory to write.
    n_decode : int
        The most tokens to decode in each turn; 0 evaluates the prompt only.
    temperature, top_p : float
        Of the sampling; a temperature of 0 takes the likeliest token.
    seed : int
    ignore_eos : bool
        Go on after the token that ends a text.
    chat : bool
        Put prompts into the tokenizer's chat template.
    logits, gate_inputs, gate_dtype, force, command
        As for `recording`.
    on_turn : callable, optional
        Is called with the turn and its generated text, after each.

    Returns
    -------
    Recorded

    Raises
    ------
    UsageError
        There is no prompt, a prompt makes no token, or something is at `path`.
    TracekitError
        As for `recording`.

    Examples
    --------
    >>> model = AutoModelForCausalLM.from_pretrained("allenai/OLMoE-1B-7B-0924")
    >>> tokenizer = AutoTokenizer.from_pretrained("allenai/OLMoE-1B-7B-0924")
    >>> tracekit.record_transformers(model, tokenizer, ["Once upon a time"], "run.trace")
    """
    import torch

    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
        raise UsageError("There is no prompt; give one.")
    if n_decode < 0:
        raise UsageError(f"n_decode takes a whole number of 0 or more, not {n_decode}.")
    inputs = [_inputs(tokenizer, prompt, chat) for prompt in given]
    how: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        how |= {"temperature": temperature, "top_p": top_p}
    if ignore_eos:
        how["eos_token_id"] = None
    with recording(
        model,
        path,
        tokenizer=tokenizer,
        logits=logits,
        gate_inputs=gate_inputs,
        gate_dtype=gate_dtype,
        force=force,
        command=command,
    ) as recorded:
        recorded.sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "n_decode": n_decode,
            "ignore_eos": ignore_eos,
            "chat": chat,
        }
        recorded.seed = seed
        for turn, (prompt, tokens) in enumerate(zip(given, inputs, strict=True)):
            recorded.prompts.append(prompt if isinstance(prompt, str) else repr(list(prompt)))
            torch.manual_seed(seed)
            ids = torch.tensor([tokens], device=model.device)
            # The last token that is sampled is never evaluated.
            made = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=n_decode + 1,
                pad_token_id=_pad(model, tokenizer),
                **how,
            )[0, len(tokens) :]
            recorded.ended = "length" if len(made) > n_decode else "end of text"
            if on_turn is not None:
                on_turn(turn, tokenizer.decode(made[:n_decode], skip_special_tokens=True))
    return recorded


def _inputs(tokenizer: Any, prompt: str | Messages, chat: bool) -> list[int]:
    if chat:
        messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        if getattr(tokenizer, "chat_template", None) is None:
            raise TracekitError("The tokenizer has no chat template; record without chat.")
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    elif isinstance(prompt, str):
        tokens = tokenizer(prompt)["input_ids"]
    else:
        raise UsageError("A prompt consists of chat messages; add chat.")
    if not tokens:
        raise UsageError(f"The prompt {prompt!r} makes no token; give it some text.")
    return list(tokens)


def _pad(model: Any, tokenizer: Any) -> int:
    """Return a token for padding, which a single sequence never has; generate wants one."""
    for known in (tokenizer.pad_token_id, tokenizer.eos_token_id, model.config.eos_token_id):
        if isinstance(known, int):
            return known
    return 0

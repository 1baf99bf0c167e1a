"""The training loop: AdamW, a cosine schedule counted in steps, a longer context at the end."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .model import Shape, TinyMoE


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; everything is counted in steps, so that a run can be repeated.

    Attributes
    ----------
    n_step : int
    step_tokens : int
        Tokens of one step, whatever the length of its windows.
    window, long_window, long_share : int, int, float
        Tokens of a training window; of the windows in the last share of the steps.
    peak_rate, end_rate, n_warmup : float, float, int
        Learning rate after the warm-up steps and at the end, on a cosine.
    balance : float
        Weight of the balancing loss, summed over the layers. Averaged it would be too weak:
        single experts then take several times their share.
    """

    n_step: int
    step_tokens: int = 6144
    window: int = 256
    long_window: int = 1024
    long_share: float = 0.12
    peak_rate: float = 3e-3
    end_rate: float = 1.2e-4
    n_warmup: int = 150
    balance: float = 0.002
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.n_step))
        warmup = min(1.0, (step + 1) / self.n_warmup)
        return warmup * (self.end_rate + (self.peak_rate - self.end_rate) * cosine)

    def window_at(self, step: int) -> int:
        """Return the length of a step's windows, in tokens."""
        return self.long_window if step >= self.n_step * (1 - self.long_share) else self.window


@dataclass(frozen=True)
class Text:
    """A token stream and the bytes of text it stands for."""

    tokens: np.ndarray
    n_byte: int

    def bits_per_byte(self, loss: float) -> float:
        """Convert a loss in nats a token."""
        return loss / math.log(2) * len(self.tokens) / self.n_byte

    def windows(self, starts: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
        """Cut out the inputs at the given offsets, and the same moved on by one token."""
        picked = self.tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        return torch.from_numpy(picked[:, :-1].copy()), torch.from_numpy(picked[:, 1:].copy())


def evaluate(model: TinyMoE, text: Text, window: int, step_tokens: int, max_batches: int) -> float:
    """Mean loss over consecutive windows from the start of a text, in nats a token."""
    n_window = step_tokens // window
    n_batch = min(max_batches, (len(text.tokens) - 1) // (n_window * window))
    losses = []
    with torch.no_grad():
        for batch in range(n_batch):
            starts = (batch * n_window + np.arange(n_window)) * window
            losses.append(model(*text.windows(starts, window))[0].item())
    return float(np.mean(losses))


def _optimiser(model: TinyMoE, schedule: Schedule) -> torch.optim.AdamW:
    """Weight decay on the matrices, not on norms, routers and the embedding."""
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        is_free = parameter.ndim < 2 or name.endswith("router") or name == "embedding"
        (kept if is_free else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": schedule.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def train(
    shape: Shape, schedule: Schedule, text: Text, validation: Text, seed: int, checkpoint: Path
) -> TinyMoE:
    """Train from random weights; prints a line every 50 steps.

    Parameters
    ----------
    checkpoint : Path
        Where the weights are saved every 500 steps and at the end.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = TinyMoE(shape)
    model.compile_parts()
    optimiser = _optimiser(model, schedule)
    started = time.monotonic()
    recent: list[float] = []
    for step in range(schedule.n_step):
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(step)
        window = schedule.window_at(step)
        starts = rng.integers(0, len(text.tokens) - window, schedule.step_tokens // window)
        loss, balance = model(*text.windows(starts, window))
        (loss + schedule.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.max_gradient_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

        recent.append(loss.item())
        done = step + 1
        if done % 50 == 0 or done == schedule.n_step:
            seconds = time.monotonic() - started
            print(
                f"step {done} of {schedule.n_step}  {seconds:.0f} s"
                f"  {done * schedule.step_tokens / seconds:.0f} tokens/s"
                f"  loss {np.mean(recent):.4f}"
                f"  bits/byte {text.bits_per_byte(float(np.mean(recent))):.4f}"
                f"  balance {balance.item() / shape.n_layer:.3f}",
                flush=True,
            )
            recent.clear()
        if done % 500 == 0 or done == schedule.n_step:
            torch.save(model.state_dict(), checkpoint)
            loss = evaluate(model, validation, window, schedule.step_tokens, max_batches=8)
            print(f"validation  bits/byte {validation.bits_per_byte(loss):.4f}", flush=True)
    return model

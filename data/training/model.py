"""The network: qwen3moe as llama.cpp runs it, written for training on a CPU.

All shapes are static, so that ``torch.compile`` and oneDNN build each kernel once: the rows of an
expert are padded to whole blocks, and there are as many blocks as the worst split could need.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCK_ROWS = 64


@dataclass(frozen=True)
class Shape:
    """The architecture; GGUF's metadata is written from it."""

    n_layer: int = 12
    n_embd: int = 128
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    n_expert: int = 64
    top_k: int = 4
    n_ff: int = 32
    n_vocab: int = 2048
    n_context: int = 1024
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6


class _Scatter(torch.autograd.Function):
    """Put row i of ``rows`` at ``index[i]`` of an array of zeros; the indices are distinct."""

    @staticmethod
    def forward(ctx, rows: Tensor, index: Tensor, n_rows: int) -> Tensor:
        ctx.save_for_backward(index)
        return rows.new_zeros(n_rows, rows.shape[1]).index_copy_(0, index, rows)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


class _Gather(torch.autograd.Function):
    """The rows at distinct indices. PyTorch's own gradient allows for repeats, and is slow."""

    @staticmethod
    def forward(ctx, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.n_rows = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.n_rows, grad.shape[1]).index_copy_(0, index, grad), None


class _BlockMatmul(torch.autograd.Function):
    """``rows[b] @ weight[expert[b]]`` for every block b, in bfloat16."""

    @staticmethod
    def forward(ctx, rows: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
        of_block = weight.to(rows.dtype).index_select(0, expert)
        ctx.save_for_backward(rows, weight, expert)
        return torch.bmm(rows, of_block)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weight, expert = ctx.saved_tensors
        of_block = weight.to(rows.dtype).index_select(0, expert)
        grad_rows = torch.bmm(grad, of_block.transpose(1, 2))
        by_block = torch.bmm(rows.transpose(1, 2), grad)
        grad_weight = torch.zeros_like(weight).index_add_(0, expert, by_block.to(weight.dtype))
        return grad_rows, grad_weight, None


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in NeoX order: element i turns with element i + half."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with a norm of its own on queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm = nn.Parameter(torch.ones(shape.n_embd))
        self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.k_norm = nn.Parameter(torch.ones(shape.head_dim))
        n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
        self.q = _matrix(n_q, shape.n_embd, std=shape.n_embd**-0.5)
        self.k = _matrix(n_kv, shape.n_embd, std=shape.n_embd**-0.5)
        self.v = _matrix(n_kv, shape.n_embd, std=shape.n_embd**-0.5)
        self.out = _matrix(shape.n_embd, n_q, std=(2 * shape.n_layer * n_q) ** -0.5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Attend within each window.

        Parameters
        ----------
        x : Tensor, shape (batch, tokens, n_embd)
        cos, sin : Tensor, shape (tokens, 1, head_dim / 2)
            Of the angle by which RoPE turns each pair of elements.
        mask : Tensor, shape (tokens, tokens)
            Added to the scores.
        """
        s = self.shape
        n_batch, n_token, _ = x.shape
        h = _rms_norm(x, self.norm, s.norm_eps).bfloat16()

        def heads(weight: Tensor) -> Tensor:
            return (h @ weight.bfloat16().T).view(n_batch, n_token, -1, s.head_dim)

        q = _rotate(_rms_norm(heads(self.q).float(), self.q_norm, s.norm_eps), cos, sin)
        k = _rotate(_rms_norm(heads(self.k).float(), self.k_norm, s.norm_eps), cos, sin)
        n_repeat = s.n_head // s.n_head_kv
        q, k, v = (
            z.bfloat16().transpose(1, 2).repeat_interleave(repeat, dim=1).flatten(0, 1)
            for z, repeat in ((q, 1), (k, n_repeat), (heads(self.v), n_repeat))
        )
        scores = torch.bmm(q, k.transpose(1, 2)).float() * s.head_dim**-0.5 + mask
        mixed = torch.bmm(scores.softmax(-1).bfloat16(), v)
        mixed = mixed.view(n_batch, s.n_head, n_token, s.head_dim).transpose(1, 2)
        return (mixed.reshape(n_batch, n_token, -1) @ self.out.bfloat16().T).float()


class Mixture(nn.Module):
    """Experts behind a softmax router: top-k, weights renormalised to 1."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        s = shape
        self.norm = nn.Parameter(torch.ones(s.n_embd))
        self.router = _matrix(s.n_expert, s.n_embd, std=0.02)
        self.gate_up = _matrix(s.n_expert, s.n_embd, 2 * s.n_ff, std=s.n_embd**-0.5)
        self.down = _matrix(s.n_expert, s.n_ff, s.n_embd, std=(2 * s.n_layer * s.n_ff) ** -0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, and the balancing loss (1 where the load is even)."""
        s = self.shape
        h = _rms_norm(x, self.norm, s.norm_eps).flatten(0, 1)
        probability = (h @ self.router.T).softmax(-1)
        weight, expert = probability.topk(s.top_k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        load = expert.new_zeros(s.n_expert).scatter_add_(
            0, expert.flatten(), torch.ones_like(expert).flatten()
        )
        balance = s.n_expert * (load / expert.numel() * probability.mean(0)).sum()
        return self._experts(h.bfloat16(), expert, weight, load).view_as(x), balance

    def _experts(self, h: Tensor, expert: Tensor, weight: Tensor, load: Tensor) -> Tensor:
        s = self.shape
        n_slot = expert.numel()
        n_block = math.ceil(n_slot / BLOCK_ROWS) + s.n_expert
        last_block = ((load + BLOCK_ROWS - 1) // BLOCK_ROWS).cumsum(0)
        of_block = torch.searchsorted(last_block, torch.arange(n_block), right=True)
        of_block = of_block.clamp(max=s.n_expert - 1)  # blocks left over hold zeros

        order = expert.flatten().argsort(stable=True)
        first_row = torch.cat((last_block.new_zeros(1), last_block[:-1])) * BLOCK_ROWS
        shift = first_row - (load.cumsum(0) - load)
        row = torch.empty_like(order)
        row[order] = torch.arange(n_slot) + shift[expert.flatten()[order]]

        rows = _Scatter.apply(h.repeat_interleave(s.top_k, 0), row, n_block * BLOCK_ROWS)
        rows = rows.view(n_block, BLOCK_ROWS, s.n_embd)
        gate, up = _BlockMatmul.apply(rows, self.gate_up, of_block).chunk(2, dim=-1)
        hidden = (functional.silu(gate.float()) * up.float()).bfloat16()
        out = _BlockMatmul.apply(hidden, self.down, of_block).flatten(0, 1)
        out = _Gather.apply(out, row).view(-1, s.top_k, s.n_embd)
        return (out.float() * weight.unsqueeze(-1)).sum(1)


class Layer(nn.Module):
    """Attention, then the experts, each added to the residual stream (float32)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.mixture = Mixture(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream after the layer, and the layer's balancing loss."""
        x = x + self.attention(x, cos, sin, mask)
        mixed, balance = self.mixture(x)
        return x + mixed, balance


class TinyMoE(nn.Module):
    """The whole network, with its losses. Random weights come from torch's global seed."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = _matrix(shape.n_vocab, shape.n_embd, std=0.5)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layer))
        self.norm = nn.Parameter(torch.ones(shape.n_embd))
        self.head = _matrix(shape.n_vocab, shape.n_embd, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy (nats a token), and the balancing loss summed over the layers.

        Parameters
        ----------
        tokens, targets : Tensor of int64, shape (batch, tokens)
        """
        s = self.shape
        n_token = tokens.shape[1]
        turn = s.rope_base ** (-torch.arange(0, s.head_dim, 2) / s.head_dim)
        angle = torch.arange(n_token)[:, None, None] * turn
        mask = torch.full((n_token, n_token), -1e30).triu(1)
        x = functional.embedding(tokens, self.embedding)
        balance = torch.zeros(())
        for layer in self.layers:
            x, of_layer = layer(x, angle.cos(), angle.sin(), mask)
            balance = balance + of_layer
        return self._loss(x, targets), balance

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        h = _rms_norm(x, self.norm, self.shape.norm_eps).bfloat16()
        logits = (h @ self.head.bfloat16().T).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def compile_parts(self) -> None:
        """Compile the layer (once for all of them) and the loss."""
        for layer in self.layers:
            layer.compile(dynamic=False)
        self._loss = torch.compile(self._loss, dynamic=False)


def _matrix(*size: int, std: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(*size) * std)

"""A small GPT: rotary positions, pre-norm blocks, output layer tied to the embedding.

The residual stream is always float32; ``torch.autocast`` decides the dtype of the matrix products.
Weights may be float32 or bfloat16, so that both runs of the demo execute the same forward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """Shape of the network. ``width`` must be a multiple of ``2 * heads``."""

    vocabulary: int = 256
    context: int = 256
    layers: int = 4
    heads: int = 4
    width: int = 256


class Linear(nn.Linear):
    """``nn.Linear`` whose weight follows the dtype of its input where autocast is off."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        return linear(x, self.weight)


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` computed in the dtype of its input, whatever the dtype of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``; without autocast the weight is converted to ``x.dtype`` first."""
    if torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight)
    return F.linear(x, weight.to(x.dtype))


def rotary_tables(time: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, each float32 ``[time, head_width / 2]``."""
    exponent = torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width
    position = torch.arange(time, dtype=torch.float32, device=device)
    angle = position[:, None] * 10000.0 ** -exponent[None, :]
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the two halves of the last dimension against each other by the position's angle."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind a LayerNorm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_attention = LayerNorm(width)
        self.qkv = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width, bias=False)
        self.norm_mlp = LayerNorm(width)
        self.up = Linear(width, 4 * width, bias=False)
        self.down = Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y: Tensor = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        y = self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))
        return x + y


class GPT(nn.Module):
    """The network; ``forward`` returns the mean cross-entropy in nats per token."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = LayerNorm(config.width)
        self._initialise()

    def _initialise(self) -> None:
        """GPT-2's initialisation: N(0, 0.02), layers that feed the residual stream scaled down."""
        residual_std = 0.02 / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                std = residual_std if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """``tokens`` and ``targets`` are int64 ``[batch, time]``; the result is a scalar."""
        # Made anew each time: as buffers they would be cast along with the weights.
        head_width = self.config.width // self.config.heads
        cos, sin = rotary_tables(tokens.shape[1], head_width, tokens.device)
        x = self.embedding(tokens).float()
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: matrices decay, norms and biases do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]

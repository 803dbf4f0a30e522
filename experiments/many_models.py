"""Many small byte-level transformers trained side by side, none of which sees the others.

Weights of all models are stacked, so that one forward and one backward pass serves all; every
model's slice is a parameter of its own, with its own learning rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY: Final = 256


@dataclass(frozen=True)
class Size:
    """Of each model."""

    width: int = 64
    heads: int = 4
    layers: int = 2


class ManyModels:
    """`count` models; initial weights are drawn `draws` times and repeated one after another."""

    def __init__(
        self, count: int, draws: int, size: Size, dtype: torch.dtype, generator: torch.Generator
    ) -> None:
        self._size, self._count = size, count
        width, residual = size.width, 0.02 / math.sqrt(2 * size.layers)
        shapes = {"embedding": (VOCABULARY, width, 0.02), "head": (VOCABULARY, width, 0.02)}
        for layer in range(size.layers):
            shapes[f"{layer}.qkv"] = (3 * width, width, 0.02)
            shapes[f"{layer}.out"] = (width, width, residual)
            shapes[f"{layer}.up"] = (4 * width, width, 0.02)
            shapes[f"{layer}.down"] = (width, 4 * width, residual)
        self._weights: dict[str, Tensor] = {}
        for name, (rows, columns, std) in shapes.items():
            drawn = torch.empty((draws, rows, columns), device=generator.device)
            drawn.normal_(std=std, generator=generator)
            # The same weights for every dtype: those that bf16 holds.
            stacked = drawn.bfloat16().to(dtype).repeat(count // draws, 1, 1)
            self._weights[name] = stacked.requires_grad_()
        self._params = {
            name: [nn.Parameter(weight) for weight in stacked.detach()]
            for name, stacked in self._weights.items()
        }

    def groups(self) -> list[dict[str, Any]]:
        """A parameter group per model."""
        return [
            {"params": [params[index] for params in self._params.values()]}
            for index in range(self._count)
        ]

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy per model ``[count]``, of the same batch ``[batch, time]`` for all."""
        count, (batch, time) = self._count, tokens.shape
        weights = {name: weight.float() for name, weight in self._weights.items()}
        x = weights["embedding"][:, tokens.flatten()]
        for layer in range(self._size.layers):
            qkv = _project(_normed(x), weights[f"{layer}.qkv"])
            q, k, v = qkv.view(count * batch, time, 3, self._size.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(
                _with_positions(q), _with_positions(k), v, is_causal=True
            )
            x = x + _project(y.transpose(1, 2).reshape(x.shape), weights[f"{layer}.out"])
            y = F.gelu(_project(_normed(x), weights[f"{layer}.up"]), approximate="tanh")
            x = x + _project(y, weights[f"{layer}.down"])
        logits = _project(_normed(x), weights["head"])
        each = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten().repeat(count), reduction="none"
        )
        return each.view(count, -1).mean(1)

    def backward(self, losses: Tensor, factors: Tensor) -> None:
        """Gives every parameter its gradient times its model's factor."""
        for stacked in self._weights.values():
            stacked.grad = None
        torch.autograd.backward(losses.sum())
        for name, stacked in self._weights.items():
            assert stacked.grad is not None
            scaled = stacked.grad.mul_(factors[:, None, None])
            for param, gradient in zip(self._params[name], scaled, strict=True):
                param.grad = gradient


def _project(x: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x, weight.transpose(1, 2))


def _normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _with_positions(x: Tensor) -> Tensor:
    """Rotary positions of queries or keys ``[*, heads, time, width]``."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

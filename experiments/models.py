"""The two networks that are trained: GPT-2 and ResNet-18 for small pictures.

Both are run under ``torch.autocast`` with fp32 and with bf16 weights alike, so that the forward
pass computes the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.from_demo import GPTConfig, LayerNorm, Linear, linear

GPT2_SMALL = GPTConfig(vocabulary=16_384, context=1024, layers=12, heads=12, width=768)
GPT2_TINY = GPTConfig(vocabulary=256, context=64, layers=2, heads=2, width=64)


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

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, time, width]`` to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y: Tensor = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        y = self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))
        return x + y


def apply_block(block: Block, x: Tensor) -> Tensor:
    """The block's output."""
    return cast(Tensor, block(x))


def head_loss(norm: LayerNorm, x: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token of an output layer that is tied to the embedding."""
    logits = linear(norm(x), embedding)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class GPT2(nn.Module):
    """GPT-2 with learned positions and without biases in its linear layers.

    ``forward`` returns the loss. What flows between blocks is fp32.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = LayerNorm(config.width)
        self._apply_block: Callable[[Block, Tensor], Tensor] = apply_block
        self._head_loss: Callable[[LayerNorm, Tensor, Tensor, Tensor], Tensor] = head_loss
        residual_std = 0.02 / math.sqrt(2 * config.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                std = residual_std if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(parameter, std=std)

    def compile_parts(self) -> None:
        """Compiles one block, which serves for all, and the loss: seconds rather than minutes."""
        self._apply_block = torch.compile(apply_block, dynamic=False)
        self._head_loss = torch.compile(head_loss, dynamic=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """``tokens`` and ``targets`` are int64 ``[batch, time]``; the result is a scalar."""
        x = self.embedding(tokens).float() + self.positions.weight[: tokens.shape[1]].float()
        for block in cast(Iterable[Block], self.blocks):
            x = self._apply_block(block, x)
        return self._head_loss(self.norm, x, self.embedding.weight, targets)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, 3, stride)
        self.second = _convolution(outputs, outputs, 3, 1)
        self.short_cut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short_cut = _convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps pictures to smaller ones with more channels."""
        return F.relu(self.second(F.relu(self.first(x))) + self.short_cut(x))


class ResNet18(nn.Sequential):
    """ResNet-18 whose stem keeps the size of small pictures."""

    def __init__(self, classes: int, channels: int = 64) -> None:
        layers: list[nn.Module] = [_convolution(1, channels, 3, 1), nn.ReLU()]
        width = channels
        for stage in range(4):
            outputs = channels << stage
            layers.append(BasicBlock(width, outputs, 1 if stage == 0 else 2))
            layers.append(BasicBlock(outputs, outputs, 1))
            width = outputs
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
        super().__init__(*layers)


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    options: dict[str, Any] = {"stride": stride, "padding": size // 2, "bias": False}
    convolution = nn.Conv2d(inputs, outputs, size, **options)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))

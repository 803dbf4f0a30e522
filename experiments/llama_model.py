"""A decoder of the shape of Llama 3.1 with random weights: RMSNorm, rotary positions, grouped-query
attention, SwiGLU; each layer recomputed in the backward pass, logits never held all at once.

What flows between layers is bf16, whether weights are bf16 or fp32 under ``torch.autocast``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2048  # tokens
STREAM = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """Sizes; the defaults are Llama 3.1 8B's."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336
    vocabulary: int = 128256
    rotary_base: float = 500_000.0

    @property
    def head_width(self) -> int:
        """Of queries, keys and values."""
        return self.width // self.heads

    def with_layers(self, layers: int) -> Shape:
        """The same with another number of layers."""
        return replace(self, layers=layers)


LLAMA_8B = Shape()
SMALL = Shape(layers=8, width=1024, heads=16, kv_heads=4, hidden=3584, vocabulary=32000)
TINY = Shape(layers=2, width=64, heads=4, kv_heads=2, hidden=192, vocabulary=512)


class Norm(nn.Module):
    """RMSNorm in the dtype of its input; the kernel sums in fp32."""

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        with torch.autocast(x.device.type, enabled=False):
            y: Tensor = F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)
            return y


class Layer(nn.Module):
    """Attention and perceptron, each behind a norm."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)

        kv_width = shape.kv_heads * shape.head_width
        self.head_width = shape.head_width
        self.attention_norm = Norm(shape.width, device, dtype)
        self.q = linear(shape.width, shape.width)
        self.k = linear(shape.width, kv_width)
        self.v = linear(shape.width, kv_width)
        self.o = linear(shape.width, shape.width)
        self.mlp_norm = Norm(shape.width, device, dtype)
        self.gate = linear(shape.width, shape.hidden)
        self.up = linear(shape.width, shape.hidden)
        self.down = linear(shape.hidden, shape.width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[batch, time, width]`` to the same."""
        normed = self.attention_norm(x)
        q, k, v = (self._heads(project(normed)) for project in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(x)
        down: Tensor = self.down(F.silu(self.gate(normed)) * self.up(normed))
        return x + down

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_width).transpose(1, 2)


class Llama(nn.Module):
    """The network; `forward` gives the mean loss per token."""

    def __init__(
        self,
        shape: Shape,
        device: torch.device,
        dtype: torch.dtype,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        size = (shape.vocabulary, shape.width)
        with torch.no_grad():
            self.embedding = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
            self.layers = nn.ModuleList(Layer(shape, device, dtype) for _ in range(shape.layers))
            self.norm = Norm(shape.width, device, dtype)
            self.head = nn.Parameter(torch.empty(size, device=device, dtype=dtype))
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.02, generator=generator)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Of int64 tokens ``[batch, time]`` and what follows each."""
        cos, sin = self._rotary(tokens.shape[1], tokens.device)
        x = F.embedding(tokens, self.embedding).to(STREAM)
        for layer in self.layers:
            x = _recomputed(layer, x, cos, sin)
        flat, wanted = self.norm(x).flatten(0, 1), targets.flatten()
        total = torch.zeros((), device=x.device)
        for begin in range(0, len(wanted), LOGITS_AT_ONCE):
            part = slice(begin, begin + LOGITS_AT_ONCE)
            total = total + _recomputed(self._loss, flat[part], wanted[part])
        return total / len(wanted)

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(x, self.head).float()
        return F.cross_entropy(logits, targets, reduction="sum")

    def _rotary(self, time: int, device: torch.device) -> tuple[Tensor, Tensor]:
        width = self.shape.head_width
        exponent = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
        position = torch.arange(time, dtype=torch.float32, device=device)
        angle = position[:, None] * self.shape.rotary_base ** -exponent[None, :]
        return angle.cos().to(STREAM), angle.sin().to(STREAM)


def _recomputed(call: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    # Nothing here draws random numbers, so their state need not be kept.
    result: Tensor = checkpoint(call, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

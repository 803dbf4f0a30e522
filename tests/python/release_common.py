"""A model and training loops for the tests of gradient release."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import flashoptim_cpp as flash
import torch
from torch import Tensor, nn

Update = Callable[[int], None]


class Net(nn.Module):
    """Tied weights, a module used twice, a convolution, norms and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.convolution = nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.twice = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.convolution(x.reshape(-1, 8, 8, 8)).reshape(x.shape)
        return self.head(self.norm(self.twice(torch.tanh(self.twice(x)))))


def net(dtype: torch.dtype = torch.bfloat16) -> Net:
    """The model, always with the same weights."""
    torch.manual_seed(0)
    model = Net()
    if dtype != torch.float32:
        flash.cast_model(model, dtype)
    return model


def loss_of(model: nn.Module, step: int) -> Tensor:
    """The loss of a batch of 8 sequences of 8 tokens that depends on the step only."""
    tokens = torch.randint(32, (8, 8), generator=torch.Generator().manual_seed(step))
    logits = model(tokens).float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1).flatten())


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices and vectors apart, with other options."""
    matrices = [param for param in model.parameters() if param.dim() > 1]
    vectors = [param for param in model.parameters() if param.dim() <= 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 3e-3}]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], after: Any = None
) -> None:
    """The usual loop."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if after is not None:
            after.step()

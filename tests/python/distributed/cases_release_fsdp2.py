"""Gradient release of models sharded by `fully_shard`, on two processes with gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import torch
import torch.distributed as dist
from common import same_bits
from ranks import case
from sharded import local
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

MAX_NORM = 0.1


class Net(nn.Module):
    """Rows that do not divide among the ranks, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 65)
        self.second = nn.Linear(65, 8)
        self.unused = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def make(release: bool, dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = Net().to(dtype)
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
    handle = flash.enable_gradient_release(model, optimizer, **options) if release else None
    return model, optimizer, handle


def loss_of(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
    return model(x.to(next(model.parameters()).dtype)).float().square().mean()


def bits(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        (
            local(param).detach().clone(),
            {name: local(value).clone() for name, value in optimizer.state[param].items()},
        )
        for param in model.parameters()
    ]


@case(2)
def equal_to_plain_steps(_: Path) -> None:
    results = []
    for release in (False, True):
        model, optimizer, _ = make(release)
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if release:
                assert all(param.grad is None for param in model.parameters())
            optimizer.step()
        assert optimizer.state[model.unused.weight]
        results.append(bits(model, optimizer))
    assert same_bits(*results)


@case(2)
def accumulation(_: Path) -> None:
    for how in ("accumulate", "no sync"):
        results = []
        for release in (False, True):
            counted = release and how == "accumulate"
            model, optimizer, _ = make(release, **({"accumulate": 3} if counted else {}))
            assert isinstance(model, FSDPModule)
            for part in range(9):
                model.set_requires_gradient_sync(how == "accumulate" or part % 3 == 2)
                loss_of(model, part).backward()
                if part % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            results.append(bits(model, optimizer))
        assert same_bits(*results), how


@case(2)
def clipping(_: Path) -> None:
    results = []
    for release in (False, True):
        options = {"max_norm": MAX_NORM} if release else {}
        model, optimizer, handle = make(release, torch.float32, **options)
        norms = []
        for step in range(4):
            optimizer.zero_grad()
            if handle is not None:
                with handle.measure():
                    loss_of(model, step).backward()
            loss_of(model, step).backward()
            if handle is None:
                norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                norms.append(float(norm.full_tensor()))
            optimizer.step()
            if handle is not None:
                norms.append(float(handle.total_norm))
        assert max(norms) > MAX_NORM
        results.append([norms, bits(model, optimizer)])
    assert same_bits(*results)


@case(2)
def clipping_by_the_norm_before(_: Path) -> None:
    results = []
    for release in (False, True):
        options = {"max_norm": MAX_NORM} if release else {}
        model, optimizer, handle = make(release, torch.float32, **options)
        if handle is not None:
            handle.total_norm = 0.2
        previous = torch.tensor(0.2)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if handle is None:
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                norm = nn.utils.get_total_norm(gradients).full_tensor()
                nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, previous)
                previous = norm
            optimizer.step()
        results.append(bits(model, optimizer))
    assert same_bits(*results)

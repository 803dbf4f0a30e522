"""Gradient release under DistributedDataParallel, on two processes with gloo."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
import torch.distributed as dist
from common import bits_of, same_bits
from ranks import case
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WAYS: dict[str, dict[str, Any]] = {
    "copied buckets": {},
    "gradients in buckets": {"gradient_as_bucket_view": True},
    "static graph": {"static_graph": True},
    "small buckets": {"bucket_cap_mb": 0.001, "find_unused_parameters": True},
}


class Net(nn.Module):
    """Tied weights, a module used twice, a frozen parameter and one that is used at times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.twice = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.norm.bias.requires_grad_(False)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.sometimes = nn.Linear(64, 64)

    def forward(self, tokens: Tensor, sometimes: bool) -> Tensor:
        x = self.embedding(tokens)
        x = self.norm(self.twice(torch.tanh(self.twice(x))))
        if sometimes:
            x = x + self.sometimes(x)
        return self.head(x)


def loss_of(model: nn.Module, step: int, sometimes: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    tokens = torch.randint(32, (4, 8), generator=generator)
    logits = model(tokens, sometimes).float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1).flatten())


def make(options: dict[str, Any], **kwargs: Any) -> tuple[DistributedDataParallel, Any]:
    torch.manual_seed(0)
    model = Net()
    flash.cast_model(model)
    ddp = DistributedDataParallel(model, **options)
    return ddp, flash.FlashAdamW(ddp.parameters(), lr=1e-2, **kwargs)


def same_on_all_ranks(bits: list[Any]) -> bool:
    ours = torch.cat([weight.float().flatten() for weight, _ in bits])
    theirs = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, ours)
    return all(same_bits(ours, other) for other in theirs)


@case(2)
def equal_to_plain_steps(_: Path) -> None:
    """E10."""
    for options in WAYS.values():
        results = []
        for release in (False, True):
            model, optimizer = make(options)
            if release:
                flash.enable_gradient_release(model, optimizer)
            for step in range(8):
                used = step % 2 == 0 or "find_unused_parameters" not in options
                optimizer.zero_grad()
                loss_of(model, step, used).backward()
                if release:
                    assert all(param.grad is None for param in model.parameters())
                optimizer.step()
            results.append(bits_of(model.parameters(), optimizer))
        assert same_bits(*results), options
        assert same_on_all_ranks(results[1])


@case(2)
def accumulation(_: Path) -> None:
    results = []
    for release in (False, True):
        model, optimizer = make({})
        if release:
            flash.enable_gradient_release(model, optimizer)
        for step in range(4):
            optimizer.zero_grad()
            for part in range(3):
                with model.no_sync() if part < 2 else nullcontext():
                    loss = loss_of(model, 3 * step + part)
                # Outside, since the forward pass is what decides.
                loss.backward()
                if release:
                    kept = [param.grad is not None for param in model.parameters()]
                    assert any(kept) == (part < 2)
            optimizer.step()
        results.append(bits_of(model.parameters(), optimizer))
    assert same_bits(*results)
    with pytest.raises(ValueError, match="no_sync"):
        flash.enable_gradient_release(*make({}), accumulate=2)


@case(2)
def clipping(_: Path) -> None:
    results = []
    for release in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(Net())
        optimizer = flash.FlashAdamW(model.parameters(), lr=1e-2)
        handle = None
        if release:
            handle = flash.enable_gradient_release(model, optimizer, max_norm=0.1)
        for step in range(4):
            optimizer.zero_grad()
            if handle is not None:
                with handle.measure():
                    loss_of(model, step).backward()
            loss_of(model, step).backward()
            if handle is None:
                assert float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)) > 0.1
            optimizer.step()
        results.append(bits_of(model.parameters(), optimizer))
    assert same_bits(*results)


@case(2)
def mistakes(_: Path) -> None:
    model, optimizer = make({})
    before = bits_of(model.parameters(), optimizer)
    handle = flash.enable_gradient_release(model.module, optimizer)
    with pytest.raises(RuntimeError, match="pass the wrapper to enable_gradient_release"):
        loss_of(model, 0).backward()
    assert same_bits(before, bits_of(model.parameters(), optimizer))
    handle.remove()

    model, optimizer = make({})
    flash.enable_gradient_release(model, optimizer)
    loss_of(model, 0).backward()
    with pytest.raises(RuntimeError, match="got a second gradient"):
        loss_of(model, 1).backward()

    inner = nn.Sequential(DistributedDataParallel(Net()))
    with pytest.raises(TypeError, match="module '0' is a DistributedDataParallel inside"):
        flash.enable_gradient_release(inner, flash.FlashAdamW(inner.parameters()))

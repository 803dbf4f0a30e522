"""Gradient release on a GPU: the same bits, less memory, and nothing that waits."""

from __future__ import annotations

import copy
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from cases import MAIN_RULES, RULES
from helpers import assert_same, contents
from torch import Tensor, nn

WIDTH, LAYERS, STEPS = 256, 6, 10
#: Of an allocation on a GPU.
GRANULE = 512


def network(device: torch.device, width: int = WIDTH) -> nn.Module:
    """Layers of one size, so that two gradients are a small part of all."""
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.LayerNorm(width)).to(device, torch.bfloat16)


def backward(model: nn.Module, step: int, width: int = WIDTH) -> None:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, width, generator=generator).to(next(model.parameters()))
    (model(inputs) - inputs).float().pow(2).mean().backward()


@pytest.mark.parametrize("rule", MAIN_RULES)
def test_the_same_bits_as_without(rule: str, device: torch.device) -> None:
    make, options = RULES[rule]
    plain = network(device)
    released = copy.deepcopy(plain)
    optimizers = [make(model.parameters(), **options) for model in (plain, released)]
    flash.enable_gradient_release(released, optimizers[1])
    for step in range(STEPS):
        for model, optimizer in zip((plain, released), optimizers, strict=True):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
    names = [name for name, _ in plain.named_parameters()]
    assert_same(
        contents(plain.parameters(), optimizers[0]),
        contents(released.parameters(), optimizers[1]),
        names,
    )


def test_gradients_are_freed_in_the_backward_pass(gpu: torch.device) -> None:
    width = 2048
    peaks = []
    for release in (False, True):
        model = network(gpu, width)
        optimizer = flash.FlashAdamW(model.parameters(), lr=1e-3)
        if release:
            flash.enable_gradient_release(model, optimizer)
        for step in range(2):
            backward(model, step, width)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        backward(model, 2, width)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        optimizer.step()
        optimizer.zero_grad()
    one = 2 * width * width
    all_but_two = (LAYERS - 2) * one
    assert peaks[0] - peaks[1] >= all_but_two - LAYERS * GRANULE


@pytest.mark.parametrize("clipped", [False, True])
def test_nothing_waits(clipped: bool, gpu: torch.device) -> None:
    model = network(gpu)
    optimizer = flash.FlashAdamW(model.parameters(), lr=1e-3)
    flash.enable_gradient_release(model, optimizer, max_norm=1.0 if clipped else None)
    inputs = torch.randn(8, WIDTH, device=gpu, dtype=torch.bfloat16)

    def step() -> Tensor:
        loss: Tensor = (model(inputs) - inputs).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class StaticLoop:
    """A training step on inputs that stay in one place, to be captured."""

    def __init__(self, device: torch.device, measured: bool = False, **options: Any) -> None:
        self.model, self.measured = network(device), measured
        self.optimizer = flash.FlashAdamW(
            self.model.parameters(), lr=1e-3, capturable=options.pop("capturable", True)
        )
        self.handle = flash.enable_gradient_release(self.model, self.optimizer, **options)
        self.inputs = torch.empty(8, WIDTH, device=device, dtype=torch.bfloat16)

    def prepare(self, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        self.inputs.copy_(torch.randn(8, WIDTH, generator=generator))

    def backward(self) -> None:
        (self.model(self.inputs) - self.inputs).float().pow(2).mean().backward()

    def step(self) -> None:
        if self.measured:
            with self.handle.measure():
                self.backward()
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def warm_up(self, steps: range) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for step in steps:
                self.prepare(step)
                self.step()
        torch.cuda.current_stream().wait_stream(side)


@pytest.mark.parametrize("options", [{}, {"max_norm": 0.01, "measured": True}], ids=str)
def test_a_captured_step_is_replayed(options: dict[str, Any], gpu: torch.device) -> None:
    eager, captured = StaticLoop(gpu, **options), StaticLoop(gpu, **options)
    eager.warm_up(range(6))
    captured.warm_up(range(3))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for step in range(3, 6):
        captured.prepare(step)
        graph.replay()
    torch.cuda.synchronize()
    assert_same(
        contents(eager.model.parameters(), eager.optimizer),
        contents(captured.model.parameters(), captured.optimizer),
        [name for name, _ in eager.model.named_parameters()],
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"capturable": False}, "capturable=True"), ({"max_norm": 1.0}, "measure")],
    ids=str,
)
def test_captures_that_would_replay_old_numbers_are_refused(
    options: dict[str, Any], message: str, gpu: torch.device
) -> None:
    """C19."""
    loop = StaticLoop(gpu, **options)
    loop.warm_up(range(3))
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match=message):
        loop.step()

"""Mixed precision with torch's own tools: autocast and GradScaler."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import flashoptim_cpp as flash
import pytest
import torch
from cases import Make, Options
from helpers import assert_same, contents, set_gradient
from torch import Tensor, nn

SCALE = 65536.0
SCALED = pytest.mark.parametrize(
    "make", [flash.FlashAdamW, flash.FlashSGD, flash.FlashLion], ids=lambda make: make.__name__
)


def model_of(device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A small network."""
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.LayerNorm(64))
    return layers.to(device, dtype)


def low_precision(device: torch.device) -> torch.dtype:
    """The 16-bit dtype in which the models run; the CPU is slow at fp16."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def scaled_backward(
    model: nn.Module, scaler: torch.amp.GradScaler, device: torch.device, seed: int
) -> None:
    """Leaves scaled gradients in the model."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(32, 64, generator=generator).to(device)
    with torch.autocast(device.type, dtype=low_precision(device)):
        loss = (model(inputs) - inputs).float().pow(2).mean()
    scaler.scale(loss).backward()


def names_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


@pytest.fixture(params=[False, True], ids=["on the host", "capturable"])
def way(request: pytest.FixtureRequest, device: torch.device) -> Options:
    """Options: the host knows scale and infinities, or only the GPU does."""
    if request.param and device.type == "cpu":
        pytest.skip("capturable is for GPUs")
    return {"capturable": request.param}


@contextmanager
def no_waiting(wanted: bool) -> Iterator[None]:
    """Fails if torch waits for the GPU."""
    if wanted:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if wanted:
            torch.cuda.set_sync_debug_mode("default")


@SCALED
@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
def test_scaled_steps_are_those_of_unscaled_gradients(
    make: Make, clip: bool, way: Options, device: torch.device
) -> None:
    """Gradients are unscaled once, with `unscale_` and clipping before the step or without."""
    model = model_of(device)
    twin = copy.deepcopy(model)
    optimizer, other = make(model.parameters(), lr=1e-3, **way), make(twin.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    for step in range(4):
        optimizer.zero_grad()
        scaled_backward(model, scaler, device, step)
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for param, same in zip(model.parameters(), twin.parameters(), strict=True):
            assert param.grad is not None
            same.grad = param.grad.clone() if clip else param.grad / SCALE
        # The first step makes the state.
        with no_waiting(way["capturable"] and step > 0):
            scaler.step(optimizer)
            scaler.update()
        other.step()
    assert scaler.get_scale() == SCALE
    assert_same(
        contents(twin.parameters(), other),
        contents(model.parameters(), optimizer),
        names_of(model),
    )


def assert_skipping(
    make: Make, params: list[nn.Parameter], way: Options, value: str, device: torch.device
) -> None:
    """Spoils the gradient of each parameter in turn; good steps come between."""
    names = [f"parameter {index}" for index in range(len(params))]
    optimizer = make(params, lr=1e-3, **way)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    for bad in range(len(params)):
        for factor in (1.0, float(value)):
            scaler.scale(torch.ones((), device=device))
            scale = scaler.get_scale()
            for index, param in enumerate(params):
                param.grad = torch.full_like(param, 0.1 * scale)
                if index == bad:
                    param.grad[-1, -1] *= factor
            before = contents(params, optimizer)
            scaler.step(optimizer)
            scaler.update()
            if factor != 1.0:
                assert scaler.get_scale() == scale / 2
                assert_same(before, contents(params, optimizer), names, "not skipped")
    assert all(float(optimizer.state[param]["step"]) == len(params) for param in params)


@SCALED
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_skipped_step_changes_nothing(
    make: Make, value: str, way: Options, device: torch.device
) -> None:
    """E3: Neither weights nor states nor step counts, wherever the one bad gradient is."""
    params = [nn.Parameter(torch.randn(8, 70).to(device)) for _ in range(3)]
    assert_skipping(make, params, way, value, device)


@SCALED
def test_an_infinity_on_one_device_skips_the_other(make: Make, device: torch.device) -> None:
    """C1."""
    places = [device, torch.device("cpu")]
    params = [nn.Parameter(torch.randn(8, 70).to(place)) for place in places]
    assert_skipping(make, params, {"capturable": False}, "inf", device)


def test_a_skipped_first_step_can_be_saved(way: Options, device: torch.device) -> None:
    param = nn.Parameter(torch.randn(8, 64).to(device))
    weight = param.detach().clone()
    optimizer = flash.FlashAdamW([param], **way)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    scaler.scale(torch.ones((), device=device))
    param.grad = torch.full_like(param, float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight, param.detach())
    saved = optimizer.state_dict()
    assert all(float(state["step"]) == 0 for state in saved["state"].values())
    fresh = flash.FlashAdamW([param])
    fresh.load_state_dict(saved)
    param.grad = torch.ones_like(param)
    fresh.step()
    assert float(fresh.state[param]["step"]) == 1


@SCALED
def test_fp16_weights_under_a_scaler(make: Make, way: Options, device: torch.device) -> None:
    """GradScaler leaves fp16 gradients to optimizers that scale them themselves."""
    params = [nn.Parameter(torch.randn(8, 64).to(device, torch.float16)) for _ in range(2)]
    twins = [nn.Parameter(param.detach().clone()) for param in params]
    names = ["first", "second"]
    optimizer, other = make(params, lr=1e-3, **way), make(twins, lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    for step in range(3):
        scaler.scale(torch.ones((), device=device))
        for param, twin in zip(params, twins, strict=True):
            param.grad = (torch.randn(8, 64) * 1e-3 * SCALE).to(device, torch.float16)
            set_gradient(twin, param.grad.float() / SCALE)
        scaler.step(optimizer)
        scaler.update()
        other.step()
        assert_same(contents(twins, other), contents(params, optimizer), names, f"step {step}")
    params[1].grad = torch.full_like(params[1], float("inf"))
    scaler.step(optimizer)
    scaler.update()
    assert_same(contents(twins, other), contents(params, optimizer), names, "not skipped")
    assert scaler.get_scale() == SCALE / 2


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
@SCALED
def test_training_under_bf16_autocast(
    make: Make, weights: torch.dtype, device: torch.device
) -> None:
    model = model_of(device)
    flash.cast_model(model, weights)
    lr = 0.5 if make is flash.FlashSGD else 1e-3
    optimizer = make(model.parameters(), lr=lr)
    inputs = torch.randn(256, 64).to(device, weights)
    target = torch.sin(inputs.float().roll(3, dims=1))
    losses: list[Tensor] = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            output = model(inputs)
        loss = (output.float() - target).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    first, last = float(losses[0]), float(losses[-1])
    assert last < 0.7 * first, f"the loss went from {first} to {last}"

"""Without quantization every rule follows torch's optimizer, hyper-parameter by hyper-parameter."""

from __future__ import annotations

from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import parameter, set_gradients
from torch import Tensor, nn

STEPS = 200
# Each step rounds the fp32 weight by at most half a unit in the last place, 2^-24 of it; against
# fp64 these add up to at most STEPS times as much. The errors of the updates are far smaller.
BOUND = STEPS * 2.0**-24

SGD: list[dict[str, Any]] = [
    {},
    {"lr": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "maximize": True},
    {"weight_decay": 0.1},
    {"momentum": 0.8, "weight_decay": 0.1, "dampening": 0.5, "maximize": True},
]
ADAM: list[dict[str, Any]] = [
    {},
    {"lr": 0.02},
    {"betas": (0.5, 0.9)},
    {"betas": (0.0, 0.99)},
    {"eps": 1e-2},
    {"weight_decay": 0.1},
    {"weight_decay": 0.0},
    {"maximize": True},
    {"amsgrad": True},
    {"amsgrad": True, "maximize": True, "weight_decay": 0.1, "betas": (0.8, 0.95)},
]
PAIRS = [
    *((flash.FlashSGD, torch.optim.SGD, {"lr": 1e-2, **options}) for options in SGD),
    *((flash.FlashAdam, torch.optim.Adam, {"lr": 1e-3, **options}) for options in ADAM),
    *((flash.FlashAdamW, torch.optim.AdamW, {"lr": 1e-3, **options}) for options in ADAM),
]


def identify(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=identify)
def test_a_rule_follows_torch(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    mine = [parameter(16, 37), parameter(300)]
    reference = [nn.Parameter(p.detach().double()) for p in mine]
    a = ours(mine, **options, quantize=False, master_weight_bits=32)
    b = theirs(reference, **options)
    largest = 1.0
    for step in range(STEPS):
        set_gradients(mine, step)
        for p, q in zip(mine, reference, strict=True):
            q.grad = p.grad.double()
        a.step()
        b.step()
        largest = max(largest, *(float(q.detach().abs().max()) for q in reference))
    for p, q in zip(mine, reference, strict=True):
        assert float((p.detach() - q.detach()).abs().max()) < BOUND * largest


def lion_fp64(w: Tensor, m: Tensor, g: Tensor, lr: float, betas: Any, decay: float) -> None:
    """A step of Lion as its paper writes it, in place."""
    update = (betas[0] * m + (1 - betas[0]) * g).sign()
    w.mul_(1 - lr * decay).sub_(lr * update)
    m.mul_(betas[1]).add_((1 - betas[1]) * g)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1e-2},
        {"betas": (0.95, 0.98)},
        {"betas": (0.0, 0.5)},
        {"weight_decay": 0.1},
        {"maximize": True},
    ],
    ids=str,
)
def test_lion_follows_its_paper(options: dict[str, Any]) -> None:
    param = parameter(16, 37)
    w, m = param.detach().double(), torch.zeros(16, 37, dtype=torch.float64)
    optimizer = flash.FlashLion([param], **{"lr": 1e-3, **options}, quantize=False)
    sign = -1 if options.get("maximize") else 1
    for step in range(STEPS):
        set_gradients([param], step)
        lion_fp64(
            w,
            m,
            sign * param.grad.double(),
            options.get("lr", 1e-3),
            options.get("betas", (0.9, 0.99)),
            options.get("weight_decay", 0.0),
        )
        optimizer.step()
    # A sign near zero may differ, which moves a weight by twice the learning rate.
    difference = (param.detach() - w).abs()
    assert float((difference > BOUND * w.abs().clamp(min=1)).double().mean()) < 1e-3


@pytest.mark.parametrize("rule", [flash.FlashSGDW, flash.FlashAdamW, flash.FlashLion])
def test_fully_decoupled_decay_follows_the_schedule_only(rule: Any) -> None:
    param = parameter(4, 8)
    start = param.detach().double()
    optimizer = rule([param], lr=1e-3, weight_decay=0.1, decouple_lr=True, quantize=False)
    factor = 1.0
    for lr in (1e-3, 5e-4, 2e-3):
        optimizer.param_groups[0]["lr"] = lr
        param.grad = torch.zeros_like(param)
        optimizer.step()
        factor *= 1 - lr / 1e-3 * 0.1
    torch.testing.assert_close(param.detach().double(), start * factor, rtol=1e-6, atol=0)


def test_sgdw_decays_by_the_learning_rate() -> None:
    param = parameter(4, 8)
    start = param.detach().double()
    optimizer = flash.FlashSGDW([param], lr=0.1, weight_decay=0.5)
    param.grad = torch.ones_like(param)
    optimizer.step()
    torch.testing.assert_close(param.detach().double(), start * 0.95 - 0.1, rtol=1e-6, atol=1e-7)

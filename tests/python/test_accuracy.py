"""Updates of the 8-bit optimizers against fp64, in gradient regimes known to break 8-bit states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import flashoptim_cpp as flash
import pytest
import torch
from common import parameter
from torch import Tensor, nn

STEPS = 2000
SHAPE = (128, 64)
LR = 2.0**-10  # a power of two: dividing updates by it is exact

Gradients = Callable[[torch.Generator], Iterator[Tensor]]


def noise(sigma: float) -> Gradients:
    """Independent normal gradients."""

    def gradients(generator: torch.Generator) -> Iterator[Tensor]:
        for _ in range(STEPS):
            yield torch.randn(SHAPE, generator=generator) * sigma

    return gradients


def drop(factor: float) -> Gradients:
    """Gradients that become smaller half-way."""

    def gradients(generator: torch.Generator) -> Iterator[Tensor]:
        for step in range(STEPS):
            sigma = 1e-4 if step < STEPS // 2 else 1e-4 / factor
            yield torch.randn(SHAPE, generator=generator) * sigma

    return gradients


def spread(ratio: float) -> Gradients:
    """Elements of one group with scales that differ by up to a ratio."""

    def gradients(generator: torch.Generator) -> Iterator[Tensor]:
        scales = 1e-4 * ratio ** -torch.rand(SHAPE, generator=generator)
        for _ in range(STEPS):
            yield torch.randn(SHAPE, generator=generator) * scales

    return gradients


def spike(factor: float) -> Gradients:
    """One gradient of one element of each group is far too large."""

    def gradients(generator: torch.Generator) -> Iterator[Tensor]:
        for step in range(STEPS):
            gradient = torch.randn(SHAPE, generator=generator) * 1e-4
            if step == STEPS // 4:
                gradient[:, 17] *= factor
            yield gradient

    return gradients


def sparse(share: float) -> Gradients:
    """Most gradients are zero."""

    def gradients(generator: torch.Generator) -> Iterator[Tensor]:
        for _ in range(STEPS):
            mask = torch.rand(SHAPE, generator=generator) < share
            yield torch.randn(SHAPE, generator=generator) * 1e-4 * mask

    return gradients


REGIMES: dict[str, tuple[Gradients, float]] = {
    "noise 1e-4": (noise(1e-4), 0.999),
    "noise 1e-5": (noise(1e-5), 0.999),
    "noise 1e-6": (noise(1e-6), 0.999),
    "noise 1e-7": (noise(1e-7), 0.999),
    "noise 1e-8": (noise(1e-8), 0.95),
    "drop 30x": (drop(30), 0.999),
    "drop 30x, slow second moment": (drop(30), 0.9999),
    "spread 100x": (spread(100), 0.95),
    "spread 1000x": (spread(1000), 0.999),
    "spike 3000x": (spike(3000), 0.999),
    "2 % sparse": (sparse(0.02), 0.999),
}


@dataclass
class Errors:
    """Of all updates of a run."""

    relative_l2: float  # of the worst quarter
    largest: float
    largest_fp64: float


def adamw_errors(gradients: Gradients, betas: tuple[float, float]) -> Errors:
    """Steps a weight that is put back to zero each time, so that it equals its update."""
    param = nn.Parameter(torch.zeros(SHAPE))
    optimizer = flash.FlashAdamW([param], lr=LR, betas=betas, weight_decay=0.0)
    m = torch.zeros(SHAPE, dtype=torch.float64)
    v = torch.zeros(SHAPE, dtype=torch.float64)
    squares = [0.0] * 4
    reference_squares = [0.0] * 4
    largest = largest_fp64 = 0.0
    for step, gradient in enumerate(gradients(torch.Generator().manual_seed(1)), start=1):
        g = gradient.double()
        m.mul_(betas[0]).add_(g, alpha=1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        denominator = (v / (1 - betas[1] ** step)).sqrt_().add_(1e-8)
        expected = (m / (1 - betas[0] ** step)).div_(denominator)
        param.grad = gradient
        optimizer.step()
        with torch.no_grad():
            update = param.double() / -LR
            param.zero_()
        quarter = 4 * (step - 1) // STEPS
        squares[quarter] += float((update - expected).square().sum())
        reference_squares[quarter] += float(expected.square().sum())
        largest = max(largest, float(update.abs().max()))
        largest_fp64 = max(largest_fp64, float(expected.abs().max()))
    relative = [math.sqrt(a / b) for a, b in zip(squares, reference_squares, strict=True)]
    return Errors(max(relative), largest, largest_fp64)


@pytest.mark.parametrize("regime", REGIMES)
def test_updates_stay_near_fp64_in_every_regime(regime: str) -> None:
    gradients, beta2 = REGIMES[regime]
    errors = adamw_errors(gradients, (0.9, beta2))
    assert errors.relative_l2 <= 0.2
    assert errors.largest <= 2 * errors.largest_fp64


@pytest.mark.parametrize("regime", ["noise 1e-4", "noise 1e-8", "spread 100x", "2 % sparse"])
def test_momentum_of_sgd_stays_near_fp64(regime: str) -> None:
    gradients, _ = REGIMES[regime]
    param = nn.Parameter(torch.zeros(SHAPE))
    optimizer = flash.FlashSGD([param], lr=1.0, momentum=0.9)
    b = torch.zeros(SHAPE, dtype=torch.float64)
    squares = reference_squares = 0.0
    for gradient in gradients(torch.Generator().manual_seed(1)):
        b.mul_(0.9).add_(gradient)
        param.grad = gradient
        optimizer.step()
        with torch.no_grad():
            squares += float((param.double() + b).square().sum())
            param.zero_()
        reference_squares += float(b.square().sum())
    assert math.sqrt(squares / reference_squares) <= 0.03


@pytest.mark.parametrize("regime", ["noise 1e-4", "noise 1e-8", "spread 100x"])
def test_signs_of_lion_stay_those_of_fp64(regime: str) -> None:
    gradients, _ = REGIMES[regime]
    param = nn.Parameter(torch.zeros(SHAPE))
    optimizer = flash.FlashLion([param], lr=1.0)
    m = torch.zeros(SHAPE, dtype=torch.float64)
    wrong = 0
    for gradient in gradients(torch.Generator().manual_seed(1)):
        g = gradient.double()
        expected = (0.9 * m + 0.1 * g).sign()
        m.mul_(0.99).add_(g, alpha=0.01)
        param.grad = gradient
        optimizer.step()
        with torch.no_grad():
            wrong += int((param.double() != -expected).sum())
            param.zero_()
    share = wrong / (STEPS * param.numel())
    assert share <= 0.03


@pytest.mark.parametrize("kind", ["same sign", "noise"])
@pytest.mark.parametrize("size", [1e-5, 1e-6, 3e-7, 1e-8, 1e-9])
def test_tiny_gradients_move_weights_as_in_fp32(size: float, kind: str) -> None:
    """Within 5 % after 1,000 steps: no floor of the state is near gradients that occur."""
    mine, reference = parameter(16, 64), parameter(16, 64)
    start = mine.detach().clone()
    with torch.no_grad():
        reference.copy_(mine)
    ours = flash.FlashAdamW([mine], lr=1e-3, weight_decay=0.0)
    theirs = torch.optim.AdamW([reference], lr=1e-3, weight_decay=0.0)
    for _ in range(1000):
        gradient = torch.full((16, 64), size) if kind == "same sign" else size * torch.randn(16, 64)
        mine.grad = gradient
        reference.grad = gradient.clone()
        ours.step()
        theirs.step()
    moved, expected = (mine - start).detach(), (reference - start).detach()
    assert float((moved - expected).norm()) < 0.05 * float(expected.norm())

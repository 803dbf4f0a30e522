"""Tensors of more than 2^31 elements: nothing is left out, and every part gets the right bits."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import flashoptim_cpp as flash
import pytest
import torch
from cases import Make, Options
from flashoptim_cpp import _C
from torch import Tensor, nn
from windows import Piece, look, step_again, windows_of

STEPS = 2
CHUNK = 1 << 28


@dataclass(frozen=True)
class Case:
    """A rule, how it is called here and in the native plan, and what it keeps."""

    make: Make
    options: Options
    rule: _C.Rule
    hyperparameters: Options
    entries: tuple[str, ...]


_FIRST = ("weight_correction", "exp_avg", "exp_avg_scale")
CASES = {
    "lion": Case(
        flash.FlashLion,
        {"lr": 1e-3, "weight_decay": 0.1, "seed": 3},
        _C.Rule.LION,
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "seed": 3},
        _FIRST,
    ),
    "adamw": Case(
        flash.FlashAdamW,
        {"lr": 1e-3, "weight_decay": 0.1, "seed": 3},
        _C.Rule.ADAM,
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "seed": 3},
        (*_FIRST, "exp_avg_sq", "exp_avg_sq_scale"),
    ),
    "sgdw": Case(
        flash.FlashSGDW,
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "seed": 3},
        _C.Rule.SGD,
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "seed": 3},
        ("weight_correction", "momentum_buffer", "momentum_buffer_scale"),
    ),
}

# One row with a short last group; rows of whole groups; a size that once was not updated at all,
# without an error (DeepSpeed issue 7640).
SHAPES = {
    "2^31+7": (2**31 + 7,),
    "2^31+2^16": (2**15 + 1, 2**16),
    "2359332864": (576_009, 4096),
}
# The same kinds of shape, for the CPU in the GPU's place.
SMALL_SHAPES = {"2^31+7": (2**17 + 7,), "2^31+2^16": (65, 2**10), "2359332864": (141, 4096)}


@pytest.fixture(autouse=True)
def _give_memory_back(device: torch.device) -> Iterator[None]:
    yield
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def shape_of(size: str, device: torch.device) -> tuple[int, ...]:
    return (SHAPES if device.type == "cuda" else SMALL_SHAPES)[size]


def hyperparameters_of(case: Case) -> _C.Hyperparameters:
    """Those of a step as the native plan takes them."""
    values = _C.Hyperparameters()
    values.weight_decay_kind = _C.WeightDecay.DECOUPLED
    for name, value in case.hyperparameters.items():
        setattr(values, name, value)
    return values


def fill_with_noise(gradient: Tensor, seed: int) -> None:
    """Uniform random numbers, a piece at a time."""
    generator = torch.Generator(gradient.device).manual_seed(seed)
    for piece in gradient.view(-1).split(CHUNK):
        piece.uniform_(-1.0, 1.0, generator=generator)


def assert_all_updated(weight: Tensor, gradient: Tensor) -> None:
    """After one step from 0 those weights are 0 whose gradient is."""
    for one, two in zip(weight.view(-1).split(CHUNK), gradient.view(-1).split(CHUNK), strict=True):
        assert torch.equal(one == 0, two == 0), "some elements were not updated"


@pytest.mark.parametrize(
    ("rule", "size"),
    [
        ("lion", "2^31+7"),
        ("adamw", "2^31+7"),
        ("adamw", "2^31+2^16"),
        ("sgdw", "2359332864"),
    ],
)
def test_every_part_is_updated(rule: str, size: str, device: torch.device) -> None:
    case = CASES[rule]
    param = nn.Parameter(torch.zeros(shape_of(size, device), dtype=torch.bfloat16, device=device))
    param.grad = torch.empty_like(param)
    gradient = param.grad
    optimizer = case.make([param], **case.options)
    windows = windows_of(param.numel())
    pieces: list[Piece] = []
    for done in range(STEPS):
        fill_with_noise(gradient, done)
        optimizer.step()
        if done == 0:
            assert_all_updated(param.detach(), gradient)
        else:
            key = int(optimizer.state[param]["stream_key"])
            actual = look(param, optimizer, windows, case.entries)
            for before, after in zip(pieces, actual, strict=True):
                again = step_again(before, gradient, case.rule, hyperparameters_of(case), done, key)
                again.assert_equals(after, f"{rule}, {size}, step {done + 1}")
        pieces = look(param, optimizer, windows, case.entries)
    assert float(optimizer.state[param]["step"]) == STEPS


def test_master_weights_of_a_large_tensor(device: torch.device) -> None:
    """The helpers too count beyond 2^31."""
    torch.set_num_threads(8 if device.type == "cuda" else 1)
    _C.set_cpu_threads(torch.get_num_threads())
    shape = shape_of("2^31+7", device)
    weight = torch.empty(shape, dtype=torch.bfloat16, device=device)
    fill_with_noise(weight, 1)
    correction = torch.empty(shape, dtype=torch.int8, device=device)
    for piece in correction.view(-1).split(CHUNK):
        piece.random_(-128, 128)
    master = flash.reconstruct_fp32_param(weight, correction)
    assert master.shape == weight.shape
    for window in windows_of(weight.numel()):
        part = window.elements(weight.numel())
        expected = flash.reconstruct_fp32_param(weight[part].clone(), correction[part].clone())
        assert torch.equal(master[part], expected)

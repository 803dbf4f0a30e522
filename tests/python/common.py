"""Models, optimizers and comparisons that several tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import flashoptim_cpp as flash
import torch
from torch import Tensor, nn

Make = Callable[..., flash.FlashOptimizer]

RULES: dict[str, tuple[Make, dict[str, Any]]] = {
    "sgd": (flash.FlashSGD, {}),
    "sgd-momentum": (flash.FlashSGD, {"momentum": 0.9}),
    "sgdw-nesterov": (flash.FlashSGDW, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (flash.FlashAdam, {"weight_decay": 0.1}),
    "adamw": (flash.FlashAdamW, {}),
    "adamw-amsgrad": (flash.FlashAdamW, {"amsgrad": True}),
    "adamw-decouple-lr": (flash.FlashAdamW, {"decouple_lr": True, "weight_decay": 1e-3}),
    "lion": (flash.FlashLion, {"weight_decay": 0.1}),
}
# Ways of keeping state, each different from the defaults in another respect.
STORAGES: dict[str, dict[str, Any]] = {
    "default": {},
    "softsign-32": {"codec": "softsign", "master_weight_bits": 32},
    "unquantized": {"quantize": False},
    "stochastic-16": {"master_weight_bits": 16, "stochastic_rounding": True},
    "decompressed": {"compress_state_dict": False},
}


def parameter(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> nn.Parameter:
    """A parameter of normal random numbers."""
    return nn.Parameter((torch.randn(shape) * scale).to(dtype))


def set_gradients(params: Iterable[Tensor], step: int, scale: float = 1.0) -> None:
    """Gives every parameter a gradient that depends on the step and its place only."""
    for i, param in enumerate(params):
        generator = torch.Generator().manual_seed(1000 * step + i)
        gradient = torch.randn(param.shape, generator=generator) * scale
        param.grad = torch.empty_like(param).copy_(gradient)


def train(
    params: list[nn.Parameter], optimizer: torch.optim.Optimizer, steps: Iterable[int]
) -> None:
    """Steps with the gradients of `set_gradients`."""
    for step in steps:
        set_gradients(params, step)
        optimizer.step()


def mixed_parameters() -> list[nn.Parameter]:
    """Matrices and vectors of all weight dtypes; long, short and no rows."""
    return [
        parameter(8, 64, dtype=torch.bfloat16),
        parameter(5, 100, dtype=torch.float16),
        parameter(3, 2, 7),
        parameter(70, dtype=torch.bfloat16),
        parameter(0, 4),
        parameter(6, 3, dtype=torch.bfloat16),
        parameter(dtype=torch.float16),
    ]


def same_bits(a: Any, b: Any) -> bool:
    """Equality of tensors, or of nested containers of tensors, to the last bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        one, two = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        return torch.equal(one, two)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    return bool(a == b)


def bits_of(params: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Any]:
    """Copies of parameters and their state."""
    return [
        (
            param.detach().clone(),
            {name: value.clone() for name, value in optimizer.state.get(param, {}).items()},
        )
        for param in params
    ]


def master(param: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
    """The fp32 master weight of a parameter."""
    if param.dtype == torch.float32:
        return param.detach().clone()
    correction = optimizer.state[param].get("weight_correction")
    return flash.reconstruct_fp32_param(param, correction)

"""The optimizers that train the same network: torch's in fp32, ours, and the official package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import flashoptim_cpp
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import Optimizer

from bench.contenders import OURS

OFFICIAL: Final = "flashoptim"
Groups = list[dict[str, Any]]


class Lion(Optimizer):
    """Lion in plain fp32: what the others are compared with, for torch has none."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves every weight by lr against the sign of gradient and momentum mixed."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            gradients = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            moments = [self.state[p]["exp_avg"] for p in params]
            beta1, beta2 = group["betas"]
            direction = torch._foreach_lerp(moments, gradients, 1 - beta1)
            torch._foreach_sign_(direction)
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, direction, alpha=-group["lr"])
            torch._foreach_lerp_(moments, gradients, 1 - beta2)


@dataclass(frozen=True)
class Variant:
    """An optimizer class and its options; bf16 weights, or fp32 ones of the reference."""

    rule: str
    name: str
    make: Callable[..., Optimizer]
    package: str
    narrow: bool
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Rule and name."""
        return f"{self.rule}/{self.name}"

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot be run on the device, if it cannot."""
        if self.package != OFFICIAL:
            return None
        if device.type != "cuda":
            return "the official package steps CUDA tensors only"
        if importlib.util.find_spec(OFFICIAL) is None:
            return "the official package is not installed: pip install flashoptim"
        return None


def _official(name: str) -> Callable[..., Optimizer]:
    def make(groups: Groups, **options: Any) -> Optimizer:
        return cast(Optimizer, getattr(importlib.import_module(OFFICIAL), name)(groups, **options))

    return make


def _variants() -> dict[str, Variant]:
    fused, wide = {"fused": True}, {"master_weight_bits": 32}
    nearest = {"stochastic_rounding": False}
    adamw, lion, sgd = flashoptim_cpp.FlashAdamW, flashoptim_cpp.FlashLion, flashoptim_cpp.FlashSGD
    listed = (
        Variant("adamw", "torch", torch.optim.AdamW, "torch", False, fused),
        Variant("adamw", "ours-24", adamw, OURS, True),
        Variant("adamw", "ours-24-nearest", adamw, OURS, True, nearest),
        Variant("adamw", "ours-32", adamw, OURS, True, wide),
        Variant("adamw", "official", _official("FlashAdamW"), OFFICIAL, True),
        Variant("lion", "plain", Lion, "torch", False),
        Variant("lion", "ours-24", lion, OURS, True),
        Variant("lion", "ours-24-nearest", lion, OURS, True, nearest),
        Variant("lion", "official", _official("FlashLion"), OFFICIAL, True),
        Variant("sgd", "torch", torch.optim.SGD, "torch", False, fused),
        Variant("sgd", "ours-24", sgd, OURS, True),
        Variant("sgd", "ours-24-nearest", sgd, OURS, True, nearest),
        Variant("sgd", "official", _official("FlashSGD"), OFFICIAL, True),
    )
    return {variant.key: variant for variant in listed}


VARIANTS: Final = _variants()


def in_order(variant: str) -> int:
    """The place of a variant in tables and pictures."""
    return list(VARIANTS).index(variant)


def begin(
    variant: Variant, model: nn.Module, groups: Callable[[nn.Module], Groups], **options: Any
) -> Optimizer:
    """Makes the optimizer of a model with fp32 weights, and casts these if it wants them narrow.

    All variants begin with the model's fp32 weights: narrow ones with master weights rounded from
    them, not from bf16.
    """
    if not variant.narrow:
        return variant.make(groups(model), **variant.options, **options)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    flashoptim_cpp.cast_model(model, torch.bfloat16)
    optimizer = variant.make(groups(model), **variant.options, **options)
    _make_state(variant, model, optimizer)
    cast(Any, optimizer).set_fp32_model_state_dict(model, weights)
    return optimizer


def _make_state(variant: Variant, model: nn.Module, optimizer: Optimizer) -> None:
    """Makes the corrections to which master weights are written: with a step that is none."""
    if variant.package == OURS:
        get_optimizer_state_dict(model, optimizer)
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        for param in group["params"]:
            if "step" in optimizer.state[param]:
                optimizer.state[param]["step"].zero_()
    optimizer.zero_grad()


def master_weights(variant: Variant, model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Copies of the model's weights in fp32, with their corrections."""
    found: Mapping[str, Tensor] = model.state_dict()
    if variant.narrow:
        found = cast(Any, optimizer).get_fp32_model_state_dict(model)
    return {name: value.detach().clone() for name, value in found.items()}

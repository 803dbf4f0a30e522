"""The optimizers that are timed: ours, torch's, and packages that are taken along if installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import nn
from torch.optim import Optimizer

Make = Callable[[list[nn.Parameter]], Optimizer]

OURS: Final = "flashoptim_cpp"
TORCH: Final = "torch"

# The settings of each rule, the same for everybody.
_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.01},
    "lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.01},
    "sgd": {"lr": 0.5, "momentum": 0.9},
}


@dataclass(frozen=True)
class Contender:
    """One optimizer with its settings, and what it takes."""

    label: str
    rule: str  # those of one rule compute the same, up to rounding
    package: str  # that has it
    make: Make
    weight_dtype: torch.dtype  # gradients have the same
    # Bytes per parameter of weights, state and what a step needs for a while: whether it fits.
    room: float
    # Another contender, whose parameters and state it steps: torch's two implementations of a rule
    # keep the same state, and memory holds one.
    shares: str | None = None

    @property
    def ours(self) -> bool:
        """Whether it is of this project."""
        return self.package == OURS

    @property
    def peer(self) -> bool:
        """Whether it may be missing."""
        return self.package not in (OURS, TORCH)


def _from(module: str, name: str, **options: Any) -> Make:
    def make(params: list[nn.Parameter]) -> Optimizer:
        return cast(Optimizer, getattr(importlib.import_module(module), name)(params, **options))

    return make


def _flash(label: str, rule: str, name: str, room: float, **options: Any) -> Contender:
    make = _from(OURS, name, **_SETTINGS[rule], **options)
    return Contender(label, rule, OURS, make, torch.bfloat16, room)


def _torch(
    label: str, rule: str, dtype: torch.dtype, room: float, shares: str | None = None
) -> Contender:
    name = {"adamw": "AdamW", "sgd": "SGD"}[rule]
    how = {"fused": True} if shares is None else {"foreach": True}
    make = _from("torch.optim", name, **_SETTINGS[rule], **how)
    return Contender(label, rule, TORCH, make, dtype, room, shares)


def _peer(label: str, rule: str, module: str, name: str, room: float, **options: Any) -> Contender:
    package = module.partition(".")[0]
    make = _from(module, name, **_SETTINGS[rule], **options)
    return Contender(label, rule, package, make, torch.bfloat16, room)


def _torchao(label: str, name: str, room: float) -> Contender:
    return _peer(label, "adamw", "torchao.optim", name, room, bf16_stochastic_round=True)


_BF16: Final = torch.bfloat16
_FP32: Final = torch.float32

CONTENDERS: Final[dict[str, Contender]] = {
    "adamw": _flash("FlashAdamW, 24 bits", "adamw", "FlashAdamW", 5.2),
    "adamw-32": _flash("FlashAdamW, 32 bits", "adamw", "FlashAdamW", 6.2, master_weight_bits=32),
    "adamw-nearest": _flash(
        "FlashAdamW, 24 bits, rounded to nearest",
        "adamw",
        "FlashAdamW",
        5.2,
        stochastic_rounding=False,
    ),
    "adamw-softsign": _flash(
        "FlashAdamW, 24 bits, softsign", "adamw", "FlashAdamW", 5.2, codec="softsign"
    ),
    "adamw-none": _flash(
        "FlashAdamW, 24 bits, fp32 moments", "adamw", "FlashAdamW", 11, quantize=False
    ),
    "lion": _flash("FlashLion, 24 bits", "lion", "FlashLion", 4.1),
    "sgd": _flash("FlashSGD, momentum, 24 bits", "sgd", "FlashSGD", 4.1),
    "torch-fused-fp32": _torch("torch AdamW, fused, fp32", "adamw", _FP32, 12),
    "torch-fused-bf16": _torch("torch AdamW, fused, bf16", "adamw", _BF16, 6),
    "torch-foreach-fp32": _torch(
        "torch AdamW, foreach, fp32", "adamw", _FP32, 8, "torch-fused-fp32"
    ),
    "torch-foreach-bf16": _torch(
        "torch AdamW, foreach, bf16", "adamw", _BF16, 4, "torch-fused-bf16"
    ),
    "torch-sgd-fp32": _torch("torch SGD, momentum, fused, fp32", "sgd", _FP32, 8),
    "torch-sgd-bf16": _torch("torch SGD, momentum, fused, bf16", "sgd", _BF16, 4),
    "official-adamw": _peer("official FlashAdamW, 24 bits", "adamw", "flashoptim", "FlashAdamW", 6),
    "official-lion": _peer("official FlashLion, 24 bits", "lion", "flashoptim", "FlashLion", 5),
    "official-sgd": _peer(
        "official FlashSGD, momentum, 24 bits", "sgd", "flashoptim", "FlashSGD", 5
    ),
    "bnb-adamw8": _peer(
        "bitsandbytes AdamW8bit, bf16", "adamw", "bitsandbytes.optim", "AdamW8bit", 4.2
    ),
    "bnb-lion8": _peer(
        "bitsandbytes Lion8bit, bf16", "lion", "bitsandbytes.optim", "Lion8bit", 3.2
    ),
    "torchao-adamw8": _torchao("torchao AdamW8bit, bf16", "AdamW8bit", 14),
    "torchao-adamwfp8": _torchao("torchao AdamWFp8, bf16", "AdamWFp8", 10),
}
PEERS: Final = tuple(dict.fromkeys(c.package for c in CONTENDERS.values() if c.peer))

"""What the conformance tests step: rules, ways of keeping state, shapes and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flashoptim_cpp as flash
import torch
from torch import Tensor, nn

Options = Mapping[str, Any]
Make = Callable[..., flash.FlashOptimizer]

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FLOATS = (BF16, FP16, FP32)
CODECS = ("root", "softsign", "none")

# A small second beta lets the second moment fall below its maximum within a few steps.
_AMSGRAD = {"amsgrad": True, "betas": (0.9, 0.8)}

#: Every rule of docs/format.md with each of its arguments.
RULES: dict[str, tuple[Make, Options]] = {
    "sgd": (flash.FlashSGD, {"lr": 0.02}),
    "sgd-decay-maximize": (flash.FlashSGD, {"lr": 0.02, "weight_decay": 0.05, "maximize": True}),
    "sgd-momentum": (flash.FlashSGD, {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd-dampening": (flash.FlashSGD, {"lr": 0.02, "momentum": 0.9, "dampening": 0.3}),
    "sgd-nesterov": (flash.FlashSGD, {"lr": 0.02, "momentum": 0.95, "nesterov": True}),
    "sgdw": (flash.FlashSGDW, {"lr": 0.02, "weight_decay": 0.1}),
    "sgdw-momentum-maximize": (
        flash.FlashSGDW,
        {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.1, "maximize": True},
    ),
    "sgdw-nesterov-decouple-lr": (
        flash.FlashSGDW,
        {
            "lr": 0.02,
            "momentum": 0.8,
            "nesterov": True,
            "weight_decay": 1e-3,
            "decouple_lr": True,
        },
    ),
    "adam": (flash.FlashAdam, {"lr": 3e-3}),
    "adam-decay": (flash.FlashAdam, {"lr": 3e-3, "weight_decay": 0.02}),
    "adam-amsgrad": (flash.FlashAdam, {"lr": 3e-3, "weight_decay": 0.02, **_AMSGRAD}),
    "adam-maximize": (flash.FlashAdam, {"lr": 3e-3, "maximize": True}),
    "adam-no-eps": (flash.FlashAdam, {"lr": 3e-3, "eps": 0.0}),
    "adamw": (flash.FlashAdamW, {"lr": 3e-3, "weight_decay": 0.1}),
    "adamw-amsgrad-maximize": (
        flash.FlashAdamW,
        {"lr": 3e-3, "weight_decay": 0.1, "maximize": True, **_AMSGRAD},
    ),
    "adamw-decouple-lr": (
        flash.FlashAdamW,
        {"lr": 3e-3, "weight_decay": 1e-3, "decouple_lr": True},
    ),
    "lion": (flash.FlashLion, {"lr": 1e-3, "weight_decay": 0.3}),
    "lion-maximize": (flash.FlashLion, {"lr": 1e-3, "maximize": True}),
    "lion-decouple-lr": (
        flash.FlashLion,
        {"lr": 1e-3, "weight_decay": 1e-3, "decouple_lr": True},
    ),
}
#: One for each kernel.
MAIN_RULES = ("sgd", "sgd-momentum", "adamw", "adam-amsgrad", "lion")
#: Those that keep no moments, so that codecs do not matter to them.
WITHOUT_MOMENTS = ("sgd", "sgd-decay-maximize", "sgdw")

#: Every dtype of weights with every width of the master weight.
STORAGES: dict[str, tuple[torch.dtype, int]] = {
    "bf16-16": (BF16, 16),
    "bf16-24": (BF16, 24),
    "bf16-32": (BF16, 32),
    "fp16-16": (FP16, 16),
    "fp16-24": (FP16, 24),
    "fp16-32": (FP16, 32),
    "fp32": (FP32, 24),
}

#: No elements, one, a group and its neighbours, several blocks of groups, tails in every row, and
#: rows too short for a codec.
SMALL_SHAPES = (
    (),
    (70,),
    (0, 64),
    (1, 1),
    (1, 63),
    (1, 64),
    (1, 65),
    (3, 64),
    (33, 64),
    (5, 100),
    (20, 256),
    (9, 5),
)
#: Sizes of many blocks.
LARGE_SHAPES = (
    (4095,),
    (65, 63),
    (1024, 1024),
    (1, 1 << 20),
    ((1 << 20) + 1,),
    (1 << 14, 65),
)

VALUES = ("ordinary", "nonfinite", "wild")
_SPECIAL = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e30, -1e30)
_SPECIAL_ONE_IN = 300


def values(kind: str, shape: Sequence[int], dtype: torch.dtype, seed: int, scale: float) -> Tensor:
    """Random numbers on the host.

    Args:
        kind: ``"ordinary"``: normal, times `scale`; ``"nonfinite"``: the same with NaN, infinities,
            zeros and huge numbers among them; ``"wild"``: every magnitude that the dtype has,
            subnormal and close to overflow.
        shape: of the tensor.
        dtype: of the tensor.
        seed: the same seed gives the same numbers.
        scale: see `kind`.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=generator)
    if kind == "ordinary":
        return (normal * scale).to(dtype)
    if kind == "nonfinite":
        mixed = (normal * scale).to(dtype)
        which = torch.randint(_SPECIAL_ONE_IN, shape, generator=generator)
        for index, special in enumerate(_SPECIAL):
            mixed[which == index] = torch.tensor(special).to(dtype)
        return mixed
    lowest, highest = (-26.0, 16.0) if dtype == FP16 else (-150.0, 128.0)
    exponents = lowest + (highest - lowest) * torch.rand(shape, generator=generator)
    magnitudes = torch.exp2(exponents.double()).clamp(max=torch.finfo(dtype).max)
    return magnitudes.copysign(normal.double()).to(dtype)


@dataclass(frozen=True)
class TensorCase:
    """One parameter and its gradient."""

    shape: tuple[int, ...]
    weight: torch.dtype = BF16
    gradient: torch.dtype = BF16


@dataclass(frozen=True)
class GroupCase:
    """One parameter group."""

    name: str
    tensors: tuple[TensorCase, ...]
    options: Options = field(default_factory=dict)


class Problem:
    """Parameter groups with gradients for any number of steps, the same on every device."""

    def __init__(self, groups: Sequence[GroupCase], kind: str = "ordinary", seed: int = 0) -> None:
        self.groups = groups
        self._kind = kind
        self._seed = seed
        self._tensors = [tensor for group in groups for tensor in group.tensors]
        self._weights: list[Tensor] = []
        self._gradients: dict[tuple[int, torch.device], list[Tensor]] = {}
        #: Of the parameters, for messages.
        self.names = [
            f"{group.name} {list(tensor.shape)} gradient {str(tensor.gradient)[6:]}"
            for group in groups
            for tensor in group.tensors
        ]

    def parameter_groups(self, device: torch.device) -> list[dict[str, Any]]:
        """New parameters, as an optimizer takes them."""
        if not self._weights:
            kind = "ordinary" if self._kind == "wild" else self._kind
            first = 1_000_000 * (self._seed + 1)
            self._weights = [
                values(kind, tensor.shape, tensor.weight, first + index, 0.5)
                for index, tensor in enumerate(self._tensors)
            ]
        weights = iter(self._weights)
        return [
            {
                "params": [
                    nn.Parameter(next(weights).to(device, copy=True)) for _ in group.tensors
                ],
                **group.options,
            }
            for group in self.groups
        ]

    def gradients(self, step: int, device: torch.device) -> list[Tensor]:
        """The gradients of a step; they are kept, and must not be changed."""
        key = (step, device)
        if key not in self._gradients:
            self._gradients[key] = [
                values(
                    self._kind,
                    tensor.shape,
                    tensor.gradient,
                    1000 * step + index + 7919 * self._seed,
                    10.0 ** -(index % 4),
                ).to(device)
                for index, tensor in enumerate(self._tensors)
            ]
        return self._gradients[key]


def every_storage(
    shapes: Sequence[tuple[int, ...]],
    storages: Sequence[str] = tuple(STORAGES),
    options: Options | None = None,
    all_gradients_of: Sequence[tuple[int, ...]] = (),
) -> list[GroupCase]:
    """Groups for all storages, rounding to nearest and stochastically; gradients of all dtypes.

    Args:
        shapes: of the tensors of every group.
        storages: keys of `STORAGES`.
        options: of all groups.
        all_gradients_of: shapes that occur with gradients of every dtype; the others take turns.
    """
    groups: list[GroupCase] = []
    for name in storages:
        dtype, bits = STORAGES[name]
        for stochastic in (False, True):
            if stochastic and dtype == FP32:
                continue
            tensors: list[TensorCase] = []
            for place, shape in enumerate(shapes, start=len(groups)):
                gradients = FLOATS if shape in all_gradients_of else (FLOATS[place % 3],)
                tensors += [TensorCase(shape, dtype, gradient) for gradient in gradients]
            how = {"master_weight_bits": bits, "stochastic_rounding": stochastic}
            title = f"{name} stochastic" if stochastic else name
            groups.append(GroupCase(title, tuple(tensors), {**how, **(options or {})}))
    return groups

"""How small a step may be before master weights of so many bits lose it."""

from __future__ import annotations

import importlib
import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.contenders import OURS, TORCH
from experiments import common
from experiments.regimes import BETA1, EPS, Reference
from experiments.steppers import masters_of

BETA2: Final = 0.999
STEP_SIZES: Final = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
WEIGHT_SCALE: Final = 0.02
DRIFT: Final = 0.25  # mean of the gradients of an element, as a part of their deviation


Fitted = tuple[list[nn.Parameter], Optimizer]  # a parameter per step size


@dataclass(frozen=True, eq=False)
class Kind:
    """An optimizer and what its master weights are."""

    label: str
    package: str
    module: str
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16


def _ours(bits: int | None, *, nearest: bool = False) -> Kind:
    label = f"ours, {bits or 16} bits" + (", to nearest" if nearest else "")
    options = {"master_weight_bits": bits, "stochastic_rounding": not nearest}
    return Kind(label, OURS, OURS, options)


def _official(bits: int | None) -> Kind:
    label = f"official 0.1, {bits or 16} bits"
    return Kind(label, "flashoptim", "flashoptim", {"master_weight_bits": bits})


KINDS: Final = (
    Kind("torch fp32", TORCH, "torch.optim", dtype=torch.float32),
    Kind("torch bf16, no master weight", TORCH, "torch.optim"),
    _ours(32),
    _ours(24),
    _ours(24, nearest=True),
    _ours(None),
    _ours(None, nearest=True),
    _official(32),
    _official(24),
    _official(None),
)


def measure(run: common.Run, steps: int) -> list[dict[str, Any]]:
    """Relative L2 error of how far weights came, and how far in all, by step size and bits."""
    shape = (4, 256) if run.smoke else (64, 1024)
    start = torch.empty(shape, device=run.device).normal_(
        std=WEIGHT_SCALE, generator=run.generator(3)
    )
    start = start.bfloat16().float()  # the same for all
    present = {OURS, TORCH} | common.peers(run.device)
    kinds = [kind for kind in KINDS if kind.package in present]
    fitted: dict[Kind, Fitted] = {}
    for kind in kinds:
        made = run.attempt(kind.label, kind.package, partial(_make, kind, start))
        if made is not None:
            fitted[kind] = made
    noise = run.generator(4)
    mean = DRIFT * torch.empty_like(start).normal_(generator=noise)
    reference = Reference(start, (BETA2,))
    walked = torch.zeros_like(start, dtype=torch.float64)
    for _ in range(steps):
        gradient = 1e-4 * torch.empty_like(start).normal_(generator=noise).add_(mean)
        narrow = gradient.bfloat16()
        wide = narrow.float()
        walked += reference.adamw(wide.double())[0]
        for kind, (params, optimizer) in list(fitted.items()):
            for param in params:
                param.grad = narrow if param.dtype == torch.bfloat16 else wide
            if not run.attempt(kind.label, kind.package, partial(_step, optimizer)):
                del fitted[kind]
    rows = []
    for kind, (params, optimizer) in fitted.items():
        for rate, param in zip(STEP_SIZES, params, strict=True):
            moved = masters_of(kind.package, param, optimizer) - start.double()
            expected = -rate * walked
            error = float((moved - expected).norm() / expected.norm())
            rows.append(
                {
                    "kind": kind.label,
                    "lr": rate,
                    "displacement_error": error if math.isfinite(error) else math.inf,
                    "distance_ratio": float(moved.norm() / expected.norm()),
                }
            )
    run.note("weights done")
    return rows


def _step(optimizer: Optimizer) -> bool:
    optimizer.step()
    return True


def _make(kind: Kind, start: Tensor) -> Fitted:
    params = [nn.Parameter(start.to(kind.dtype, copy=True)) for _ in STEP_SIZES]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, STEP_SIZES, strict=True)]
    name = "AdamW" if kind.package == TORCH else "FlashAdamW"
    make = getattr(importlib.import_module(kind.module), name)
    with warnings.catch_warnings():
        # That 16 bits lose small updates is what is measured.
        warnings.simplefilter("ignore")
        return params, make(groups, betas=(BETA1, BETA2), eps=EPS, weight_decay=0.0, **kind.options)

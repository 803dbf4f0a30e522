"""The optimizers whose updates are compared, each at work on all regimes at once."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.contenders import OURS, TORCH
from experiments.regimes import BETA1, EPS, LION_BETAS, MOMENTUM, REGIMES, Gradients, Regime

BETA2S: Final = (0.95, 0.999)
READING_LR: Final = 2.0**-10  # a power of two: dividing updates by it is exact
STEP_SIZE: Final = 1e-5  # of weights that walk; they start at 0.02

_CORRECTIONS: Final = {OURS: "weight_correction", "flashoptim": "error_bits"}


@dataclass(frozen=True)
class Contender:
    """An optimizer and its options."""

    label: str
    rule: str
    package: str
    make: tuple[str, str]  # module and class
    options: dict[str, Any] = field(default_factory=dict)
    bits: int = 0  # of master weights that walk; 0: fp32 weights put back to zero
    twin: str | None = None  # with other weights and the same moments

    @property
    def peer(self) -> bool:
        """Whether it may be missing."""
        return self.package not in (OURS, TORCH)


def _ours(rule: str, name: str) -> dict[str, Contender]:
    made = {}
    make = (OURS, name)
    for codec in ("root", "softsign"):
        twin = f"{rule}-{codec}"
        made[twin] = Contender(f"ours, {codec}", rule, OURS, make, {"codec": codec})
        for bits in (24, 32):
            options = {"codec": codec, "master_weight_bits": bits}
            label = f"ours, {codec}, {bits} bits"
            made[f"{twin}-{bits}"] = Contender(label, rule, OURS, make, options, bits, twin)
    return made


def _official(rule: str, name: str, *walking_bits: int) -> dict[str, Contender]:
    package, make = "flashoptim", ("flashoptim", name)
    none: dict[str, Any] = {"master_weight_bits": None}
    made = {f"{rule}-official": Contender("official 0.1", rule, package, make, none)}
    for bits in walking_bits:
        made[f"{rule}-official-{bits}"] = Contender(
            f"official 0.1, {bits} bits", rule, package, make, {"master_weight_bits": bits}, bits
        )
    return made


def _bitsandbytes(rule: str, name: str, **options: Any) -> dict[str, Contender]:
    package, make = "bitsandbytes", ("bitsandbytes.optim", name)
    return {f"{rule}-bitsandbytes": Contender("bitsandbytes 8-bit", rule, package, make, options)}


def _torch(rule: str, name: str) -> dict[str, Contender]:
    fused = {"fused": True}
    make = ("torch.optim", name)
    return {
        f"{rule}-torch": Contender("torch fp32", rule, TORCH, make, fused),
        f"{rule}-torch-32": Contender("torch fp32", rule, TORCH, make, fused, 32),
    }


CONTENDERS: Final[dict[str, Contender]] = {
    **_ours("adamw", "FlashAdamW"),
    **_torch("adamw", "AdamW"),
    **_official("adamw", "FlashAdamW", 24, 32),  # each kind is some seconds of compilation
    **_bitsandbytes("adamw", "AdamW8bit"),
    **_ours("lion", "FlashLion"),
    **_official("lion", "FlashLion"),
    **_bitsandbytes("lion", "Lion8bit"),
    **_ours("sgd", "FlashSGD"),
    **_torch("sgd", "SGD"),
    **_official("sgd", "FlashSGD"),
    **_bitsandbytes("sgd", "SGD8bit", momentum=MOMENTUM),
}


def walking_lr(rule: str, regime: Regime) -> float:
    """The learning rate with which weights walk by about as much in all regimes."""
    return STEP_SIZE / regime.sigma if rule == "sgd" else STEP_SIZE


class Stepper:
    """Stacked weights ``[copies * regimes, rows, row_length]``, each a parameter of its own."""

    def __init__(
        self,
        contender: Contender,
        gradients: Gradients,
        beta2s: tuple[float, ...],
        generator: torch.Generator,
    ) -> None:
        self.contender = contender
        self.walks = contender.bits > 0
        copies = max(1, len(beta2s))
        shape = gradients.fp32.shape
        narrow = self.walks and contender.package != TORCH
        dtype = torch.bfloat16 if narrow else torch.float32
        self.start = torch.zeros((copies * shape[0], *shape[1:]), device=gradients.fp32.device)
        if self.walks:  # from the same bf16 weights for all
            self.start.normal_(std=0.02, generator=generator)
            self.start.copy_(self.start.bfloat16())
        self._weights = self.start.to(dtype, copy=True)
        self.params = [nn.Parameter(weight) for weight in self._weights]
        stored = gradients.bf16 if narrow else gradients.fp32
        groups = []
        for index, param in enumerate(self.params):
            copy, regime = divmod(index, shape[0])
            param.grad = stored[regime]
            groups.append(
                {"params": [param], **self._hyperparameters(REGIMES[regime], beta2s[copy:])}
            )
        module, name = contender.make
        make = getattr(importlib.import_module(module), name)
        self.optimizer: Optimizer = make(groups, lr=READING_LR, **contender.options)

    def _hyperparameters(self, regime: Regime, beta2s: tuple[float, ...]) -> dict[str, Any]:
        rule = self.contender.rule
        rate = walking_lr(rule, regime) if self.walks else READING_LR
        common: dict[str, Any] = {"lr": rate, "weight_decay": 0.0}
        if rule == "adamw":
            return common | {"betas": (BETA1, beta2s[0]), "eps": EPS}
        return common | ({"betas": LION_BETAS} if rule == "lion" else {"momentum": MOMENTUM})

    @torch.no_grad()
    def take_update(self) -> Tensor:
        """The update of a step in units of the learning rate; the weights are zero again."""
        update = self._weights.double() / -READING_LR
        self._weights.zero_()
        return update

    def masters(self) -> Tensor:
        """fp64 copies of the master weights."""
        package = self.contender.package
        return torch.stack([masters_of(package, p, self.optimizer) for p in self.params])

    def moments_equal(self, other: Stepper) -> bool:
        """Whether all moments are those of another to the bit."""
        return all(
            torch.equal(mine, theirs)
            for one, two in zip(self.params, other.params, strict=True)
            for mine, theirs in zip(self._moments(one), other._moments(two), strict=True)
        )

    def _moments(self, param: nn.Parameter) -> Iterable[Tensor]:
        state = self.optimizer.state[param]
        names = [key for key in state if key.startswith(("exp_avg", "momentum"))]
        return [state[name] for name in sorted(names)]


def masters_of(package: str, param: nn.Parameter, optimizer: Optimizer) -> Tensor:
    """An fp64 copy of a parameter's master weight, as the package itself puts it together."""
    weight = param.detach()
    correction = optimizer.state[param].get(_CORRECTIONS.get(package, ""))
    if correction is None:
        return weight.double()
    joined: Tensor = importlib.import_module(package).reconstruct_fp32_param(weight, correction)
    return joined.double()

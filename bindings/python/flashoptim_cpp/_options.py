"""Options of a parameter group: their names, their checks, and how the native side wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from operator import index, itemgetter
from typing import Any, Final, Literal

import torch

from . import _C
from ._warn import warn_user

Group = Mapping[str, Any]
Codec = Literal["root", "softsign", "none"]
Nonfinite = Literal["propagate", "skip", "error"]
MasterWeightBits = Literal[16, 24, 32] | None

CODECS: Final = {
    "none": _C.Codec.NONE,
    "root": _C.Codec.ROOT,
    "softsign": _C.Codec.SOFTSIGN,
}
NONFINITE: Final = {
    "propagate": _C.Nonfinite.PROPAGATE,
    "skip": _C.Nonfinite.SKIP,
    "error": _C.Nonfinite.ERROR,
}
CORRECTION_BITS: Final = {None: 0, 16: 0, 24: 8, 32: 16}

# How an optimizer works, as opposed to what it computes. `load_state_dict` keeps these.
WORKING_OPTIONS: Final = (
    "quantize",
    "codec",
    "master_weight_bits",
    "compress_state_dict",
    "check_numerics",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
)

_NUMBERS: Final = ("lr", "initial_lr", "eps", "momentum", "dampening", "weight_decay")
_SWITCHES: Final = ("nesterov", "maximize", "stochastic_rounding")
_OTHER_SWITCHES: Final = (
    "quantize",
    "amsgrad",
    "decouple_lr",
    "compress_state_dict",
    "check_numerics",
    "capturable",
)
_READ_BY_ALL: Final = (
    "maximize",
    "stochastic_rounding",
    "nonfinite",
    "seed",
    "quantize",
    "codec",
    "master_weight_bits",
)
_UNSUPPORTED: Final = {
    "differentiable": "the step is native code without a derivative",
}
HOST: Final = torch.device("cpu")


@dataclass(frozen=True)
class RuleKind:
    """What distinguishes one optimizer class from another."""

    rule: _C.Rule
    decoupled: bool  # weight decay
    hyperparameters: tuple[str, ...]
    all_moments: tuple[str, ...]
    moments: Callable[[Group], tuple[str, ...]]  # those that a group's options ask for

    @cached_property
    def _getter(self) -> Callable[[Group], tuple[Any, ...]]:
        return itemgetter(*self.hyperparameters, *_READ_BY_ALL)

    def read(self, group: Group) -> tuple[Any, ...]:
        """All values that a step depends on, to compare with those of the last step."""
        return (*self._getter(group), group.get("initial_lr"))

    def structure(self, group: Group) -> tuple[Any, ...]:
        """The values that decide how state is kept."""
        return (
            group["quantize"],
            group["codec"],
            group["master_weight_bits"],
            self.moments(group),
            group["capturable"],
        )


def hyperparameters(group: Group, kind: RuleKind) -> _C.Hyperparameters:
    """A group's hyper-parameters for the native side; one-element tensors count as numbers.

    Raises:
        TypeError: a value is not a number.
        ValueError: a value is out of range; the message names it.
        NotImplementedError: ``differentiable`` is asked for.
    """
    _check_choices(group)
    values = _C.Hyperparameters()
    for name in _NUMBERS:
        if name in group and not (name == "lr" and device_lr(group) is not None):
            setattr(values, name, _number(name, group[name]))
    if "initial_lr" not in group:
        values.initial_lr = values.lr
    if "betas" in group:
        values.beta1, values.beta2 = _betas(group["betas"])
    for name in _SWITCHES:
        setattr(values, name, bool(group.get(name, False)))
    values.weight_decay_kind = _weight_decay_kind(group, kind.decoupled)
    values.nonfinite = NONFINITE[group["nonfinite"]]
    values.seed = _seed(group["seed"])
    _C.check_hyperparameters(kind.rule, values)
    return values


def warn_of_typos(group: Group, known: Mapping[str, Any]) -> None:
    """Warns of a group's entries that look like options but are none.

    Others are not wrong: groups carry what schedulers and frameworks put into them.
    """
    if not isinstance(group, Mapping):
        return  # torch says so
    names = [*known, "params"]
    for name in group:
        if name in names:
            continue
        if similar := get_close_matches(str(name), names, n=1, cutoff=0.85):
            warn_user(
                f"a parameter group has '{name}', which this optimizer does not read; did you mean "
                f"'{similar[0]}'?"
            )


def step_device(group: Group, weight_device: torch.device) -> torch.device:
    """Where a parameter's step count is kept: with ``capturable`` on the parameter's GPU."""
    return weight_device if group["capturable"] and weight_device.type == "cuda" else HOST


def device_lr(group: Group) -> torch.Tensor | None:
    """The learning rate, if the GPU reads it at each step: a CUDA tensor with ``capturable``.

    Raises:
        TypeError: it is not one float32.
    """
    lr = group["lr"]
    if not (group["capturable"] and isinstance(lr, torch.Tensor) and lr.device.type == "cuda"):
        return None
    if lr.dtype != torch.float32 or lr.numel() != 1:
        raise TypeError(
            f"lr on a GPU must be one float32, not {lr.dtype} {list(lr.shape)}; for instance "
            "torch.tensor(1e-3, device='cuda')"
        )
    return lr


def asked_codec(group: Group) -> _C.Codec:
    """The codec that a group asks for; `none` without quantization."""
    return CODECS[group["codec"]] if group["quantize"] else _C.Codec.NONE


def correction_bits(group: Group, weight_dtype: torch.dtype) -> int:
    """Bits of the weight correction: none beside fp32 weights (docs/format.md, section 4)."""
    if weight_dtype not in (torch.bfloat16, torch.float16):
        return 0
    return CORRECTION_BITS[group["master_weight_bits"]]


def _check_choices(group: Group) -> None:
    for name, known in (
        ("codec", CODECS),
        ("nonfinite", NONFINITE),
        ("master_weight_bits", CORRECTION_BITS),
    ):
        if group[name] not in known:
            choices = ", ".join(repr(choice) for choice in known)
            raise ValueError(f"{name} must be one of {choices}, not {group[name]!r}")
    for name in (*_SWITCHES, *_OTHER_SWITCHES):
        # Not any that counts as true: "no" does.
        if group.get(name) not in (True, False, None):
            raise ValueError(f"{name} must be True or False, not {group[name]!r}")
    for name, reason in _UNSUPPORTED.items():
        if group.get(name):
            raise NotImplementedError(f"{name}=True is not supported: {reason}; pass {name}=False")


def _weight_decay_kind(group: Group, decoupled: bool) -> _C.WeightDecay:
    if not decoupled:
        return _C.WeightDecay.COUPLED
    return _C.WeightDecay.FULLY_DECOUPLED if group["decouple_lr"] else _C.WeightDecay.DECOUPLED


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{name} must be a number or a one-element tensor, not {value!r}")


def _betas(value: Any) -> tuple[float, float]:
    try:
        first, second = value
    except (TypeError, ValueError):
        raise TypeError(f"betas must be two numbers, not {value!r}") from None
    return _number("betas[0]", first), _number("betas[1]", second)


def _seed(value: Any) -> int:
    try:
        seed = index(value)
    except TypeError:
        seed = -1
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be an integer in [0, 2**64), not {value!r}")
    return seed

"""The five optimizers.

Positional arguments have the order of the package `flashoptim`, which is that of torch up to
`weight_decay`, and `nesterov` for SGD.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import _C
from ._optimizer import FlashOptimizer, Params
from ._options import Codec, Group, MasterWeightBits, Nonfinite, RuleKind

_SGD_MOMENTS = ("momentum_buffer",)
_ADAM_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_LION_MOMENTS = ("exp_avg",)
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
_ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad")
_LION = ("lr", "betas", "weight_decay")


def _arguments(local: dict[str, Any]) -> dict[str, Any]:
    """The `defaults` of a constructor: every argument that it got, from its `locals()`."""
    return {k: v for k, v in local.items() if k not in ("self", "params", "__class__")}


def _sgd_moments(group: Group) -> tuple[str, ...]:
    return _SGD_MOMENTS if group["momentum"] else ()


def _adam_moments(group: Group) -> tuple[str, ...]:
    return _ADAM_MOMENTS if group["amsgrad"] else _ADAM_MOMENTS[:2]


def _lion_moments(_: Group) -> tuple[str, ...]:
    return _LION_MOMENTS


class FlashSGD(FlashOptimizer):
    """Stochastic gradient descent with momentum; weight decay is added to the gradient.

    Takes the place of ``torch.optim.SGD``. A step is docs/format.md, section 8.2: as torch's, the
    first momentum step of a parameter takes the gradient undamped.

    Args:
        params: parameters, pairs of name and parameter, or dicts that define groups.
        lr: learning rate.
        momentum: factor of the momentum buffer; at 0 no state is kept but the step count.
        dampening: the gradient enters the momentum buffer times ``1 - dampening``.
        weight_decay: L2 penalty.
        nesterov: Nesterov momentum; needs ``momentum`` and no ``dampening``.
        maximize: ascend instead of descend.

    The other arguments are those of :class:`FlashOptimizer`. Every one can differ per group.
    """

    _kind = RuleKind(_C.Rule.SGD, False, _SGD, _SGD_MOMENTS, _sgd_moments)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float | Tensor = 0.0,
        nesterov: bool = False,
        quantize: bool = True,
        compress_state_dict: bool = True,
        master_weight_bits: MasterWeightBits = 24,
        check_numerics: bool = False,
        fused: bool | None = None,
        *,
        maximize: bool = False,
        codec: Codec = "root",
        stochastic_rounding: bool = True,
        nonfinite: Nonfinite = "propagate",
        seed: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, _arguments(locals()))


class FlashSGDW(FlashOptimizer):
    """Stochastic gradient descent with momentum and decoupled weight decay.

    A step is docs/format.md, section 8.2.

    Args:
        params: parameters, pairs of name and parameter, or dicts that define groups.
        lr: learning rate.
        momentum: factor of the momentum buffer; at 0 no state is kept but the step count.
        dampening: the gradient enters the momentum buffer times ``1 - dampening``.
        weight_decay: the weight is multiplied by ``1 - lr * weight_decay``.
        nesterov: Nesterov momentum; needs ``momentum`` and no ``dampening``.
        decouple_lr: multiply the weight by ``1 - lr / initial_lr * weight_decay`` instead, so that
            the decay follows the schedule but not the size of the learning rate. ``initial_lr``
            is the group's entry of that name: its learning rate when it was added, unless a
            scheduler has set it.
        maximize: ascend instead of descend.

    The other arguments are those of :class:`FlashOptimizer`. Every one can differ per group.
    """

    _kind = RuleKind(_C.Rule.SGD, True, (*_SGD, "decouple_lr"), _SGD_MOMENTS, _sgd_moments)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float | Tensor = 0.0,
        nesterov: bool = False,
        decouple_lr: bool = False,
        quantize: bool = True,
        compress_state_dict: bool = True,
        master_weight_bits: MasterWeightBits = 24,
        check_numerics: bool = False,
        fused: bool | None = None,
        *,
        maximize: bool = False,
        codec: Codec = "root",
        stochastic_rounding: bool = True,
        nonfinite: Nonfinite = "propagate",
        seed: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, _arguments(locals()))


class FlashAdam(FlashOptimizer):
    """Adam; weight decay is added to the gradient.

    Takes the place of ``torch.optim.Adam``. A step is docs/format.md, section 8.1.

    Args:
        params: parameters, pairs of name and parameter, or dicts that define groups.
        lr: learning rate.
        betas: decay of the first and second moment, each in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: L2 penalty.
        amsgrad: divide by the root of the largest second moment so far.
        maximize: ascend instead of descend.

    The other arguments are those of :class:`FlashOptimizer`. Every one can differ per group.
    """

    _kind = RuleKind(_C.Rule.ADAM, False, _ADAM, _ADAM_MOMENTS, _adam_moments)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        quantize: bool = True,
        compress_state_dict: bool = True,
        master_weight_bits: MasterWeightBits = 24,
        check_numerics: bool = False,
        fused: bool | None = None,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        codec: Codec = "root",
        stochastic_rounding: bool = True,
        nonfinite: Nonfinite = "propagate",
        seed: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, _arguments(locals()))


class FlashAdamW(FlashOptimizer):
    """Adam with decoupled weight decay.

    Takes the place of ``torch.optim.AdamW``. A step is docs/format.md, section 8.1.

    Args:
        params: parameters, pairs of name and parameter, or dicts that define groups.
        lr: learning rate.
        betas: decay of the first and second moment, each in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: the weight is multiplied by ``1 - lr * weight_decay``.
        amsgrad: divide by the root of the largest second moment so far.
        decouple_lr: multiply the weight by ``1 - lr / initial_lr * weight_decay`` instead, so that
            the decay follows the schedule but not the size of the learning rate. ``initial_lr``
            is the group's entry of that name: its learning rate when it was added, unless a
            scheduler has set it.
        maximize: ascend instead of descend.

    The other arguments are those of :class:`FlashOptimizer`. Every one can differ per group.
    """

    _kind = RuleKind(_C.Rule.ADAM, True, (*_ADAM, "decouple_lr"), _ADAM_MOMENTS, _adam_moments)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        decouple_lr: bool = False,
        quantize: bool = True,
        compress_state_dict: bool = True,
        master_weight_bits: MasterWeightBits = 24,
        check_numerics: bool = False,
        fused: bool | None = None,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        codec: Codec = "root",
        stochastic_rounding: bool = True,
        nonfinite: Nonfinite = "propagate",
        seed: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, _arguments(locals()))


class FlashLion(FlashOptimizer):
    """Lion: the sign of an interpolated momentum (https://arxiv.org/abs/2302.06675).

    Weight decay is decoupled. A step is docs/format.md, section 8.3.

    Args:
        params: parameters, pairs of name and parameter, or dicts that define groups.
        lr: learning rate.
        betas: weight of the momentum in the update, and its decay, each in [0, 1).
        weight_decay: the weight is multiplied by ``1 - lr * weight_decay``.
        decouple_lr: multiply the weight by ``1 - lr / initial_lr * weight_decay`` instead, so that
            the decay follows the schedule but not the size of the learning rate. ``initial_lr``
            is the group's entry of that name: its learning rate when it was added, unless a
            scheduler has set it.
        maximize: ascend instead of descend.

    The other arguments are those of :class:`FlashOptimizer`. Every one can differ per group.
    """

    _kind = RuleKind(_C.Rule.LION, True, (*_LION, "decouple_lr"), _LION_MOMENTS, _lion_moments)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        decouple_lr: bool = False,
        quantize: bool = True,
        compress_state_dict: bool = True,
        master_weight_bits: MasterWeightBits = 24,
        check_numerics: bool = False,
        fused: bool | None = None,
        *,
        maximize: bool = False,
        codec: Codec = "root",
        stochastic_rounding: bool = True,
        nonfinite: Nonfinite = "propagate",
        seed: int = 0,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__(params, _arguments(locals()))

"""Checks that steps are large enough for the precision of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from . import _C
from ._options import Group
from ._plan import Entry
from ._state import naming

# Bits of the significand after the first one, and the most that a correction adds to them.
_SIGNIFICAND_BITS: Final = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_FULL_SIGNIFICAND: Final = 23
# A step of Lion is the learning rate. Adam's vary; the checks count on a tenth of it. SGD's depend
# on the gradient, which the checks take for 1.
_STEP_PER_LR: Final = {_C.Rule.SGD: 1.0, _C.Rule.ADAM: 0.1, _C.Rule.LION: 1.0}


class NumericsError(RuntimeError):
    """The learning rate is too small to change the largest weights at their precision."""


def check_steps(
    entries: Sequence[Entry], groups: Sequence[Group], rule: _C.Rule, largest: dict[Tensor, float]
) -> None:
    """Checks all parameters about to be stepped whose group asks for it.

    Args:
        entries: the parameters.
        groups: the parameter groups.
        rule: of the optimizer.
        largest: magnitudes measured earlier, by parameter; those that are missing are added.

    Raises:
        NumericsError: steps of a parameter would be lost; names it.
    """
    for entry in entries:
        if entry.param.grad is not None:
            check_entry(entry, groups[entry.group], rule, largest)


def check_entry(entry: Entry, group: Group, rule: _C.Rule, largest: dict[Tensor, float]) -> None:
    """Checks one parameter about to be stepped, if its group asks for it.

    Args:
        entry: the parameter.
        group: its parameter group.
        rule: of the optimizer.
        largest: magnitudes measured earlier, by parameter; a missing one is added.

    Raises:
        NumericsError: steps of the parameter would be lost; names it.
    """
    param, dtype, bits = entry.param, entry.weight.dtype, entry.layout.correction_bits
    if not group["check_numerics"]:
        return
    if group["stochastic_rounding"] and _significand_bits(dtype, bits) < _FULL_SIGNIFICAND:
        return  # what is rounded at random arrives on average
    if param not in largest:
        weight = entry.weight
        largest[param] = float(weight.abs().max()) if weight.numel() else 0.0
    with naming(entry.name):
        check_step_size(rule, float(group["lr"]), dtype, bits, largest[param])


def _significand_bits(dtype: torch.dtype, correction_bits: int) -> int:
    """Bits of a master weight after its first one."""
    return min(_SIGNIFICAND_BITS[dtype] + correction_bits, _FULL_SIGNIFICAND)


def check_step_size(
    rule: _C.Rule, lr: float, dtype: torch.dtype, correction_bits: int, largest: float
) -> None:
    """Checks that a typical step changes the largest weight of a tensor.

    Nearest rounding of the master weight loses a step below half a unit in its last place.

    Args:
        rule: decides how large steps are for a learning rate.
        lr: the learning rate; at 0 no step is expected.
        dtype: of the weight.
        correction_bits: of its master weight.
        largest: the largest magnitude of the weight.

    Raises:
        NumericsError: the step would be lost.
    """
    if lr == 0.0 or largest == 0.0 or not math.isfinite(largest):
        return
    significand = _significand_bits(dtype, correction_bits)
    half_unit = math.ldexp(1.0, math.frexp(largest)[1] - 1 - significand - 1)
    step = lr * _STEP_PER_LR[rule]
    if step < half_unit:
        more = " or master_weight_bits, or use stochastic_rounding=True"
        raise NumericsError(
            f"with the learning rate {lr:.3g}, steps of about {step:.3g} are lost beside its "
            f"largest weight {largest:.3g}, whose smallest change is {half_unit:.3g}; raise the "
            f"learning rate{more if significand < _FULL_SIGNIFICAND else ''}"
        )

"""States of bitsandbytes' optimizers: what their state dicts hold.

A moment of 4096 elements or more is 8-bit codes into a table (`qmap`) with one fp32 factor for a
block of the flattened tensor; smaller ones are fp32.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from . import _C
from ._options import Group, RuleKind
from ._state import State

# Where state_dict() of newer versions hides the tensors from FSDP.
_WRAPPED: Final = "__bnb_optimizer_quant_state__"
# Elements that share a factor: since version 0.44, and before.
_BLOCK_SIZES: Final = (256, 2048)
# Of other optimizers of that package, or without influence on the next step.
_UNUSED_OPTIONS: Final = ("alpha", "t_alpha", "t_beta3")
_UNUSED_STATE: Final = ("gnorm_vec", "unorm_vec")

_BLOCKWISE: Final = "make it with bitsandbytes' 8-bit optimizers of version 0.44 or newer"


def recognises(groups: Sequence[Group], states: Mapping[Hashable, State]) -> bool:
    """Whether a state dict is bitsandbytes'."""
    return any("t_beta3" in group for group in groups) or any(
        _WRAPPED in state or "state1" in state for state in states.values()
    )


def read_group(saved: Group, kind: RuleKind) -> Group:
    """A parameter group under the names of torch's options."""
    group = {key: value for key, value in saved.items() if key not in _UNUSED_OPTIONS}
    if kind.rule != _C.Rule.ADAM:
        group.pop("eps", None)
    if kind.rule == _C.Rule.SGD and "betas" in group:
        # The second one is dampening, which bitsandbytes takes and does not use.
        group.update(momentum=group.pop("betas")[0], dampening=0.0)
    return group


def read_state(saved: State, weight: Tensor, saved_group: Group, kind: RuleKind) -> State:
    """A parameter's state with fp32 moments; bitsandbytes has no master weights.

    Args:
        saved: the parameter's entry in the state dict.
        weight: the parameter.
        saved_group: its group in the state dict.
        kind: the optimizer's rule.

    Raises:
        ValueError: it is not what a bitsandbytes optimizer of this rule writes.
    """
    flat = {**saved, **saved.get(_WRAPPED, {})}
    flat.pop(_WRAPPED, None)
    # `all_moments` names amsgrad's maximum too, which bitsandbytes does not have.
    names = kind.all_moments[:2]
    state: State = {}
    for number, name in enumerate(names, start=1):
        state[name] = _moment(flat, number)
    read = {f"{part}{number}" for part in ("state", "qmap", "absmax") for number in (1, 2)}
    if len(names) == 1 and "state2" in flat:
        raise ValueError("its saved state has a second moment ('state2'); load it with FlashAdamW")
    state.update({k: v for k, v in flat.items() if k not in read and k not in _UNUSED_STATE})
    return state


def decode_moment(codes: Tensor, table: Tensor, factors: Tensor) -> Tensor:
    """fp32 values of bitsandbytes' codes.

    Args:
        codes: uint8.
        table: fp32 ``[256]``.
        factors: fp32, one for each block of the flattened codes.

    Raises:
        ValueError: the number of factors belongs to no known block size.
    """
    count = codes.numel()
    sizes = [size for size in _BLOCK_SIZES if -(-count // size) == factors.numel()]
    if not sizes:
        raise ValueError(
            f"{count} codes have {factors.numel()} factors, which fits blocks of none of "
            f"{list(_BLOCK_SIZES)} elements; {_BLOCKWISE}"
        )
    factor = factors.reshape(-1).repeat_interleave(sizes[0])[:count]
    return (table[codes.reshape(-1).long()] * factor).reshape(codes.shape)


def _moment(flat: Mapping[str, Any], number: int) -> Tensor:
    name = f"state{number}"
    values = flat.get(name)
    if not isinstance(values, Tensor):
        raise ValueError(f"its saved state has no tensor '{name}'; load one of the same optimizer")
    if values.dtype == torch.float32:
        return values
    table, factors = flat.get(f"qmap{number}"), flat.get(f"absmax{number}")
    if (
        values.dtype != torch.uint8
        or not isinstance(table, Tensor)
        or not isinstance(factors, Tensor)
        or table.shape != (256,)
        or (table.dtype, factors.dtype) != (torch.float32, torch.float32)
    ):
        raise ValueError(
            f"'{name}' in its saved state is {values.dtype} without 'qmap{number}' and "
            f"'absmax{number}' in float32; only blockwise states can be read: {_BLOCKWISE}"
        )
    return decode_moment(values, table, factors)

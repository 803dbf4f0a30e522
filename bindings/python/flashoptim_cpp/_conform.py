"""State that is kept in another way than an optimizer's options ask for, brought into line."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from . import _C
from ._moments import decode_moment, encode_moment
from ._options import HOST
from ._state import (
    CODE_DTYPES,
    CORRECTION,
    HOST_DTYPES,
    MOMENTS,
    STEP,
    Layout,
    State,
    allocate,
    geometry_of,
    same_memory_order,
    scale_of,
    stored_correction,
    stored_moment,
)

# By how many bits the correction of a 32-bit master weight is finer than that of a 24-bit one
# (docs/format.md, section 4).
_FINER_BITS: Final = {torch.bfloat16: 8, torch.float16: 5}


def conform(state: State, weight: Tensor, layout: Layout, codec: _C.Codec) -> State:
    """The state kept as a layout says.

    Moments that it lacks start fresh; what is kept in another form, memory order or place is
    converted; moments that the layout does not use stay as they are. What does not belong to the
    weight at all is left for `check_state` to find.

    Args:
        state: a parameter's state; not changed.
        weight: `weight_of` the parameter.
        layout: how the state is wanted.
        codec: how moments with scales are stored in `state`.

    Returns:
        `state` itself where nothing is to be done.

    Raises:
        ValueError: a tensor to be converted is not what it should be.
    """
    result = dict(state)
    for name in HOST_DTYPES:
        if isinstance(state.get(name), Tensor):
            result[name] = state[name].to(layout.step_device if name == STEP else HOST)
    for name in layout.moments:
        if name not in state:
            fresh = stored_moment(name, layout)
            result.update({key: allocate(stored, weight) for key, stored in fresh.items()})
        elif _is_of(weight, state[name]):
            result.pop(scale_of(name), None)
            result.update(_moment(name, state, weight, layout.codec, codec))
    if layout.correction_bits == 0:
        result.pop(CORRECTION, None)
    elif CORRECTION not in state:
        result[CORRECTION] = allocate(stored_correction(layout.correction_bits), weight)
    elif _is_of(weight, state[CORRECTION]):
        result[CORRECTION] = _correction(state[CORRECTION], weight, layout.correction_bits)
    unchanged = result.keys() == state.keys() and all(result[k] is state[k] for k in result)
    return state if unchanged else result


def check_scale(name: str, codes: Tensor, scale: Any) -> None:
    """Checks that scales are of a tensor of codes; ValueError if they are not."""
    rows, _, groups = geometry_of(codes)
    if not isinstance(scale, Tensor):
        found = type(scale).__name__
    elif scale.dtype != torch.float32 or scale.shape != (rows, groups):
        found = f"{scale.dtype} {list(scale.shape)}"
    else:
        return
    raise ValueError(
        f"'{scale_of(name)}' is {found}, and torch.float32 {[rows, groups]} belongs to its codes; "
        "use the state as the optimizer gave it, before anything cast or cut it"
    )


def decompress(state: State, codec: _C.Codec) -> State:
    """A parameter's state with fp32 moments; they encode to the same codes again."""
    plain = dict(state)
    for name in MOMENTS:
        if scale_of(name) in state:
            codes, scale = plain[name], plain.pop(scale_of(name))
            plain[name] = decode_moment(MOMENTS[name].kind, codec, codes, scale).to(codes.device)
    return plain


def _is_of(weight: Tensor, value: Any) -> bool:
    return isinstance(value, Tensor) and value.shape == weight.shape


def _in_order_of(weight: Tensor, tensor: Tensor) -> Tensor:
    """A tensor on the weight's device and in its memory order; itself if it is so already."""
    if same_memory_order(tensor, weight):
        return tensor.to(weight.device)
    return torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)


def _moment(name: str, state: State, weight: Tensor, wanted: _C.Codec, codec: _C.Codec) -> State:
    """A moment as the codec `wanted` stores it, with its scales, in the weight's memory order."""
    kind = MOMENTS[name].kind
    codes, scale = state[name], state.get(scale_of(name))
    stored_as = _C.Codec.NONE if scale is None else codec
    if stored_as != wanted or not same_memory_order(codes, weight):
        # In another memory order other elements are neighbours and form other groups.
        dtype = torch.float32 if stored_as == _C.Codec.NONE else CODE_DTYPES[kind]
        if codes.dtype != dtype:
            raise ValueError(f"'{name}' is {codes.dtype}, and its scales say {dtype}")
        if scale is not None:
            check_scale(name, codes, scale)
        values = _in_order_of(weight, decode_moment(kind, stored_as, codes, scale))
        codes, scale = encode_moment(kind, wanted, values)
    moved = {name: codes.to(weight.device)}
    if scale is not None:
        moved[scale_of(name)] = scale.to(weight.device)
    return moved


def _correction(correction: Tensor, weight: Tensor, bits: int) -> Tensor:
    """A weight correction with some number of bits, in the weight's memory order.

    It depends on the correction alone, never on the weight: weights may be loaded before or after.
    """
    correction = _in_order_of(weight, correction)
    finer = _FINER_BITS[weight.dtype]
    if bits == 16 and correction.dtype == torch.int8:
        return correction.to(torch.int16) << finer
    if bits == 8 and correction.dtype == torch.int16:
        nearest = (correction.to(torch.int32) + (1 << (finer - 1))) >> finer
        return nearest.clamp_(-128, 127).to(torch.int8)
    return correction

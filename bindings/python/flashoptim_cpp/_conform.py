"""State that is kept in another way than an optimizer's options ask for, brought into line."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from . import _C
from ._geometry import Geometry, geometry_of
from ._moments import decode_moment, encode_moment
from ._options import HOST
from ._sharding import is_dtensor, local_of
from ._state import (
    CODE_DTYPES,
    CORRECTION,
    HOST_DTYPES,
    MOMENTS,
    SCALES,
    STEP,
    Layout,
    State,
    allocate,
    same_memory_order,
    scale_of,
    stored_correction,
    stored_moment,
)

# By how many bits the correction of a 32-bit master weight is finer than that of a 24-bit one
# (docs/format.md, section 4).
_FINER_BITS: Final = {torch.bfloat16: 8, torch.float16: 5}


def conform(state: State, weight: Tensor, layout: Layout, codec: _C.Codec) -> State:
    """The state kept as a layout says, and cut as the layout's parameter if that is a DTensor.

    What does not belong to the weight at all is left for `check_state` to find.

    Args:
        state: a parameter's state; not changed. Of DTensors this process's elements are converted.
        weight: `weight_of` the parameter.
        layout: how the state is wanted.
        codec: how moments with scales are stored in `state`.

    Returns:
        `state` itself where nothing is to be done.

    Raises:
        ValueError: a tensor to be converted is not what it should be.
    """
    placed, state = state, {name: _local(value) for name, value in state.items()}
    result = convert(state, weight, layout, codec)
    for name, value in result.items():
        moved = moved_to_its_place(name, value, weight, layout)
        if moved is state.get(name) and _is_placed(placed[name], layout):
            result[name] = placed[name]
        elif isinstance(moved, Tensor) and belongs(name, moved, weight, layout):
            result[name] = layout.place(name, moved)
        else:
            result[name] = placed[name]
    unchanged = result.keys() == placed.keys() and all(result[k] is placed[k] for k in result)
    return placed if unchanged else result


def convert(state: State, weight: Tensor, layout: Layout, codec: _C.Codec) -> State:
    """A state of plain tensors in the form and memory order that a layout says, on any device.

    Moments that it lacks start fresh, moments that the layout does not use stay as they are. See
    `conform`.
    """
    result = dict(state)
    for name in layout.moments:
        if name not in state:
            result.update(_fresh_moment(name, {}, weight, layout))
        elif _is_of(weight, state[name]):
            if weight.numel() == 0:
                moment = _fresh_moment(name, state, weight, layout)
            else:
                moment = _moment(name, state, weight, layout.codec, codec)
            result.update(moment)
            if scale_of(name) not in moment:
                result.pop(scale_of(name), None)
    if layout.correction_bits == 0:
        result.pop(CORRECTION, None)
    elif CORRECTION not in state:
        result[CORRECTION] = allocate(stored_correction(layout.correction_bits), weight)
    elif _is_of(weight, state[CORRECTION]):
        result[CORRECTION] = _correction(state[CORRECTION], weight, layout.correction_bits)
    return result


def moved_to_its_place(name: str, value: Any, weight: Tensor, layout: Layout) -> Any:
    """An entry of a state on the device where it is kept; itself if it is there already."""
    if not isinstance(value, Tensor) or not belongs(name, value, weight, layout):
        return value
    return value.to(device_of(name, weight, layout))


def device_of(name: str, weight: Tensor, layout: Layout) -> torch.device:
    """Where an entry of a state is kept."""
    if name not in HOST_DTYPES:
        return weight.device
    return layout.step_device if name == STEP else HOST


def check_scale(name: str, geometry: Geometry, scale: Any) -> None:
    """Checks that scales are of codes with some geometry; ValueError if they are not."""
    rows, _, groups = geometry
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


def _local(value: Any) -> Any:
    return local_of(value) if isinstance(value, Tensor) else value


def belongs(name: str, value: Tensor, weight: Tensor, layout: Layout) -> bool:
    """Whether a tensor of a state has the shape that one of this name has."""
    if name in HOST_DTYPES:
        return True
    rows, _, groups = layout.geometry
    return value.shape == (weight.shape if name not in SCALES else (rows, groups))


def _is_placed(value: Any, layout: Layout) -> bool:
    """Whether a value is a DTensor if the parameter is one; `check_state` sees how it is cut."""
    return layout.sharding is None or is_dtensor(value) or not isinstance(value, Tensor)


def _is_of(weight: Tensor, value: Any) -> bool:
    return isinstance(value, Tensor) and value.shape == weight.shape


def _in_order_of(weight: Tensor, tensor: Tensor) -> Tensor:
    """A tensor in the weight's memory order; itself if it is so already."""
    if same_memory_order(tensor, weight):
        return tensor
    return torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)


def _fresh_moment(name: str, state: State, weight: Tensor, layout: Layout) -> State:
    """A fresh moment, but for tensors of the right form that a state already has.

    Without elements, what a moment is converted to has nothing of what it was. Its scales then have
    the shape that the layout says, which the codes do not know.
    """
    moment = {}
    for key, stored in stored_moment(name, layout).items():
        shape = weight.shape if stored.scale_shape is None else stored.scale_shape
        kept = state.get(key)
        fits = (
            isinstance(kept, Tensor)
            and (kept.dtype, kept.shape) == (stored.dtype, shape)
            and kept.device == weight.device
        )
        moment[key] = kept if fits else allocate(stored, weight)
    return moment


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
            check_scale(name, geometry_of(codes), scale)
        values = _in_order_of(weight, decode_moment(kind, stored_as, codes, scale))
        codes, scale = encode_moment(kind, wanted, values)
    return {name: codes} if scale is None else {name: codes, scale_of(name): scale}


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

"""State that is kept in another way than an optimizer's options ask for, brought into line."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from . import _C
from ._moments import decode_moment, encode_moment
from ._state import (
    CODE_DTYPES,
    CORRECTION,
    CORRECTION_DTYPES,
    HOST_DTYPES,
    MOMENTS,
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
    converted; moments that the layout does not use stay as they are.

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
    changes: State = {
        name: state[name].cpu()
        for name in HOST_DTYPES
        if isinstance(state.get(name), Tensor) and state[name].device.type != "cpu"
    }
    dropped: set[str] = set()
    for name in layout.moments:
        if name in state:
            wanted = _moment(name, state, weight, layout, codec)
        else:
            fresh = stored_moment(name, layout)
            wanted = {key: allocate(stored, weight) for key, stored in fresh.items()}
        changes.update(wanted)
        dropped.update({scale_of(name)} & (state.keys() - wanted.keys()))
    if layout.correction_bits:
        changes[CORRECTION] = _correction(state, weight, layout.correction_bits)
    else:
        dropped.update({CORRECTION} & state.keys())
    changes = {key: value for key, value in changes.items() if value is not state.get(key)}
    if not changes and not dropped:
        return state
    return {key: value for key, value in state.items() if key not in dropped} | changes


def _moment(name: str, state: State, weight: Tensor, layout: Layout, codec: _C.Codec) -> State:
    """One moment as the layout says, with its scales."""
    kind = MOMENTS[name].kind
    codes, scale = state[name], state.get(scale_of(name))
    stored_as = _C.Codec.NONE if scale is None else codec
    check_moment(name, codes, scale, stored_as)
    if codes.shape != weight.shape: 
        ...

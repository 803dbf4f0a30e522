"""Loaded state taken over by an optimizer: into the memory of the state that it has, if it can."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from torch import Tensor

from ._conform import belongs, device_of
from ._sharding import local_of
from ._state import HOST_DTYPES, SCALES, Layout, State, same_memory_order

# References to an object that one container holds, as `sys.getrefcount` counts them.
_ONE_OWNER: Final = 2


class Loaded(NamedTuple):
    """A parameter's state as it was read: local tensors, which may be those of the state dict."""

    state: State
    weight: Tensor
    layout: Layout
    foreign: frozenset[int]  # addresses of memory that is the state dict's


def memory_of(values: Mapping[str, Any]) -> frozenset[int]:
    """Addresses of the memory in which tensors lie."""
    tensors = (local_of(value) for value in values.values() if isinstance(value, Tensor))
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in tensors)


def adopt(loaded: Mapping[Tensor, Loaded], own: Mapping[Tensor, State]) -> dict[Tensor, State]:
    """The states of an optimizer after loading.

    All memory is allocated before the first tensor is written, so that a state is loaded as a
    whole or not at all. Tensors that the optimizer has are written where nobody else holds them;
    where somebody does, such as a state dict that is kept to go back to, it keeps what it holds.

    Args:
        loaded: what was read, by parameter.
        own: the optimizer's states before; some of their tensors are in the result.
    """
    reusable = {param for param in loaded if param in own and _held_by_nobody_else(own, param)}
    writes: list[tuple[Tensor, Tensor]] = []
    states: dict[Tensor, State] = {}
    for param, entry in loaded.items():
        current, states[param] = own.get(param, {}), {}
        for name, source in entry.state.items():
            target = current.get(name)
            if isinstance(target, Tensor) and _is_same(local_of(target), source):
                states[param][name] = target
            elif (
                isinstance(target, Tensor)
                and param in reusable
                and _fits(name, target, source, entry)
            ):
                writes.append((local_of(target), source))
                states[param][name] = target
            else:
                states[param][name] = _new(name, source, entry)
    for target, source in writes:
        target.copy_(source)
    return states


def _held_by_nobody_else(states: Mapping[Tensor, State], param: Tensor) -> bool:
    if sys.getrefcount(states[param]) > _ONE_OWNER:
        return False
    for name in states[param]:
        if sys.getrefcount(states[param][name]) > _ONE_OWNER:
            return False
        local = getattr(states[param][name], "_local_tensor", None)  # of a DTensor
        if local is not None and sys.getrefcount(local) > _ONE_OWNER + 1:
            return False
    return True


def _is_same(target: Tensor, source: Tensor) -> bool:
    """Whether two tensors are the same memory, seen in the same way."""
    return (
        target.data_ptr() == source.data_ptr()
        and (target.dtype, target.device) == (source.dtype, source.device)
        and (target.shape, target.stride()) == (source.shape, source.stride())
    )


def _fits(name: str, target: Tensor, source: Tensor, entry: Loaded) -> bool:
    """Whether a tensor of the optimizer is what the loaded one has to become."""
    if name in HOST_DTYPES:
        return False
    weight, layout = entry.weight, entry.layout
    if layout.sharding is not None:
        placements = layout.sharding.scale_placements if name in SCALES else None
        if not layout.sharding.holds(target, placements or layout.sharding.placements):
            return False
    local = local_of(target)
    in_order = local.is_contiguous() if name in SCALES else same_memory_order(local, weight)
    return (
        (local.dtype, local.shape) == (source.dtype, source.shape)
        and belongs(name, local, weight, layout)
        and local.device == weight.device
        and in_order
    )


def _new(name: str, source: Any, entry: Loaded) -> Any:
    if not isinstance(source, Tensor):
        return source
    device = device_of(name, entry.weight, entry.layout)
    shared = source.untyped_storage().data_ptr() in entry.foreign
    tensor = source.to(device, copy=shared)
    if belongs(name, tensor, entry.weight, entry.layout):
        return entry.layout.place(name, tensor)
    return tensor

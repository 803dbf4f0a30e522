"""Reading of state dicts: ours, torch's, and ours after somebody has cast them (docs/format.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from . import _C
from ._adopt import Loaded, memory_of
from ._checkpoint import FORMAT, check_form
from ._conform import check_scale, convert
from ._foreign import recognise
from ._geometry import geometry_of
from ._moments import decode_moment
from ._options import CODECS, CORRECTION_BITS, WORKING_OPTIONS, Group, RuleKind, hyperparameters
from ._sharding import from_bytes, is_dtensor, local_of, part_of, whole_of
from ._state import (
    CODE_DTYPES,
    CORRECTION,
    CORRECTION_DTYPES,
    MOMENTS,
    SCALES,
    STEP,
    STREAM_KEY,
    Layout,
    State,
    host_number,
    lacks_memory,
    layout_of,
    naming,
    parameter_name,
    scale_of,
    weight_of,
)

_INTACT: Final = (
    "pass load_state_dict the state dict as state_dict() returned it, before anything casts it"
)
_SAME_OPTIMIZER: Final = "load a state dict of the same optimizer class and model"
# State of a rule that is complete without them; they start fresh.
_OPTIONAL: Final = ("max_exp_avg_sq", "momentum_buffer")


def read_state_dict(
    state_dict: Mapping[str, Any],
    groups: Sequence[Group],
    kind: RuleKind,
) -> tuple[list[dict[str, Any]], dict[Tensor, Loaded]]:
    """Parameter groups after loading, and what is to be their state; changes nothing.

    Args:
        state_dict: the state dict.
        groups: the optimizer's parameter groups.
        kind: the optimizer's rule.

    Raises:
        ValueError, TypeError: the state dict does not fit; the message names the parameter.
    """
    saved_groups, saved_states = _parts_of(state_dict)
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"the state dict has groups of {saved_sizes} parameters and the optimizer of {sizes}; "
            "make the optimizer with the groups that it had when it was saved"
        )
    unknown = saved_states.keys() - {i for group in saved_groups for i in group["params"]}
    if unknown:
        raise ValueError(
            f"the state dict has state of {sorted(unknown, key=str)}, which is in none of its "
            f"groups; {_INTACT}"
        )
    ours = any(FORMAT in group for group in saved_groups)
    foreign = None if ours else recognise(saved_groups, saved_states, kind)
    merged_groups = []
    states = {}
    for index, (group, saved_group) in enumerate(zip(groups, saved_groups, strict=True)):
        with naming(f"parameter group {index}"):
            _check_order(group, saved_group)
            read_group = foreign.read_group(saved_group, kind) if foreign else saved_group
            merged = merge_group(group, read_group, kind)
        merged_groups.append(merged)
        pairs = zip(merged["params"], saved_group["params"], strict=True)
        for position, (param, saved_index) in enumerate(pairs):
            if saved := saved_states.get(saved_index):
                with naming(parameter_name(groups, index, position)):
                    if foreign:
                        whole = weight_of(whole_of(param.detach()))
                        saved = foreign.read_state(saved, whole, saved_group, kind)
                    states[param] = read_state(saved, param, merged, saved_group, kind)
    return merged_groups, states


def _parts_of(state_dict: Mapping[str, Any]) -> tuple[list[Group], Mapping[Any, State]]:
    """Groups and states of a state dict; ValueError if it is none of an optimizer."""
    if not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(
            f"a state dict of an optimizer has 'state' and 'param_groups'; this one has "
            f"{sorted(state_dict, key=str)[:5]}"
        )
    groups, states = state_dict["param_groups"], state_dict["state"]
    if not isinstance(groups, list | tuple) or not all(
        isinstance(group, Mapping) and "params" in group for group in groups
    ):
        raise ValueError(f"'param_groups' are no groups with 'params'; {_INTACT}")
    if not isinstance(states, Mapping) or not all(
        state is None or isinstance(state, Mapping) for state in states.values()
    ):
        raise ValueError(f"'state' has entries that are no dictionaries; {_INTACT}")
    return list(groups), states


def _check_order(group: Group, saved: Group) -> None:
    """Refuses the same parameters in another order: state is matched by place, as in torch."""
    names, saved_names = (list(g.get("param_names") or ()) for g in (group, saved))
    if names != saved_names and sorted(names) == sorted(saved_names):
        place = next(i for i, name in enumerate(names) if name != saved_names[i])
        raise ValueError(
            f"parameter {place} is '{names[place]}', and '{saved_names[place]}' in the state dict, "
            "which has the same parameters in another order; make the optimizer with them in the "
            "order in which they were saved"
        )


def merge_group(current: Group, saved: Group, kind: RuleKind) -> dict[str, Any]:
    """A parameter group after loading.

    What the training computes comes from the state dict, how the optimizer works
    (`WORKING_OPTIONS`) stays as it is, and what the state dict lacks too.

    Raises:
        ValueError, TypeError: another version of the format, or an invalid hyper-parameter.
    """
    version = saved.get(FORMAT, _C.FORMAT_VERSION)
    if version != _C.FORMAT_VERSION:
        raise ValueError(
            f"its state has the format version {version!r}, and this is flashoptim_cpp "
            f"{_C.version()}, which reads version {_C.FORMAT_VERSION}; load it with the release "
            "that wrote it"
        )
    taken = {key: value for key, value in saved.items() if key not in WORKING_OPTIONS}
    merged = {**current, **deepcopy(taken), "params": current["params"]}
    for key, value in merged.items():
        # Flattening, which distributed checkpoints do, makes lists of tuples.
        if isinstance(value, list) and isinstance(current.get(key), tuple):
            merged[key] = tuple(value)
    if "initial_lr" not in saved:
        merged["initial_lr"] = deepcopy(merged["lr"])
    hyperparameters(merged, kind)
    return merged


def read_state(
    saved: State, param: Tensor, group: Group, saved_group: Group, kind: RuleKind
) -> Loaded:
    """A parameter's state from a state dict, kept as the parameter's group asks for.

    Args:
        saved: the parameter's entry in the state dict: whole tensors, or DTensors.
        param: the parameter.
        group: its group after loading.
        saved_group: its group in the state dict.
        kind: the optimizer's rule.

    Raises:
        ValueError, TypeError: the state is of another rule or model, incomplete, or was changed in
            a way that cannot be undone.
    """
    saved = {name: value for name, value in saved.items() if value is not None}
    weight = weight_of(param)
    layout = layout_of(param, group, kind)
    _check_names(saved, kind)
    check_form(saved, weight, layout, saved_group, kind)
    target = _Target(weight, layout)

    state: State = {STEP: host_number(STEP, _step(saved, kind))}
    if STREAM_KEY in saved:
        state[STREAM_KEY] = host_number(STREAM_KEY, _whole_number(STREAM_KEY, saved[STREAM_KEY]))
    if CORRECTION in saved:
        state[CORRECTION] = _correction(saved[CORRECTION], target, saved_group)
    codec = layout.codec
    for name in kind.all_moments:
        if scale_of(name) in saved:
            codec = _saved_codec(saved_group)
            state.update(_codes(name, saved, target, codec))
        elif name in saved:
            state[name] = _values(name, saved[name], target)
        elif name in layout.moments and name not in _OPTIONAL:
            raise ValueError(f"its saved state has no '{name}'; {_SAME_OPTIMIZER}")
    return Loaded(convert(state, weight, layout, codec), weight, layout, memory_of(saved))


def _check_names(saved: State, kind: RuleKind) -> None:
    known = {STEP, STREAM_KEY, CORRECTION}
    for name in kind.all_moments:
        known |= {name, scale_of(name)}
    for name in saved:
        if name not in known:
            raise ValueError(
                f"its saved state has '{name}', which this optimizer does not keep; "
                f"{_SAME_OPTIMIZER}"
            )


def _step(saved: State, kind: RuleKind) -> int:
    if STEP in saved:
        return _whole_number(STEP, saved[STEP])
    if kind.rule == _C.Rule.ADAM:
        raise ValueError(f"its saved state has no '{STEP}'; {_SAME_OPTIMIZER}")
    # torch's SGD and others do not count. Where a moment is, there has been a step.
    return int(any(name in saved for name in kind.all_moments))


def _whole_number(name: str, value: Any) -> int:
    try:
        number = value.item() if isinstance(value, Tensor) else value
        whole = int(number)
        valid = whole == number and whole >= 0
    except (TypeError, ValueError, RuntimeError, OverflowError):
        valid = False
    if not valid:
        raise ValueError(f"'{name}' in its saved state must be a whole number, not {value!r}")
    return whole


class _Target(NamedTuple):
    """Where a parameter's saved state goes."""

    weight: Tensor
    layout: Layout

    @property
    def shape(self) -> torch.Size:
        """Of the whole weight."""
        sharding = self.layout.sharding
        return self.weight.shape if sharding is None else sharding.shape

    def part_of(self, name: str, value: Tensor) -> Tensor:
        """The elements of a saved tensor that belong to this process."""
        sharding = self.layout.sharding
        if sharding is None:
            return whole_of(value)
        placements = sharding.scale_placements if name in SCALES else sharding.placements
        part = part_of(value, sharding.mesh, placements)
        # A part of what was gathered for it must not keep the whole.
        gathered = is_dtensor(value) and not sharding.holds(value, placements)
        return part.clone() if gathered else part


def _tensor(name: str, value: Any, target: _Target, tail: tuple[int, ...] = ()) -> Tensor:
    """This process's part of a saved tensor of the weight's shape, and `tail` behind it."""
    if not isinstance(value, Tensor):
        raise TypeError(f"'{name}' in its saved state is not a tensor but {type(value).__name__}")
    shape = torch.Size((*value.shape, 2)) if value.is_complex() else value.shape
    if shape != (*target.shape, *tail):
        raise ValueError(
            f"'{name}' in its saved state has the shape {list(shape)}, and the parameter "
            f"{list(target.shape)}; {_SAME_OPTIMIZER}"
        )
    _check_memory(name, value)
    tensor = target.part_of(name, value.detach())
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _check_memory(name: str, value: Tensor) -> None:
    local = local_of(value)
    if local.layout is not torch.strided or local.is_meta:
        what = "on the meta device" if local.is_meta else f"sparse ({local.layout})"
        raise ValueError(f"'{name}' in its saved state is {what}; {_INTACT}")
    if lacks_memory(local):
        raise ValueError(f"'{name}' in its saved state has no memory, or none any more; {_INTACT}")


def _integers(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers that may have been cast to another dtype, if that lost nothing."""
    if tensor.dtype == dtype:
        return tensor
    integers = tensor.to(dtype)
    exact = tensor.dtype.is_floating_point and _holds(tensor.dtype, dtype)
    if not exact or not torch.equal(integers.to(tensor.dtype), tensor):
        raise ValueError(
            f"'{name}' in its saved state is {tensor.dtype} instead of {dtype} and cannot be "
            f"restored; {_INTACT}"
        )
    return integers


def _holds(floating: torch.dtype, integer: torch.dtype) -> bool:
    """Whether a floating dtype holds every number of an integer dtype."""
    return torch.finfo(floating).eps * torch.iinfo(integer).max <= 2


def _correction(value: Any, target: _Target, saved_group: Group) -> Tensor:
    bits = CORRECTION_BITS.get(saved_group.get("master_weight_bits"), 0)
    as_bytes = isinstance(value, Tensor) and value.shape == (*target.shape, 2)
    if as_bytes and (value.dtype == torch.uint8 or bits == 16):
        pairs = _tensor(CORRECTION, value, target, tail=(2,))
        tensor = from_bytes(_integers(CORRECTION, pairs, torch.uint8))
    else:
        tensor = _tensor(CORRECTION, value, target)
    if target.weight.dtype == torch.float32:
        raise ValueError(
            f"its saved state has a '{CORRECTION}', so it belongs to a 16-bit parameter, and this "
            "one is float32; cast the model as it was when it was saved"
        )
    if tensor.dtype not in CORRECTION_DTYPES.values():
        if bits == 0:
            raise ValueError(f"'{CORRECTION}' in its saved state is {tensor.dtype}; {_INTACT}")
        tensor = _integers(CORRECTION, tensor, CORRECTION_DTYPES[bits])
    return tensor


def _saved_codec(saved_group: Group) -> _C.Codec:
    codec = saved_group.get("codec")
    if FORMAT not in saved_group or codec not in CODECS:
        raise ValueError(
            f"its saved state has scales, but its group does not say '{FORMAT}' and 'codec'; "
            f"{_INTACT}"
        )
    return CODECS[codec]


def _codes(name: str, saved: State, target: _Target, codec: _C.Codec) -> State:
    """Codes and their scales; or the values where this process holds parts of groups."""
    if name not in saved:
        raise ValueError(f"its saved state has '{scale_of(name)}' but no '{name}'; {_INTACT}")
    codes = _integers(name, _tensor(name, saved[name], target), CODE_DTYPES[MOMENTS[name].kind])
    scale, sharding = saved[scale_of(name)], target.layout.sharding
    if sharding is not None:
        check_scale(name, sharding.geometry, scale)
        if not sharding.keeps_groups:
            kind, whole = MOMENTS[name].kind, whole_of(saved[name].detach()).contiguous()
            whole = _integers(name, whole, CODE_DTYPES[kind])
            values = decode_moment(kind, codec, whole, whole_of(scale).contiguous())
            return {name: target.part_of(name, values).clone()}
    else:
        check_scale(name, geometry_of(codes), scale)
    _check_memory(scale_of(name), scale)
    part = target.part_of(scale_of(name), scale)
    lowest = _C.fresh_first_scale()
    if MOMENTS[name].kind == _C.Moment.SECOND:
        lowest = _C.fresh_second_scale(codec)
    if not bool(((part >= lowest) & part.isfinite()).all()):
        raise ValueError(
            f"'{scale_of(name)}' in its saved state has elements that are no scales: NaN, infinite "
            f"or below {lowest:.2g}; {_INTACT}"
        )
    return {name: codes, scale_of(name): part.contiguous()}


def _values(name: str, value: Any, target: _Target) -> Tensor:
    """A moment without scales, as fp32."""
    tensor = _tensor(name, value, target)
    if not tensor.is_floating_point():
        raise ValueError(
            f"'{name}' in its saved state is {tensor.dtype} without '{scale_of(name)}'; {_INTACT}"
        )
    values = tensor.to(torch.float32)
    if MOMENTS[name].kind == _C.Moment.SECOND and bool((values < 0).any()):
        raise ValueError(f"'{name}' in its saved state has negative elements; {_SAME_OPTIMIZER}")
    return values

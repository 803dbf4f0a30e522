"""Master weights as fp32 tensors (docs/format.md, section 4; the paper's section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from . import _C
from ._options import Group, correction_bits
from ._sharding import from_bytes, like, local_of, part_like
from ._state import CORRECTION, CORRECTION_DTYPES, DTYPES, State, lacks_memory

_BITS: Final = {dtype: bits for bits, dtype in CORRECTION_DTYPES.items()}
# Largest correction of a 32-bit master weight; that of a fp16 weight has 13 bits.
_LARGEST_WIDE: Final = {torch.bfloat16: 32767, torch.float16: 4095}


def reconstruct_fp32_param(param: Tensor, error_bits: Tensor | None) -> Tensor:
    """The master weight that a parameter and its correction stand for.

    Args:
        param: bf16 or fp16, of any shape and device.
        error_bits: ``optimizer.state[param]["weight_correction"]``: int8 or int16, of the same
            shape, or an int16's bytes, as ``state_dict`` has them; None for a parameter that has
            none.

    Returns:
        fp32, of the parameter's shape and device; a DTensor with its placements if it is one.

    Raises:
        ValueError: a dtype other than these, or the shapes differ.
    """
    weight = _narrow(param)
    if error_bits is None:
        return weight.float()
    if error_bits.dtype == torch.uint8 and error_bits.shape == (*weight.shape, 2):
        error_bits = like(weight, from_bytes(part_like(weight, error_bits)))
    if error_bits.dtype not in _BITS:
        raise ValueError(f"error_bits must be int8 or int16, not {error_bits.dtype}")
    if error_bits.shape != weight.shape:
        raise ValueError(
            f"error_bits is {list(error_bits.shape)} and the parameter {list(weight.shape)}; "
            "both must have the same shape"
        )
    return join(weight, error_bits)


def compute_ecc_bits(fp32_param: Tensor, narrow_param: Tensor, master_bytewidth: int = 4) -> Tensor:
    """The correction that makes a narrow parameter stand for fp32 weights.

    Args:
        fp32_param: fp32 master weights, of any shape.
        narrow_param: the same, rounded to bf16 or fp16 (in any way: ties may go up or down).
        master_bytewidth: 3 or 4, for 24 or 32 bits of master weight.

    Returns:
        int8 or int16, of the parameter's shape, on its device; a DTensor with its placements if it
        is one. Where the narrow weight is not the nearest one the correction goes as far as it can,
        half a unit in the last place.

    Raises:
        ValueError: other dtypes or another width, or the shapes differ.
    """
    narrow = _narrow(narrow_param)
    if fp32_param.dtype != torch.float32:
        raise ValueError(f"fp32_param must be float32, not {fp32_param.dtype}")
    if fp32_param.shape != narrow.shape:
        raise ValueError(
            f"fp32_param is {list(fp32_param.shape)} and narrow_param {list(narrow.shape)}; "
            "both must have the same shape"
        )
    if master_bytewidth not in (3, 4):
        raise ValueError(f"master_bytewidth must be 3 or 4, not {master_bytewidth}")
    bits = 8 * (master_bytewidth - 2)
    local = local_of(narrow)
    master = part_like(narrow, fp32_param.detach()).to(local.device)
    weight, correction = split(master, local.dtype, bits)
    largest = 127 if bits == 8 else _LARGEST_WIDE[local.dtype]
    outwards = master.abs() > local.float().abs()
    furthest = torch.where(outwards, largest, -largest - 1).to(correction.dtype)
    return like(narrow, torch.where(weight == local, correction, furthest))


def fp32_state_dict(model: nn.Module, states: Mapping[Tensor, State]) -> dict[str, Tensor]:
    """Copies of all tensors of a model, with fp32 master weights in place of 16-bit ones.

    DTensors stay DTensors with the same placements.

    Args:
        model: the model; wrappers for data parallelism are looked through.
        states: optimizer states by parameter.
    """
    found = {}
    for name, value in _unwrapped(model).state_dict(keep_vars=True).items():
        correction = states.get(value, {}).get(CORRECTION)
        if correction is not None:
            found[name] = join(value, correction)
        else:
            wide = torch.float32 if value.is_floating_point() else value.dtype
            found[name] = value.detach().to(wide, copy=True)
    return found


def load_fp32_state_dict(
    model: nn.Module,
    saved: Mapping[str, Tensor],
    states: Mapping[Tensor, State],
    make_corrections: Callable[[], None],
) -> None:
    """Sets weights and corrections from fp32 weights; the inverse of `fp32_state_dict`.

    Args:
        model: the model; its parameters and buffers that `saved` names are overwritten.
        saved: fp32 tensors by name: whole ones, or DTensors. Ranks communicate where one is cut in
            another way than its target.
        states: optimizer states by parameter; their corrections are overwritten.
        make_corrections: puts corrections that are missing into `states`.

    Raises:
        ValueError: an unknown name, another shape, or a floating-point tensor that is not fp32;
            nothing was written.
    """
    targets = _unwrapped(model).state_dict(keep_vars=True)
    if not isinstance(saved, Mapping):
        raise TypeError(f"a state dict is a dictionary, not {type(saved).__name__}")
    for name, value in saved.items():
        if name not in targets:
            raise ValueError(f"the model has no '{name}'; pass the state dict of this model")
        if (
            not isinstance(value, Tensor)
            or value.layout is not torch.strided
            or lacks_memory(local_of(value))
        ):
            what = type(value).__name__ if not isinstance(value, Tensor) else "without dense memory"
            raise ValueError(f"'{name}' is {what}; pass a dense fp32 tensor")
        if value.shape != targets[name].shape:
            raise ValueError(
                f"'{name}' is {list(value.shape)}, and the model's is {list(targets[name].shape)}; "
                "pass the state dict of this model"
            )
        if targets[name].is_floating_point() and value.dtype != torch.float32:
            raise ValueError(f"'{name}' is {value.dtype}, not float32; convert it with .float()")
    with torch.inference_mode(False), torch.no_grad():
        make_corrections()
        for name, value in saved.items():
            target, value = local_of(targets[name]), part_like(targets[name], value)
            correction = states.get(targets[name], {}).get(CORRECTION)
            if correction is None:
                target.copy_(value)
            else:
                weight, extra = split(value, target.dtype, _BITS[correction.dtype])
                target.copy_(weight)
                local_of(correction).copy_(extra)


def lacks_corrections(
    parameters: Iterable[tuple[Tensor, int, str]],
    groups: Sequence[Group],
    states: Mapping[Tensor, State],
) -> bool:
    """Whether a parameter that can be trained has yet to get the correction that it will keep."""
    return any(
        param.requires_grad
        and not states.get(param)
        and correction_bits(groups[group], param.dtype) != 0
        for param, group, _ in parameters
    )


def _unwrapped(model: nn.Module) -> nn.Module:
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    return model.module if isinstance(model, wrappers) else model


def join(weight: Tensor, correction: Tensor) -> Tensor:
    """fp32 master weights of a 16-bit weight and its correction, on the weight's device.

    Of a DTensor it is one with the same placements.
    """
    narrow = local_of(weight.detach()).cpu().contiguous().resolve_neg()
    extra = part_like(weight, correction).cpu().contiguous()
    master = torch.empty_like(narrow, dtype=torch.float32)
    _C.join_master_weights(
        narrow.data_ptr(),
        DTYPES[narrow.dtype],
        extra.data_ptr(),
        _BITS[extra.dtype],
        narrow.numel(),
        master.data_ptr(),
    )
    return like(weight, master.to(weight.device))


def split(master: Tensor, dtype: torch.dtype, bits: int) -> tuple[Tensor, Tensor]:
    """Weight and correction (of `bits` bits) of fp32 master weights, on their device."""
    source = master.detach().cpu().contiguous().resolve_neg()
    narrow = torch.empty_like(source, dtype=dtype)
    correction = torch.empty_like(source, dtype=CORRECTION_DTYPES[bits])
    _C.split_master_weights(
        source.data_ptr(),
        source.numel(),
        narrow.data_ptr(),
        DTYPES[dtype],
        correction.data_ptr(),
        bits,
    )
    return narrow.to(master.device), correction.to(master.device)


def _narrow(param: Tensor) -> Tensor:
    if param.dtype not in _LARGEST_WIDE:
        raise ValueError(
            f"the parameter must be bfloat16 or float16, not {param.dtype}; wider ones have no "
            "correction"
        )
    return param.detach()

"""States of the package `flashoptim`, versions 0.1.3 and 0.1.4: what its state dicts hold.

Moments are 8-bit codes with one fp16 scale for 32 elements of the flattened tensor, or plain.
Master weights are the parameter and a count of 127ths or 32767ths of half a unit in its last place.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from . import _C
from ._master import compute_ecc_bits
from ._options import Group, RuleKind
from ._state import CODE_DTYPES, CORRECTION, MOMENTS, State

_GROUP_SIZE: Final = 32
_WIDTH: Final = "master_bytewidth"
_ERROR: Final = "error_bits"
_LARGEST_CODE: Final = {_C.Moment.FIRST: 127, _C.Moment.SECOND: 255}
_ERROR_DTYPES: Final = {1: torch.int8, 2: torch.int16}
# Explicit bits of the significand, and the exponent of the smallest normal number.
_SIGNIFICAND_BITS: Final = {torch.bfloat16: 7, torch.float16: 10}
_SMALLEST_EXPONENT: Final = {torch.bfloat16: -126, torch.float16: -14}

_INTACT: Final = "pass the state dict as flashoptim's state_dict() returned it"


def recognises(groups: Sequence[Group], states: Mapping[Hashable, State]) -> bool:
    """Whether a state dict is flashoptim's."""
    return any(_WIDTH in group for group in groups) or any(
        name == _ERROR or str(name).endswith("::quantized")
        for state in states.values()
        for name in state
    )


def read_group(saved: Group, kind: RuleKind) -> Group:
    """A parameter group without what only flashoptim knows."""
    return {key: value for key, value in saved.items() if key != _WIDTH}


def read_state(saved: State, weight: Tensor, saved_group: Group, kind: RuleKind) -> State:
    """A parameter's state with fp32 moments and a correction of 16 bits.

    Args:
        saved: the parameter's entry in the state dict.
        weight: the parameter, with the values that it had when the state dict was made.
        saved_group: its group in the state dict.
        kind: the optimizer's rule.

    Raises:
        ValueError: it is not what flashoptim writes.
    """
    state = dict(saved)
    for name in kind.all_moments:
        codes, scales = state.pop(f"{name}::quantized", None), state.pop(f"{name}::scales", None)
        if codes is not None:
            state[name] = decode_moment(name, codes, scales)
    error = state.pop(_ERROR, None)
    if error is not None:
        master = master_weight(weight, _error_bits(error, weight, saved_group))
        state[CORRECTION] = compute_ecc_bits(master, weight)
    return state


def decode_moment(name: str, codes: Tensor, scales: Any) -> Tensor:
    """fp32 values of flashoptim's codes.

    Args:
        name: of the moment.
        codes: int8 for first, uint8 for second moments.
        scales: fp16, or their bits as bf16, one for 32 elements of the flattened codes.

    Raises:
        ValueError: other dtypes, or another number of scales.
    """
    kind = MOMENTS[name].kind
    count = -(-codes.numel() // _GROUP_SIZE)
    if codes.dtype != CODE_DTYPES[kind]:
        raise ValueError(
            f"'{name}::quantized' is {codes.dtype}, not {CODE_DTYPES[kind]}; {_INTACT}"
        )
    if not isinstance(scales, Tensor) or scales.dtype not in (torch.float16, torch.bfloat16):
        found = scales.dtype if isinstance(scales, Tensor) else type(scales).__name__
        raise ValueError(f"'{name}::scales' is {found}, not torch.float16; {_INTACT}")
    if scales.shape != (count,):
        raise ValueError(
            f"'{name}::scales' is {list(scales.shape)}, and {[count]} belongs to "
            f"{codes.numel()} codes; {_INTACT}"
        )
    # Version 0.1.4 disguises the bits as bf16, so that torch's loading does not round them.
    scale = scales.view(torch.float16).float().repeat_interleave(_GROUP_SIZE)[: codes.numel()]
    values = codes.reshape(-1).float() / _LARGEST_CODE[kind]
    if kind == _C.Moment.FIRST:
        values = values / (2.0 - values.abs())
    values = values * scale.to(values.device)
    if kind == _C.Moment.SECOND:
        values = values * values
    return values.reshape(codes.shape)


def master_weight(weight: Tensor, error: Tensor) -> Tensor:
    """The fp32 master weights of 16-bit weights and flashoptim's error bits (int8 or int16)."""
    exponent = torch.frexp(weight.float()).exponent - 1
    exponent = torch.where(weight == 0, _SMALLEST_EXPONENT[weight.dtype], exponent)
    exponent = exponent.clamp(min=_SMALLEST_EXPONENT[weight.dtype])
    exponent = exponent - _SIGNIFICAND_BITS[weight.dtype] - 1
    half_unit = ((exponent.long() + 1023) << 52).view(torch.float64)  # 2^exponent
    part = error.to(weight.device).float() / torch.iinfo(error.dtype).max
    # In binary64 the sum is exact, so that only the result is rounded.
    return (weight.double() + part.double() * half_unit).float()


def _error_bits(error: Any, weight: Tensor, saved_group: Group) -> Tensor:
    """Error bits as the integers that they are; flashoptim saves them under the weight's dtype."""
    if weight.dtype not in _SIGNIFICAND_BITS:
        raise ValueError(
            f"its saved state has '{_ERROR}', so it belongs to a 16-bit parameter, and this one is "
            f"{weight.dtype}; cast the model as it was when it was saved"
        )
    width = saved_group.get(_WIDTH)
    dtype = _ERROR_DTYPES.get(width - weight.element_size()) if isinstance(width, int) else None
    if dtype is None:
        raise ValueError(
            f"its saved state has '{_ERROR}', and its group says {_WIDTH}={width!r}, not 3 or 4; "
            f"{_INTACT}"
        )
    if not isinstance(error, Tensor) or error.shape != weight.shape:
        found = list(error.shape) if isinstance(error, Tensor) else type(error).__name__
        raise ValueError(
            f"'{_ERROR}' in its saved state is {found}, and the parameter {list(weight.shape)}; "
            "load a state dict of the same model"
        )
    if error.dtype == dtype:
        return error
    if error.dtype != weight.dtype:
        raise ValueError(
            f"'{_ERROR}' in its saved state is {error.dtype}, and should be {dtype} or the "
            f"parameter's {weight.dtype}; cast the model as it was when it was saved"
        )
    return error.view(dtype) if dtype == torch.int16 else error.to(dtype)

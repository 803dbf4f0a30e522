"""Moments as plain floats and as they are stored. Encoding rounds to nearest."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _C
from ._geometry import geometry_of
from ._options import CODECS, Codec
from ._state import CODE_DTYPES


def decode_moment(
    kind: _C.Moment, codec: _C.Codec, codes: Tensor, scale: Tensor | None = None
) -> Tensor:
    """fp32 moments, on the host, in the memory order of the codes.

    Args:
        kind: first (signed) or second moment.
        codec: how it is stored.
        codes: int8 or uint8, dense; fp32 with codec `none`.
        scale: fp32 ``[rows, groups]``, contiguous; None with codec `none`.
    """
    codes = codes.cpu()
    values = torch.empty_like(codes, dtype=torch.float32)
    rows, row_length, _ = geometry_of(codes)
    scale = None if scale is None else scale.cpu()
    _C.decode_moments(
        kind, codec, rows, row_length, codes.data_ptr(), _address(scale), values.data_ptr()
    )
    return values


def encode_moment(kind: _C.Moment, codec: _C.Codec, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Codes and scales of a dense tensor of fp32 moments, on the host; the inverse of decoding."""
    values = values.cpu().resolve_neg()
    rows, row_length, groups = geometry_of(values)
    if codec == _C.Codec.NONE:
        codes, scale = torch.empty_like(values), None
    else:
        codes = torch.empty_like(values, dtype=CODE_DTYPES[kind])
        scale = torch.empty((rows, groups), dtype=torch.float32, device="cpu")
    _C.encode_moments(
        kind, codec, rows, row_length, values.data_ptr(), codes.data_ptr(), _address(scale)
    )
    return codes, scale


def quantize(
    values: Tensor, codec: Codec = "root", *, second_moment: bool = False
) -> tuple[Tensor, Tensor]:
    """Encodes a moment as the optimizers store it (docs/format.md, section 5; paper, section 3.2).

    Args:
        values: floating point, of any dense shape; not below 0 if `second_moment`.
        codec: ``"root"`` or ``"softsign"``.
        second_moment: encode as a second moment: values below 2^-100 become 2^-100.

    Returns:
        Codes (int8, or uint8 if `second_moment`) of the values' shape and memory order, and fp32
        scales ``[rows, groups]``, on the values' device.

    Raises:
        ValueError: another codec, or a tensor with holes or overlaps.
    """
    kind = _C.Moment.SECOND if second_moment else _C.Moment.FIRST
    codes, scale = encode_moment(kind, _eight_bits(codec), values.detach().to(torch.float32))
    assert scale is not None
    return codes.to(values.device), scale.to(values.device)


def dequantize(codes: Tensor, scale: Tensor, codec: Codec = "root") -> Tensor:
    """The fp32 values of codes and scales, the inverse of `quantize`.

    Args:
        codes: int8 for first moments, uint8 for second moments, dense.
        scale: fp32 ``[rows, groups]``.
        codec: ``"root"`` or ``"softsign"``.

    Returns:
        fp32, of the codes' shape, memory order and device.

    Raises:
        TypeError: other dtypes.
        ValueError: another codec, a tensor with holes or overlaps, or scales of another shape.
    """
    kinds = {dtype: kind for kind, dtype in CODE_DTYPES.items()}
    if codes.dtype not in kinds or scale.dtype != torch.float32:
        raise TypeError(
            f"codes must be int8 or uint8 and scales float32, not {codes.dtype} and {scale.dtype}"
        )
    rows, _, groups = geometry_of(codes)
    if scale.shape != (rows, groups):
        raise ValueError(f"scales must be {[rows, groups]}, not {list(scale.shape)}")
    values = decode_moment(kinds[codes.dtype], _eight_bits(codec), codes, scale.contiguous())
    return values.to(codes.device)


def _eight_bits(codec: str) -> _C.Codec:
    if codec not in ("root", "softsign"):
        raise ValueError(f"codec must be 'root' or 'softsign', not {codec!r}")
    return CODECS[codec]


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()

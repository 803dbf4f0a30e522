"""Tensors read as matrices of rows and groups (docs/format.md, section 2)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from . import _C


class Geometry(NamedTuple):
    """A dense tensor read as a matrix in memory order (docs/format.md, section 2)."""

    rows: int
    row_length: int
    groups: int  # per row


def geometry_of(tensor: Tensor) -> Geometry:
    """The geometry of a tensor; ValueError if it has holes or overlaps."""
    return Geometry(*_C.geometry(list(tensor.shape), list(tensor.stride())))

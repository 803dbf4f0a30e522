"""Tensors of which every process holds a part: PyTorch's DTensors (docs/format.md, section 2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from . import _C
from ._geometry import Geometry, geometry_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether a value is a DTensor; does not import what defines them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def needs_state(param: Tensor) -> bool:
    """Whether a parameter has state even without a gradient.

    All processes that share one must have the same state, or a checkpoint of it has gaps.
    """
    return param.requires_grad and is_dtensor(param)


def local_of(tensor: Tensor) -> Tensor:
    """The elements of a tensor that this process holds: all of them unless it is a DTensor.

    Waits for those that a collective has yet to bring.
    """
    local: Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor
    collectives = sys.modules.get("torch.distributed._functional_collectives")
    if collectives is not None and isinstance(local, collectives.AsyncCollectiveTensor):
        waited: Tensor = local.wait()
        return waited
    return local


def whole_of(tensor: Tensor) -> Tensor:
    """All elements of a tensor. For a DTensor its processes have to communicate."""
    if not is_dtensor(tensor):
        return tensor
    if tensor.dtype != torch.int16:
        return tensor.full_tensor()
    # Neither NCCL nor gloo knows 16-bit integers; to be copied they may as well be floats.
    halves = like(tensor, local_of(tensor).view(torch.float16))
    return whole_of(halves).view(torch.int16)


def part_of(value: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Tensor:
    """This process's elements of a tensor when it is cut as told.

    Args:
        value: the whole tensor, of which a view is returned, or a DTensor. One that is cut in
            another way is gathered, for which its processes have to communicate.
        mesh, placements: of a DTensor of the same shape.
    """
    if is_dtensor(value) and value.device_mesh == mesh and value.placements == tuple(placements):
        return local_of(value)
    part = whole_of(value)
    for index, placement in enumerate(placements):
        if _cuts(placement):
            part = _split(part, placement, mesh.size(index))[mesh.get_local_rank(index)]
    return part


def part_like(template: Tensor, value: Tensor) -> Tensor:
    """The elements of `value` whose places in the whole are those that `template` has here."""
    if is_dtensor(template):
        return part_of(value, template.device_mesh, template.placements)
    return whole_of(value)


def like(template: Tensor, local: Tensor) -> Tensor:
    """This process's elements of a tensor, as a DTensor if `template`, of its shape, is one."""
    if not is_dtensor(template):
        return local
    where = (template.device_mesh, template.placements)
    return _dtensor(local, *where, template.shape, template.stride())


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of 16-bit integers, low one first, in a last dimension of 2; the same memory."""
    local = local_of(tensor).unsqueeze(-1).view(torch.uint8)
    if not is_dtensor(tensor):
        return local
    shape = torch.Size((*tensor.shape, 2))
    stride = (*(2 * step for step in tensor.stride()), 1)
    return _dtensor(local, tensor.device_mesh, tensor.placements, shape, stride)


def from_bytes(pairs: Tensor) -> Tensor:
    """The inverse of `as_bytes`, of a tensor that is no DTensor; a view of it where it can be."""
    odd = (*pairs.stride()[:-1], pairs.storage_offset())
    if pairs.stride(-1) != 1 or any(step % 2 for step in odd):
        pairs = pairs.clone(memory_format=torch.contiguous_format)
    return pairs.view(torch.int16).squeeze(-1)


@dataclass(frozen=True)
class Sharding:
    """How a DTensor parameter is cut, and which part of it this process holds."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size  # of the whole; complex elements count as two reals
    stride: tuple[int, ...]
    geometry: Geometry  # of the whole
    part: Geometry
    first_group: int  # its index in the whole
    first_in_group: int  # elements of that group before this part
    group_stride: int  # groups per row of the whole where `part` has parts of several; else 0
    keeps_groups: bool  # no group is cut

    @property
    def scale_placements(self) -> tuple[Placement, ...]:
        """How the scales ``[rows, groups]`` are cut: between rows as the weight, else in them."""
        from torch.distributed.tensor import Shard

        return tuple(
            Shard(1) if _cuts_rows_up(placement, self.shape) else placement
            for placement in self.placements
        )

    def weight_like(self, local: Tensor) -> Tensor:
        """A DTensor of the weight's shape from this process's elements."""
        return _dtensor(local, self.mesh, self.placements, self.shape, self.stride)

    def scale_like(self, local: Tensor) -> Tensor:
        """A DTensor of scales from this process's elements."""
        rows, _, groups = self.geometry
        shape = torch.Size((rows, groups))
        return _dtensor(local, self.mesh, self.scale_placements, shape, (max(groups, 1), 1))

    def holds(self, value: Tensor, placements: Sequence[Placement]) -> bool:
        """Whether a tensor is a DTensor on this mesh with these placements."""
        return (
            is_dtensor(value)
            and value.device_mesh == self.mesh
            and value.placements == tuple(placements)
        )


def sharding_of(param: Tensor, local: Tensor) -> Sharding | None:
    """How a parameter is cut; None if it is no DTensor.

    Args:
        param: the parameter.
        local: this process's elements of it, complex ones as two reals.

    Raises:
        ValueError: its parts are not blocks of rows, or of one row, of the whole.
    """
    if not is_dtensor(param):
        return None
    mesh, placements = param.device_mesh, tuple(param.placements)
    shape, stride = param.shape, tuple(param.stride())
    if param.is_complex():
        shape, stride = torch.Size((*shape, 2)), (*(2 * size for size in stride), 1)
    if any(placement.is_partial() for placement in placements):
        raise ValueError(
            f"its placements are {placements}, so that it is a sum over ranks; redistribute it"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            "this rank is not in its mesh; pass it to the optimizers of those that are"
        )
    if not any(map(_cuts, placements)):
        whole = geometry_of(local)
        return Sharding(mesh, placements, shape, stride, whole, whole, 0, 0, 0, keeps_groups=True)

    starts, sizes = [], []
    for dim, size in enumerate(shape):
        start, count = _range(size, dim, mesh, placements)
        starts.append(start)
        sizes.append(count)
    if tuple(sizes) != tuple(local.shape) and (local.numel() or math.prod(sizes)):
        raise ValueError(
            f"this rank holds {list(local.shape)} of {list(shape)}, and {sizes} is what "
            f"{placements} gives it; distribute it with torch.distributed.tensor.distribute_tensor"
        )
    whole = Geometry(*_C.geometry(list(shape), _contiguous_stride(shape)))
    part = _part_geometry(local, whole)
    rows_are_outermost = (
        local.numel() == 0
        or local.dim() < 2
        or (
            part.rows == local.size(0)
            and (part.rows == 1 or local.stride(0) * part.rows == local.numel())
        )
    )
    if not rows_are_outermost:
        raise ValueError(
            f"its shard has the strides {local.stride()}, and dimension 0 must be the outermost in "
            "memory; make it contiguous before it is sharded"
        )
    first_row = starts[0] if len(shape) > 1 else 0
    before = [start * math.prod(shape[dim + 1 :]) for dim, start in enumerate(starts)]
    offset = sum(before[1:]) if len(shape) > 1 else before[0]  # in the row
    groups_before, first_in_group = divmod(offset, _C.GROUP_SIZE)
    first_group = first_row * whole.groups + groups_before
    group_stride = whole.groups if part.groups < whole.groups and part.rows > 1 else 0
    keeps = _keeps_groups(shape, mesh, placements)
    return Sharding(
        mesh,
        placements,
        shape,
        stride,
        whole,
        part,
        first_group,
        first_in_group,
        group_stride,
        keeps,
    )


def _cuts(placement: Placement) -> bool:
    """Whether a placement gives each process another part. Not all that do are `is_shard`."""
    return not (placement.is_replicate() or placement.is_partial())


def _cuts_rows_up(placement: Placement, shape: torch.Size) -> bool:
    return _cuts(placement) and (len(shape) == 1 or placement.dim > 0)  # type: ignore[attr-defined]


def _split(tensor: Tensor, placement: Any, count: int) -> list[Tensor]:
    """The parts of a tensor, views of it where they are one block, as torch defines them."""
    parts: list[Tensor]
    parts, _ = placement._split_tensor(tensor, count, with_padding=False, contiguous=False)
    return parts


def _is_strided(placement: Placement) -> bool:
    return type(placement).__name__ == "_StridedShard"


def _range(
    size: int, dim: int, mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[int, int]:
    """First index and number of indices of a dimension that this process holds."""
    cuts = [
        (index, placement)
        for index, placement in enumerate(placements)
        if _cuts(placement) and placement.dim == dim  # type: ignore[attr-defined]
    ]
    shape = (1,) * dim + (size,)
    strided = any(_is_strided(placement) for _, placement in cuts)
    # A view of a tensor without memory knows where it begins, one made of pieces does not.
    part = (
        torch.arange(size, device="cpu").reshape(shape)
        if strided
        else torch.empty(shape, device="meta")
    )
    for index, placement in cuts:
        part = _split(part, placement, mesh.size(index))[mesh.get_local_rank(index)]
    count = part.numel()
    if not strided or not count:
        return int(part.storage_offset()) if count else 0, count
    first, last = int(part.flatten()[0]), int(part.flatten()[-1])
    if last - first + 1 != count:
        raise ValueError(
            f"{tuple(placements)} gives this rank several pieces of dimension {dim}, of {size}; "
            "choose sizes that all ranks share evenly"
        )
    return first, count


def _contiguous_stride(shape: Sequence[int]) -> list[int]:
    return list(torch.empty(tuple(shape), device="meta").stride())


def _part_geometry(local: Tensor, whole: Geometry) -> Geometry:
    """The geometry of a part; one without rows still knows how long they are."""
    if local.numel() or not whole.rows:
        return geometry_of(local)
    if local.dim() == 1:
        return Geometry(1, 0, 0)
    row_length = math.prod(local.shape[1:])
    return Geometry(local.size(0), row_length, _C.geometry([row_length], [1])[2])


def _keeps_groups(shape: torch.Size, mesh: DeviceMesh, placements: Sequence[Placement]) -> bool:
    """Whether no cut goes through a group; the same answer on all ranks of one mesh."""
    lengths = list(shape)
    for index, placement in enumerate(placements):
        if not _cuts_rows_up(placement, shape):
            continue
        dim: int = placement.dim  # type: ignore[attr-defined]
        each = -(-lengths[dim] // mesh.size(index))
        if each == lengths[dim]:
            continue
        pieces = math.prod(shape[1:dim])  # of a row that go to one rank
        step = each * math.prod(shape[dim + 1 :])
        if _is_strided(placement) or pieces > 1 or step % _C.GROUP_SIZE:
            return False
        lengths[dim] = each
    return True


def _dtensor(
    local: Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: torch.Size,
    stride: Sequence[int],
) -> Tensor:
    """A DTensor from its local elements.

    Not `DTensor.from_local`, which moves them to the mesh's device: with CPU offload they stay.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(shape, tuple(stride), local.dtype)
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)

"""Sharded models beside their unsharded twins, for the cases of this folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import flashoptim_cpp as flash
import torch
from common import same_bits
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

# Rows: even, uneven, and fewer than ranks; long, short and broken groups; a short vector.
SHAPES = ((6, 64), (5, 100), (1, 64), (7, 3, 5), (2, 130), (9, 3), (70,))
LONG_VECTOR = (3 << 16,)  # quantised, and cut at multiples of 64 by 2 and 3 ranks
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Tensors(nn.Module):
    """Parameters of given shapes."""

    def __init__(self, shapes: Iterable[tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
        )


def tensors(
    shapes: Iterable[tuple[int, ...]] = SHAPES, dtypes: Iterable[torch.dtype] = DTYPES
) -> nn.Module:
    """A model that is nothing but parameters, the same on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(*[Tensors(shapes, dtype) for dtype in dtypes])


class Network(nn.Module):
    """A small network with rows that do not divide evenly and a frozen layer."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(13, 64)
        self.norm = nn.LayerNorm(64)
        self.hidden = nn.Linear(64, 129)
        self.frozen = nn.Linear(129, 7).requires_grad_(False)
        self.out = nn.Linear(7, 5)
        self.to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(
            torch.tanh(self.frozen(torch.tanh(self.hidden(self.norm(self.embed(tokens))))))
        )


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """`fully_shard` of every child and of the model."""
    mesh = mesh or init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for child in model.children():
        fully_shard(child, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def distributed(model: nn.Module, mesh: DeviceMesh, placements: Sequence[Placement]) -> nn.Module:
    """A model of `tensors` whose parameters are DTensors with the given placements."""
    for child in model.children():
        for i, weight in enumerate(child.weights):
            child.weights[i] = nn.Parameter(distribute_tensor(weight.detach(), mesh, placements))
    return model


def whole(value: Any) -> Any:
    """A copy of a value with DTensors gathered."""
    if isinstance(value, DTensor) and value.dtype == torch.int16:
        # gloo has no 16-bit integers, and the widest correction of a weight is one.
        return value.to(torch.int32).full_tensor().to(torch.int16)
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(entry) for key, entry in value.items()}
    return value


def set_gradients(params: Iterable[Tensor], step: int) -> None:
    """Gives every parameter its part of a gradient that depends on the step and its place only."""
    for i, param in enumerate(params):
        generator = torch.Generator().manual_seed(1000 * step + i)
        gradient = torch.randn(param.shape, generator=generator).to(param.dtype)
        if not param.numel():
            gradient = torch.zeros_like(param)
        elif isinstance(param, DTensor):
            gradient = distribute_tensor(gradient, param.device_mesh, param.placements)
        param.grad = gradient


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    """Steps with the gradients of `set_gradients`."""
    for step in steps:
        set_gradients(model.parameters(), step)
        optimizer.step()


def everything(model: nn.Module, optimizer: flash.FlashOptimizer) -> list[Any]:
    """Whole weights and states of all parameters."""
    return [
        (whole(param.detach()), whole(optimizer.state.get(param, {})))
        for param in model.parameters()
    ]


def assert_same(found: Sequence[Any], wanted: Sequence[Any], what: object) -> None:
    """Equality to the last bit, naming the first parameter and entry that differ."""
    assert len(found) == len(wanted)
    for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert same_bits(one[0], other[0]), f"{what}: weight {i} of shape {list(one[0].shape)}"
        assert one[1].keys() == other[1].keys(), f"{what}: state of {i}: {one[1].keys()}"
        for name in one[1]:
            assert same_bits(one[1][name], other[1][name]), f"{what}: '{name}' of weight {i}"


def local(tensor: Tensor) -> Tensor:
    """The elements that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

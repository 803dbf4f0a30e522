"""Parameters, gradients and state as tensors: what they hold and how many bytes they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bench.shapes import Shapes

_WEIGHT_SCALE: Final = 0.02
_GRADIENT_SCALE: Final = 1e-3
_PERIOD: Final = (1 << 22) - 64
_SAMPLE: Final = 4096  # elements of each tensor that are compared


class Noise:
    """Normal random numbers with a period of about four million.

    Drawn once and copied, because drawing billions takes longer than timing what is done to them.
    """

    def __init__(self, device: torch.device, seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._values = (scale * torch.randn(_PERIOD, generator=generator)).to(device)

    def fill(self, tensors: Iterable[Tensor], start: int) -> None:
        """Overwrites tensors, each from another place of the period."""
        for index, tensor in enumerate(tensors):
            flat = tensor.detach().view(-1)
            source, filled = (start + 7919 * index) % _PERIOD, 0
            while filled < flat.numel():
                count = min(flat.numel() - filled, _PERIOD - source)
                flat[filled : filled + count].copy_(self._values[source : source + count])
                source, filled = 0, filled + count


class Gradients:
    """Gradients of a case, one set per dtype for all optimizers: a step only reads them."""

    def __init__(self, shapes: Shapes, device: torch.device) -> None:
        self._shapes, self._device = shapes, device
        self._noise = Noise(device, 1, _GRADIENT_SCALE)
        self._of: dict[torch.dtype, list[Tensor]] = {}

    def missing_bytes(self, dtype: torch.dtype, parameters: int) -> int:
        """What the set of a dtype would take in addition."""
        return 0 if dtype in self._of else parameters * dtype.itemsize

    def draw(self, step: int, params: list[nn.Parameter]) -> None:
        """Gives parameters the gradients of a step, which depend on nothing else."""
        dtype = params[0].dtype
        if dtype not in self._of:
            self._of[dtype] = [
                torch.empty(shape, dtype=dtype, device=self._device) for shape in self._shapes
            ]
        self._noise.fill(self._of[dtype], 1_000_003 * step)
        for param, gradient in zip(params, self._of[dtype], strict=True):
            param.grad = gradient


def parameters(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> list[nn.Parameter]:
    """Parameters with the same values every time, rounded to their dtype."""
    params = [nn.Parameter(torch.empty(shape, dtype=dtype, device=device)) for shape in shapes]
    Noise(device, 0, _WEIGHT_SCALE).fill(params, 0)
    return params


def sample(tensors: Iterable[Tensor]) -> Tensor:
    """The first elements of each tensor as one vector."""
    return torch.cat([t.detach().reshape(-1)[:_SAMPLE].float() for t in tensors])


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    """Every tensor of an optimizer's state once, in whatever it is wrapped."""
    found: dict[int, Tensor] = {}
    for value in optimizer.state.values():
        for tensor in _leaves(value):
            found.setdefault(tensor.data_ptr() or id(tensor), tensor)
    return list(found.values())


def largest_state(optimizer: Optimizer, params: list[nn.Parameter]) -> list[Tensor]:
    """The state tensors of the largest parameter that have its number of elements."""
    param = max(params, key=lambda p: p.numel())
    state = optimizer.state.get(param, {})
    return [tensor for tensor in _leaves(state) if tensor.numel() == param.numel()]


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state."""
    return sum(tensor.nbytes for tensor in state_tensors(optimizer))


def moved_bytes(optimizer: Optimizer, params: list[nn.Parameter]) -> int:
    """Bytes that a step must move: weights and state read and written, gradients read."""
    gradients = sum(param.grad.nbytes for param in params if param.grad is not None)
    return 2 * sum(p.nbytes for p in params) + 2 * state_bytes(optimizer) + gradients


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if hasattr(value, "__tensor_flatten__"):  # a subclass that holds others
            for name in value.__tensor_flatten__()[0]:
                yield from _leaves(getattr(value, name))
        else:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif hasattr(value, "__dict__"):  # the official package wraps its moments in plain objects
        yield from _leaves(vars(value))

"""A few groups of a huge tensor, stepped again on the CPU.

A row without tail is a matrix of rows of one group each, as far as groups and random numbers go
(docs/format.md, section 2), so any run of groups can be stepped alone: as a shard that starts at
the row of that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from flashoptim_cpp import _C, FlashOptimizer
from helpers import Content, assert_same
from torch import Tensor

GROUP = _C.GROUP_SIZE
_DTYPES = {torch.bfloat16: _C.DType.BFLOAT16, torch.float32: _C.DType.FLOAT32}
_MOMENTS = {
    "exp_avg": "first_moment",
    "momentum_buffer": "first_moment",
    "exp_avg_sq": "second_moment",
}


@dataclass(frozen=True)
class Window:
    """Groups `first` to `first + count - 1` of a tensor whose groups are numbered through."""

    first: int
    count: int

    def elements(self, numel: int) -> slice:
        """Their elements in the flat tensor."""
        return slice(self.first * GROUP, min(numel, (self.first + self.count) * GROUP))


def windows_of(numel: int) -> list[Window]:
    """The first groups, those in the middle and about element 2^31, and the last ones.

    A short last group has a window of its own, since its row is shorter.
    """
    whole, tail = divmod(numel, GROUP)
    starts = [0, whole // 2, whole - 40]
    boundary = (1 << 31) // GROUP
    if boundary + 20 <= whole:
        starts.append(boundary - 20)
    found = [Window(start, 40) for start in starts]
    return [*found, Window(whole, 1)] if tail else found


@dataclass(frozen=True)
class Piece:
    """Copies, on the host, of what a window holds."""

    window: Window
    content: Content

    def assert_equals(self, other: Piece, what: str) -> None:
        name = f"{what}: groups from {self.window.first}"
        assert_same([self.content], [other.content], [name])


def look(
    param: Tensor, optimizer: FlashOptimizer, windows: Sequence[Window], entries: Sequence[str]
) -> list[Piece]:
    """What the windows of a contiguous parameter and its state hold now."""
    pieces = []
    state = optimizer.state[param]
    for window in windows:
        part = window.elements(param.numel())
        content = {"weight": param.detach().reshape(-1)[part].to("cpu", copy=True)}
        for name in entries:
            flat = state[name].reshape(-1)
            scales = slice(window.first, window.first + window.count)
            wanted = flat[scales if name.endswith("_scale") else part]
            content[name] = wanted.to("cpu", copy=True)
        pieces.append(Piece(window, content))
    return pieces


def step_again(
    piece: Piece,
    gradient: Tensor,
    rule: _C.Rule,
    hyperparameters: _C.Hyperparameters,
    done: int,
    stream_key: int,
) -> Piece:
    """The piece after one more step on the CPU.

    Args:
        piece: what was there before.
        gradient: of the whole tensor.
        rule: of the optimizer.
        hyperparameters: of the step.
        done: steps before this one.
        stream_key: of the tensor.
    """
    content = {name: tensor.clone().contiguous() for name, tensor in piece.content.items()}
    weight = content["weight"]
    part = gradient.reshape(-1)[piece.window.elements(gradient.numel())].cpu().contiguous()
    step = torch.tensor(float(done))
    binding = _C.TensorBinding()
    binding.name = f"groups from {piece.window.first}"
    binding.weight = weight.data_ptr()
    binding.weight_dtype = _DTYPES[weight.dtype]
    binding.codec = _C.Codec.ROOT
    if "weight_correction" in content:
        binding.correction_bits = 8 * content["weight_correction"].element_size()
        binding.correction = content["weight_correction"].data_ptr()
    for name, attribute in _MOMENTS.items():
        if name in content:
            setattr(binding, attribute, content[name].data_ptr())
            setattr(binding, f"{attribute}_scale", content[f"{name}_scale"].data_ptr())
    binding.row_length = min(GROUP, weight.numel())
    binding.rows = weight.numel() // binding.row_length
    binding.first_group = piece.window.first
    binding.step = step.data_ptr()
    binding.stream_key = stream_key
    plan = _C.Plan(rule, [binding], 1)
    plan.set_hyperparameters(0, hyperparameters)
    plan.set_gradient(0, part.data_ptr(), _DTYPES[part.dtype])
    plan.step()
    return replace(piece, content=content)

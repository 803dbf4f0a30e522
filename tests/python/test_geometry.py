"""Dimensions of one element: their strides may be any number and change nothing."""

from __future__ import annotations

import flashoptim_cpp as flash
import pytest
import torch
from common import same_bits, train
from torch import nn

# The same elements in the same order in memory, the stride of the one written differently.
TWINS = [
    ((5, 1, 40), (1, 5, 5), (1, 200, 5)),
    ((5, 1, 40), (1, 5, 5), (1, 1, 5)),
    ((1, 40, 5), (200, 1, 40), (1, 1, 40)),
    ((5, 40, 1), (1, 5, 1), (1, 5, 999)),
    ((1, 3, 8, 8), (192, 1, 24, 3), (1, 1, 24, 3)),
]


def parameter(shape: tuple[int, ...], strides: tuple[int, ...]) -> nn.Parameter:
    memory = torch.randn(200 if 40 in shape else 192, generator=torch.Generator().manual_seed(0))
    return nn.Parameter(memory.as_strided(shape, strides))


@pytest.mark.parametrize(("shape", "first", "second"), TWINS)
def test_two_writings_of_one_layout_are_one(
    shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    one, two = parameter(shape, first), parameter(shape, second)
    optimizers = [flash.FlashAdamW([param], lr=1e-2) for param in (one, two)]
    for param, optimizer in zip((one, two), optimizers, strict=True):
        train([param], optimizer, range(3))
    assert same_bits(one.detach(), two.detach())
    assert "exp_avg_scale" in optimizers[0].state[one]
    assert same_bits(dict(optimizers[0].state[one]), dict(optimizers[1].state[two]))
    other = flash.FlashAdamW([two], lr=1e-2)
    other.load_state_dict(optimizers[0].state_dict())
    train([one], optimizers[0], range(3, 5))
    train([two], other, range(3, 5))
    assert same_bits(one.detach(), two.detach())

"""Weights changed while their corrections are in the optimizer: never pulled back in silence.

A correction that belonged to other weights moves the master weight by at most half a unit in the
last place of the new one (docs/format.md, section 4.5), and never the weight itself.
"""

from __future__ import annotations

from collections.abc import Callable

import flashoptim_cpp as flash
import pytest
import torch
from common import master, same_bits, train
from torch import Tensor, nn


def load_weights(param: nn.Parameter, weights: Tensor) -> None:
    """As a checkpoint of the model alone does."""
    holder = nn.Module()
    holder.weight = param
    holder.load_state_dict({"weight": weights})


def copy_data(param: nn.Parameter, weights: Tensor) -> None:
    param.data.copy_(weights)


def swap_data(param: nn.Parameter, weights: Tensor) -> None:
    param.data = weights.clone()


CHANGES = [load_weights, copy_data, swap_data]


def trained(dtype: torch.dtype, bits: int) -> tuple[nn.Parameter, flash.FlashOptimizer]:
    """A parameter whose corrections are all kinds of numbers."""
    param = nn.Parameter((torch.randn(64, 64) * 10.0 ** torch.arange(-4, 4).repeat(8)).to(dtype))
    optimizer = flash.FlashAdamW([param], lr=1e-3, master_weight_bits=bits)
    train([param], optimizer, range(5))
    assert bool((optimizer.state[param]["weight_correction"] != 0).any())
    return param, optimizer


def other_weights(dtype: torch.dtype) -> Tensor:
    """New weights: of all magnitudes, both zeros, powers of two, the smallest and largest."""
    info = torch.finfo(dtype)
    weights = (torch.randn(64, 64) * 2.0 ** torch.randint(-12, 12, (64, 64))).to(dtype)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, info.tiny, -info.tiny, info.smallest_normal, info.max]
    weights[:9] = torch.tensor(special, dtype=dtype)[:, None]
    return weights


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("bits", [24, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stale_correction_stays_within_half_a_unit_and_moves_no_weight(
    dtype: torch.dtype, bits: int, change: Callable[[nn.Parameter, Tensor], None]
) -> None:
    param, optimizer = trained(dtype, bits)
    weights = other_weights(dtype)
    change(param, weights)
    up = torch.nextafter(weights, torch.full_like(weights, float("inf"))).double()
    down = torch.nextafter(weights, torch.full_like(weights, -float("inf"))).double()
    off = master(param, optimizer).double() - weights.double()
    assert bool((off <= (up - weights.double()) / 2)[up.isfinite()].all())
    assert bool((off >= (down - weights.double()) / 2).all())

    # A step that changes nothing leaves every weight where it was put.
    optimizer.param_groups[0]["lr"] = 0.0
    train([param], optimizer, range(5, 6))
    assert torch.equal(param.detach(), weights)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_after_a_resync_the_master_weights_are_the_parameters(
    dtype: torch.dtype, change: Callable[[nn.Parameter, Tensor], None]
) -> None:
    param, optimizer = trained(dtype, 24)
    moments = optimizer.state[param]["exp_avg"].clone()
    weights = other_weights(dtype)
    change(param, weights)
    optimizer.resync_master_weights()
    assert torch.equal(master(param, optimizer), weights.float())
    assert same_bits(optimizer.state[param]["exp_avg"], moments)
    train([param], optimizer, range(5, 7))
    assert float(optimizer.state[param]["step"]) == 7


def test_a_resync_does_nothing_where_there_is_no_correction() -> None:
    param = nn.Parameter(torch.randn(4, 64))
    optimizer = flash.FlashAdamW([param])
    optimizer.resync_master_weights()
    train([param], optimizer, range(1))
    before = {name: value.clone() for name, value in optimizer.state[param].items()}
    optimizer.resync_master_weights()
    assert same_bits(dict(optimizer.state[param]), before)


def test_model_and_optimizer_can_be_loaded_in_either_order() -> None:
    """Why a change of the weights is not taken for a reason to drop corrections."""
    param, optimizer = trained(torch.bfloat16, 24)
    weights, saved = param.detach().clone(), optimizer.state_dict()
    for weights_first in (True, False):
        twin = nn.Parameter(torch.zeros_like(weights))
        second = flash.FlashAdamW([twin], lr=1e-3)
        if weights_first:
            load_weights(twin, weights)
        second.load_state_dict(saved)
        if not weights_first:
            load_weights(twin, weights)
        assert same_bits(master(twin, second), master(param, optimizer))

"""`check_numerics` refuses steps that are too small for the precision of the weights."""

from __future__ import annotations

from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import parameter, same_bits, train
from torch import nn

# Half a unit in the last place of a weight of 1 (with 15, 18 and 23 bits after the first one).
HALF_UNITS = {
    (torch.bfloat16, 24): 2.0**-16,
    (torch.float16, 24): 2.0**-19,
    (torch.bfloat16, 32): 2.0**-24,
    (torch.float16, 32): 2.0**-24,
    (torch.float32, 24): 2.0**-24,
}


@pytest.mark.parametrize(("dtype", "bits"), HALF_UNITS)
def test_a_step_of_lion_must_reach_half_a_unit(dtype: torch.dtype, bits: Any) -> None:
    half = HALF_UNITS[dtype, bits]
    for lr, lost in ((half * 1.01, False), (half * 0.99, True)):
        param = nn.Parameter(torch.ones(4, 8, dtype=dtype))
        optimizer = flash.FlashLion(
            [("w", param)],
            lr=lr,
            master_weight_bits=bits,
            stochastic_rounding=False,
            check_numerics=True,
        )
        if lost:
            with pytest.raises(flash.NumericsError, match=r"parameter 0 of group 0 \(w\): .*lost"):
                train([param], optimizer, range(1))
            assert bool((param == 1).all())
        else:
            train([param], optimizer, range(1))


def test_adam_counts_on_a_tenth_of_the_learning_rate() -> None:
    for lr, lost in ((1.1e-4 * 2, False), (1.4e-4, True)):
        param = nn.Parameter(torch.ones(4, 8, dtype=torch.bfloat16))
        optimizer = flash.FlashAdamW([param], lr=lr, stochastic_rounding=False, check_numerics=True)
        if lost:
            with pytest.raises(flash.NumericsError, match="raise the learning rate"):
                train([param], optimizer, range(1))
        else:
            train([param], optimizer, range(1))


def test_nothing_is_checked_by_default_at_rate_zero_or_with_stochastic_rounding() -> None:
    nearest: dict[str, Any] = {"lr": 1e-9, "stochastic_rounding": False, "check_numerics": True}
    for options in ({"check_numerics": False}, {"lr": 0.0}, {"stochastic_rounding": True}):
        param = nn.Parameter(torch.ones(4, 8, dtype=torch.bfloat16))
        train([param], flash.FlashLion([param], **{**nearest, **options}), range(2))


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 32), (torch.float32, 24)])
def test_what_has_all_bits_of_fp32_is_checked_with_stochastic_rounding_too(
    dtype: torch.dtype, bits: Any
) -> None:
    param = nn.Parameter(torch.ones(4, 8, dtype=dtype))
    optimizer = flash.FlashLion([param], lr=1e-9, master_weight_bits=bits, check_numerics=True)
    with pytest.raises(flash.NumericsError, match=r"raise the learning rate$"):
        train([param], optimizer, range(1))


def test_magnitudes_are_measured_once_and_on_request() -> None:
    param = parameter(4, 8, dtype=torch.bfloat16)
    optimizer = flash.FlashLion([param], lr=1e-4, stochastic_rounding=False, check_numerics=True)
    train([param], optimizer, range(2))
    with torch.no_grad():
        param.fill_(1000.0)
    train([param], optimizer, range(2, 4))
    optimizer.recompute_param_stats()
    before = param.detach().clone()
    with pytest.raises(flash.NumericsError, match="largest weight 1e\\+03"):
        train([param], optimizer, range(4, 5))
    assert same_bits(before, param.detach())
    optimizer.param_groups[0]["check_numerics"] = False
    train([param], optimizer, range(4, 5))


def test_loading_measures_afresh() -> None:
    param = parameter(4, 8, dtype=torch.bfloat16)
    optimizer = flash.FlashLion([param], lr=1e-4, stochastic_rounding=False, check_numerics=True)
    train([param], optimizer, range(2))
    with torch.no_grad():
        param.fill_(1000.0)
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(flash.NumericsError):
        train([param], optimizer, range(2, 3))


def test_infinite_and_empty_weights_are_not_checked() -> None:
    params = [nn.Parameter(torch.full((4, 8), float("inf"))), parameter(0)]
    optimizer = flash.FlashLion(params, lr=1e-9, check_numerics=True)
    train(params, optimizer, range(1))

"""What each policy does with NaN and infinities in gradients."""

from __future__ import annotations

import copy
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, bits_of, mixed_parameters, parameter, same_bits, set_gradients, train
from torch import nn

NAN, INF = float("nan"), float("inf")


def two_alike(rule: str, **options: Any) -> list[tuple[list[nn.Parameter], Any]]:
    """The same parameters and optimizer twice, after three steps."""
    make, defaults = RULES[rule]
    params = [parameter(6, 64, dtype=torch.bfloat16), parameter(5, 70), parameter(30)]
    optimizer = make(params, **{**defaults, **options})
    train(params, optimizer, range(3))
    return [(params, optimizer), copy.deepcopy((params, optimizer))]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("options", [{}, {"codec": "softsign"}, {"quantize": False}], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_propagation_reaches_the_elements_concerned_and_no_others(
    rule: str, options: dict[str, Any], value: float
) -> None:
    (params, optimizer), (others, other) = two_alike(rule, **options)
    for step in range(3, 6):
        set_gradients(params, step)
        set_gradients(others, step)
        if step == 3:
            params[0].grad[2, 5] = params[1].grad[4, 69] = params[2].grad[0] = value
        optimizer.step()
        other.step()
    for param, twin, index in zip(params, others, [(2, 5), (4, 69), (0,)], strict=True):
        if rule == "lion" and value == value:  # its steps are signs; the momentum is infinite
            momentum = optimizer.state[param]["exp_avg"][index]
            assert momentum == -128 or not bool(torch.isfinite(momentum))
        else:
            assert not bool(torch.isfinite(param.detach()[index]))
        # Without the element the maximum of its group may be another, and stochastic rounding then
        # differs by a unit.
        with torch.no_grad():
            param[index] = twin[index]
        torch.testing.assert_close(param.detach(), twin.detach(), rtol=2**-6, atol=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_an_all_nan_gradient_is_not_hidden(rule: str) -> None:
    (params, optimizer), _ = two_alike(rule)
    set_gradients(params, 3)
    params[0].grad.fill_(NAN)
    optimizer.step()
    assert bool(params[0].isnan().all())
    assert bool(params[1].isfinite().all())
    train(params, optimizer, range(4, 6))
    assert bool(params[0].isnan().all())


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("rule", RULES)
def test_skipping_leaves_the_tensor_alone_and_counts_it(rule: str, value: float) -> None:
    (params, optimizer), (others, other) = two_alike(rule, nonfinite="skip")
    before = bits_of(params[:1], optimizer)
    for step in range(3, 5):
        set_gradients(params, step)
        set_gradients(others, step)
        params[0].grad[5, 63] = value
        optimizer.step()
        others[0].grad = None
        other.step()
    assert same_bits(bits_of(params[:1], optimizer), before)
    assert same_bits(bits_of(params[1:], optimizer), bits_of(others[1:], other))
    assert optimizer.skipped_tensors == 2
    assert other.skipped_tensors == 0
    train(params, optimizer, range(5, 6))
    assert float(optimizer.state[params[0]]["step"]) == 4


@pytest.mark.parametrize("rule", RULES)
def test_an_error_in_the_last_of_ten_tensors_writes_nothing(rule: str) -> None:
    make, options = RULES[rule]
    params = [parameter(6, 64, dtype=torch.bfloat16) for _ in range(10)]
    names = [f"layer{i}" for i in range(10)]
    optimizer = make(list(zip(names, params, strict=True)), nonfinite="error", **options)
    train(params, optimizer, range(3))
    before = bits_of(params, optimizer)
    set_gradients(params, 3)
    params[9].grad[5, 63] = INF
    with pytest.raises(
        RuntimeError, match=r"parameter 9 of group 0 \(layer9\).*nothing was updated"
    ):
        optimizer.step()
    assert same_bits(bits_of(params, optimizer), before)
    train(params, optimizer, range(3, 4))


def test_policies_differ_between_groups() -> None:
    params = [parameter(4, 64) for _ in range(3)]
    policies = ("propagate", "skip", "error")
    optimizer = flash.FlashAdamW(
        [{"params": [p], "nonfinite": n} for p, n in zip(params, policies, strict=True)]
    )
    for bad in range(3):
        set_gradients(params, 0)
        params[bad].grad[0, 0] = NAN
        before = [p.detach().clone() for p in params]
        if policies[bad] == "error":
            with pytest.raises(RuntimeError, match="parameter 0 of group 2"):
                optimizer.step()
            assert same_bits(before, [p.detach() for p in params])
        else:
            optimizer.step()
            assert bool(params[bad].isnan().any()) == (policies[bad] == "propagate")
    assert optimizer.skipped_tensors == 1


@pytest.mark.parametrize("policy", ["propagate", "skip", "error"])
def test_policies_do_not_change_finite_steps(policy: str) -> None:
    results = []
    for options in ({}, {"nonfinite": policy}):
        torch.manual_seed(0)
        params = mixed_parameters()
        train(params, flash.FlashAdamW(params, **options), range(4))
        results.append([p.detach() for p in params])
    assert same_bits(*results)


def test_flags_of_non_finite_moments_survive_saving() -> None:
    (params, optimizer), _ = two_alike("adamw")
    set_gradients(params, 3)
    params[0].grad[2, 5] = NAN
    optimizer.step()
    for compress in (True, False):
        fresh = flash.FlashAdamW(params, compress_state_dict=compress)
        fresh.load_state_dict(optimizer.state_dict())
        again = flash.FlashAdamW(params)
        again.load_state_dict(fresh.state_dict())
        assert same_bits(bits_of(params, again), bits_of(params, optimizer))

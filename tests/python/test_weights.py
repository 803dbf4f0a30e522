"""Master weights: small updates, zeros, decay to nothing, and conversions from and to fp32."""

from __future__ import annotations

import copy
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, bits_of, master, parameter, same_bits, set_gradients, train
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

SIXTEEN = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize(
    ("options", "bound"),
    [
        # Nearest rounding errs by at most half a unit of the master weight each time, 2^-17 for
        # 24 bits of bf16 below 1, an eighth of that for fp16.
        ({"master_weight_bits": 24}, 1000 * 2.0**-17),
        ({"master_weight_bits": 32}, 1000 * 2.0**-25),
        # Stochastic rounding is right on average: 2,048 elements, each the sum of 1,000 roundings
        # to a multiple of 2^-8 (bf16), deviate by 1e-3 on average.
        ({"master_weight_bits": 16, "stochastic_rounding": True}, 4e-3),
    ],
    ids=["24", "32", "stochastic"],
)
def test_updates_below_half_a_unit_are_kept(
    dtype: torch.dtype, options: dict[str, Any], bound: float
) -> None:
    param = nn.Parameter(torch.ones(32, 64, dtype=dtype))
    optimizer = flash.FlashSGD([param], lr=1e-4, **options)
    for _ in range(1000):
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert abs(float(master(param, optimizer).double().mean()) - 0.9) <= bound


@pytest.mark.filterwarnings("ignore:.*updates below half a unit")
def test_without_a_correction_they_are_lost() -> None:
    param = nn.Parameter(torch.ones(32, 64, dtype=torch.bfloat16))
    optimizer = flash.FlashSGD([param], lr=1e-4, master_weight_bits=None, stochastic_rounding=False)
    for _ in range(100):
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert bool((param == 1).all())


def test_updates_of_24_bits_are_kept_on_average_by_default_and_lost_without_randomness() -> None:
    for options, arrives in (({}, True), ({"stochastic_rounding": False}, False)):
        param = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer = flash.FlashSGD([param], lr=1e-6, **options)
        for _ in range(200):
            param.grad = torch.ones_like(param)
            optimizer.step()
        moved = 1 - float(master(param, optimizer).double().mean())
        assert (abs(moved - 2e-4) < 5e-6) if arrives else moved == 0


@pytest.mark.parametrize("options", [{}, {"codec": "softsign"}, {"quantize": False}], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rule", RULES)
def test_zeros_stay_zero(rule: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    make, defaults = RULES[rule]
    param = nn.Parameter(torch.zeros(5, 70, dtype=dtype))
    optimizer = make([param], **defaults, **options)
    for _ in range(50):
        param.grad = torch.zeros_like(param)
        optimizer.step()
    assert bool((master(param, optimizer) == 0).all())
    for moment in ("exp_avg", "momentum_buffer"):
        if moment in optimizer.state[param]:
            assert bool((optimizer.state[param][moment] == 0).all())


@pytest.mark.parametrize("options", [{}, {"codec": "softsign"}, {"quantize": False}], ids=str)
@pytest.mark.parametrize("rule", [r for r in RULES if r != "sgd"])
def test_decaying_moments_never_become_subnormal(rule: str, options: dict[str, Any]) -> None:
    make, defaults = RULES[rule]
    param = parameter(8, 64)
    optimizer = make([param], **{**defaults, "weight_decay": 0.0}, **options)
    train([param], optimizer, range(3))
    smallest = torch.finfo(torch.float32).tiny
    for step in range(2000):
        param.grad = torch.zeros_like(param)
        optimizer.step()
        if step % 100 == 99:
            for name, value in optimizer.state[param].items():
                if value.is_floating_point():
                    subnormal = (value != 0) & (value.abs() < smallest)
                    assert not bool(subnormal.any()), name


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_32_bits_restore_fp32_weights(dtype: torch.dtype) -> None:
    values = torch.cat([torch.randn(4096), torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0**-14])])
    correction = flash.compute_ecc_bits(values, values.to(dtype), master_bytewidth=4)
    assert correction.dtype == torch.int16
    restored = flash.reconstruct_fp32_param(values.to(dtype), correction)
    exact = values.abs() >= 2.0**-14 if dtype == torch.float16 else torch.ones_like(values) > 0
    different = (restored != values) & exact
    # The largest correction is one short of half a unit, where a cast rounds a tie down.
    ties = (values - values.to(dtype)).abs() * 2 >= (
        values.to(dtype) * (1 + 2**-7) - values.to(dtype)
    ).abs()
    assert not bool((different & ~ties).any())
    torch.testing.assert_close(restored, values, rtol=2.0**-22, atol=2.0**-37)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_24_bits_restore_weights_to_a_small_part_of_a_unit(dtype: torch.dtype) -> None:
    values = torch.randn(4096)
    correction = flash.compute_ecc_bits(values, values.to(dtype), master_bytewidth=3)
    assert correction.dtype == torch.int8
    restored = flash.reconstruct_fp32_param(values.to(dtype), correction)
    unit = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    torch.testing.assert_close(restored, values, rtol=unit * 2.0**-8, atol=2.0**-30)


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("width", [3, 4])
def test_corrections_of_ties_that_a_cast_rounded_down(dtype: torch.dtype, width: int) -> None:
    unit = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    ties = torch.tensor([1 + unit / 2, -1 - unit / 2, 1 + 5 * unit / 2])
    narrow = ties.to(dtype)  # to even, which is towards zero here
    assert bool((narrow.abs() < ties.abs()).all())
    restored = flash.reconstruct_fp32_param(narrow, flash.compute_ecc_bits(ties, narrow, width))
    assert bool(((restored - ties).abs() <= unit * 2.0 ** (-8 if width == 3 else -13)).all())
    assert bool(((restored - narrow.float()).abs() <= unit / 2).all())


def test_conversion_helpers_keep_shape_and_refuse_what_does_not_fit() -> None:
    fp32 = torch.randn(4, 6).t()
    narrow = fp32.bfloat16()
    correction = flash.compute_ecc_bits(fp32, narrow)
    assert flash.reconstruct_fp32_param(narrow, correction).shape == (6, 4)
    torch.testing.assert_close(
        flash.reconstruct_fp32_param(narrow, correction), fp32, rtol=1e-6, atol=0
    )
    assert same_bits(flash.reconstruct_fp32_param(narrow, None), narrow.float())
    with pytest.raises(ValueError, match=r"must be bfloat16 or float16, not torch.float32"):
        flash.reconstruct_fp32_param(fp32, correction)
    with pytest.raises(ValueError, match=r"error_bits must be int8 or int16, not torch.int32"):
        flash.reconstruct_fp32_param(narrow, correction.int())
    with pytest.raises(ValueError, match=r"\[4, 6\] and the parameter \[6, 4\]"):
        flash.reconstruct_fp32_param(narrow, correction.t())
    with pytest.raises(ValueError, match=r"fp32_param must be float32, not torch.float64"):
        flash.compute_ecc_bits(fp32.double(), narrow)
    with pytest.raises(ValueError, match=r"\[4, 6\] and narrow_param \[6, 4\]"):
        flash.compute_ecc_bits(fp32.t(), narrow)
    with pytest.raises(ValueError, match="master_bytewidth must be 3 or 4, not 2"):
        flash.compute_ecc_bits(fp32, narrow, 2)


@pytest.mark.parametrize("codec", ["root", "softsign"])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("shape", [(8, 64), (3, 100), (70,), (2, 3, 5), (0, 4)])
def test_quantizing_what_was_dequantized_gives_the_same_bytes(
    codec: Any, second: bool, shape: tuple[int, ...]
) -> None:
    values = torch.randn(shape).square() if second else torch.randn(shape)
    codes, scale = flash.quantize(values, codec, second_moment=second)
    assert codes.dtype == (torch.uint8 if second else torch.int8)
    assert codes.shape == values.shape
    restored = flash.dequantize(codes, scale, codec)
    again = flash.quantize(restored, codec, second_moment=second)
    assert same_bits([codes, scale], list(again))
    if values.numel():
        assert float((restored - values).abs().max()) < 0.02 * float(values.abs().max())


def test_quantization_helpers_refuse_what_does_not_fit() -> None:
    codes, scale = flash.quantize(torch.randn(4, 64))
    with pytest.raises(ValueError, match="codec must be 'root' or 'softsign', not 'none'"):
        flash.quantize(torch.randn(4, 64), "none")
    with pytest.raises(ValueError, match="holes or overlaps"):
        flash.quantize(torch.randn(4, 64)[:, ::2])
    with pytest.raises(TypeError, match=r"int8 or uint8 .* not torch.int16"):
        flash.dequantize(codes.short(), scale)
    with pytest.raises(ValueError, match=r"scales must be \[4, 1\], not \[4, 2\]"):
        flash.dequantize(codes, torch.ones(4, 2))


def test_a_weight_and_its_master_agree_while_training() -> None:
    param = parameter(16, 64, dtype=torch.bfloat16)
    plain = nn.Parameter(param.detach().float())
    narrow = flash.FlashAdamW([param], lr=1e-3, master_weight_bits=32)
    wide = flash.FlashAdamW([plain], lr=1e-3)
    for step in range(50):
        set_gradients([param], step)
        plain.grad = param.grad.float()
        narrow.step()
        wide.step()
    assert same_bits(master(param, narrow), plain.detach())


def corrected_model() -> tuple[nn.Module, flash.FlashOptimizer]:
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))
    flash.cast_model(model)
    optimizer = flash.FlashAdamW(model.parameters(), master_weight_bits=32)
    train(list(model.parameters()), optimizer, range(5))
    return model, optimizer


def test_fp32_state_dicts_go_round_to_the_bit() -> None:
    model, optimizer = corrected_model()
    state_dict = optimizer.get_fp32_model_state_dict(nn.DataParallel(model))
    assert state_dict.keys() == model.state_dict().keys()
    assert same_bits(state_dict["0.weight"], master(model[0].weight, optimizer))
    assert same_bits(state_dict["1.running_mean"], model[1].running_mean)
    assert state_dict["1.num_batches_tracked"].dtype == torch.int64
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    optimizer.resync_master_weights()
    assert bool((master(model[0].weight, optimizer) == 0).all())
    optimizer.set_fp32_model_state_dict(model, state_dict)
    assert same_bits(before[0], dict(model.state_dict()))
    assert same_bits(before[1]["state"], optimizer.state_dict()["state"])


def test_fp32_state_dicts_that_do_not_fit_are_refused_and_write_nothing() -> None:
    model, optimizer = corrected_model()
    good = optimizer.get_fp32_model_state_dict(model)
    before = copy.deepcopy(model.state_dict())
    zeros = {name: torch.zeros_like(value) for name, value in good.items()}
    for name, value, error, message in (
        ("2.weight", torch.zeros(8, 31), ValueError, r"'2.weight' is \[8, 31\]"),
        ("2.weight", torch.zeros(8, 32).bfloat16(), ValueError, "'2.weight' is torch.bfloat16"),
        ("3.weight", torch.zeros(1), ValueError, "the model has no '3.weight'"),
    ):
        with pytest.raises(error, match=message):
            optimizer.set_fp32_model_state_dict(model, {**zeros, name: value})
    assert same_bits(dict(before), dict(model.state_dict()))


@pytest.mark.parametrize("bits", [None, 24, 32])
def test_fp32_weights_set_before_the_first_step_keep_all_bits(bits: Any) -> None:
    """As if the state had been there, which the first step makes."""
    networks = []
    for early in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8).half(), nn.Linear(8, 8))
        model[0].bfloat16()
        model[2].requires_grad_(False).bfloat16()
        wide = {name: torch.randn(p.shape) for name, p in model.named_parameters()}
        optimizer = flash.FlashAdamW(
            model.parameters(), master_weight_bits=bits, stochastic_rounding=not bits
        )
        if early:
            get_optimizer_state_dict(model, optimizer)  # makes the state
        optimizer.set_fp32_model_state_dict(model, wide)
        found = optimizer.get_fp32_model_state_dict(model)
        assert same_bits(found["2.weight"], wide["2.weight"].bfloat16().float())
        assert same_bits(found["0.weight"], wide["0.weight"]) == (bits == 32)
        assert bool(optimizer.state) == (early or bits is not None)
        assert not optimizer.state.get(model[2].weight)
        networks.append((model, optimizer, found))
    (model, optimizer, found), (twin, reference, wanted) = networks
    assert same_bits(found, wanted)
    trained = [list(m.parameters())[:4] for m in (model, twin)]
    for step in range(3):
        set_gradients(trained[0][: 4 - step % 2], step)
        set_gradients(trained[1][: 4 - step % 2], step)
        optimizer.step()
        reference.step()
    assert same_bits(bits_of(trained[0], optimizer), bits_of(trained[1], reference))


def test_fp32_weights_that_are_refused_before_the_first_step_make_no_state() -> None:
    model = nn.Linear(64, 8).bfloat16()
    optimizer = flash.FlashAdamW(model.parameters())
    with pytest.raises(ValueError, match=r"'weight' is torch.float64"):
        optimizer.set_fp32_model_state_dict(model, {"weight": torch.zeros(8, 64).double()})
    assert not optimizer.state

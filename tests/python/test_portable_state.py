"""Corrections of 16 bits in state dicts: bytes, which every collective can send."""

from __future__ import annotations

import copy
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, mixed_parameters, parameter, same_bits, train
from torch import nn


def trained(**options: Any) -> tuple[list[nn.Parameter], flash.FlashAdamW]:
    params = [
        *mixed_parameters(),
        nn.Parameter(torch.randn(4, 3, 5, 7).bfloat16().to(memory_format=torch.channels_last)),
        nn.Parameter(torch.randn(64, 8).half().t()),
    ]
    optimizer = flash.FlashAdamW(params, lr=1e-2, master_weight_bits=32, **options)
    train(params, optimizer, range(3))
    return params, optimizer


@pytest.mark.parametrize("compress", [True, False])
def test_a_state_dict_shows_corrections_of_16_bits_as_bytes(compress: bool) -> None:
    params, optimizer = trained(compress_state_dict=compress)
    saved = optimizer.state_dict()["state"]
    for index, param in enumerate(params):
        if param.dtype == torch.float32:
            assert "weight_correction" not in saved[index]
            continue
        correction, pairs = optimizer.state[param]["weight_correction"], saved[index]
        pairs = pairs["weight_correction"]
        assert correction.dtype == torch.int16
        assert (pairs.dtype, pairs.shape) == (torch.uint8, (*param.shape, 2))
        low, high = pairs[..., 0].to(torch.int32), pairs[..., 1].view(torch.int8).to(torch.int32)
        assert torch.equal(low + 256 * high, correction.to(torch.int32))
        if param.numel():
            assert pairs.data_ptr() == correction.data_ptr()
            assert correction.any()
            found = flash.reconstruct_fp32_param(param, pairs)
            assert same_bits(found, flash.reconstruct_fp32_param(param, correction))


def as_integers(saved: dict[str, Any], optimizer: flash.FlashOptimizer) -> None:
    for state, own in zip(saved["state"].values(), optimizer.state.values(), strict=True):
        if "weight_correction" in state:
            state["weight_correction"] = own["weight_correction"].clone()


def as_floats(saved: dict[str, Any], _: flash.FlashOptimizer) -> None:
    for state in saved["state"].values():
        if "weight_correction" in state:
            state["weight_correction"] = state["weight_correction"].float()


def shifted(saved: dict[str, Any], _: flash.FlashOptimizer) -> None:
    """Bytes at an odd address, which are no view of 16-bit integers."""
    for state in saved["state"].values():
        if "weight_correction" in state:
            pairs = state["weight_correction"]
            room = torch.zeros(pairs.numel() + 1, dtype=torch.uint8)
            state["weight_correction"] = room[1:].view(pairs.shape).copy_(pairs)


@pytest.mark.parametrize("change", [None, as_integers, as_floats, shifted])
@pytest.mark.parametrize("bits", [24, 32])
def test_they_load_as_bytes_as_integers_and_after_a_cast(change: Any, bits: int) -> None:
    params, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    if change is not None:
        change(saved, optimizer)
    twins = [nn.Parameter(torch.empty_like(p).copy_(p.detach())) for p in params]
    other = flash.FlashAdamW(twins, lr=1e-2, master_weight_bits=bits)
    other.load_state_dict(saved)
    if bits == 32:
        assert same_bits(bits_of(twins, other), bits_of(params, optimizer))
    for param, twin in zip(params, twins, strict=True):
        wanted = {32: torch.int16, 24: torch.int8}[bits]
        if param.dtype != torch.float32:
            assert other.state[twin]["weight_correction"].dtype == wanted
    train(twins, other, range(3, 5))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (torch.zeros(4, 64, 3, dtype=torch.uint8), r"shape \[4, 64, 3\], and .*\[4, 64\]"),
        (torch.zeros(4, 128, dtype=torch.uint8), r"shape \[4, 128\]"),
        (torch.zeros(4, 64, dtype=torch.uint8), r"torch.uint8 instead of torch.int16"),
        (torch.full((4, 64, 2), 0.5), r"torch.float32 instead of torch.uint8"),
        (torch.full((4, 64, 2), 256.0), r"torch.float32 instead of torch.uint8"),
    ],
    ids=["three", "joined", "one byte", "fractions", "out of range"],
)
def test_bytes_that_are_no_correction_are_refused(pairs: torch.Tensor, message: str) -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param], master_weight_bits=32)
    train([param], optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    before = bits_of([param], optimizer)
    saved["state"][0]["weight_correction"] = pairs
    with pytest.raises(
        ValueError, match=r"parameter 0 of group 0.*'weight_correction'.*" + message
    ):
        optimizer.load_state_dict(saved)
    assert same_bits(bits_of([param], optimizer), before)


def test_other_hooks_see_the_bytes_and_decoded_moments() -> None:
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param], master_weight_bits=32, compress_state_dict=False)
    train([param], optimizer, range(2))
    seen = []
    optimizer.register_state_dict_post_hook(
        lambda _, saved: seen.append({k: v.dtype for k, v in saved["state"][0].items()})
    )
    optimizer.state_dict()
    assert seen[0]["weight_correction"] == torch.uint8
    assert seen[0]["exp_avg"] == torch.float32

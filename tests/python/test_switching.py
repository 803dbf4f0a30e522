"""Every way of keeping state turns into every other one when a state dict is loaded."""

from __future__ import annotations

from itertools import product
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import master, same_bits, train
from torch import nn

CODECS: list[dict[str, Any]] = [
    {"codec": "root"},
    {"codec": "softsign"},
    {"codec": "none"},
    {"quantize": False},
]
BITS: list[Any] = [None, 16, 24, 32]


def make(param: nn.Parameter, how: dict[str, Any]) -> flash.FlashOptimizer:
    return flash.FlashAdamW([param], lr=1e-2, stochastic_rounding=True, amsgrad=True, **how)


def moments(optimizer: flash.FlashOptimizer) -> dict[str, torch.Tensor]:
    exported: dict[str, torch.Tensor] = optimizer.torch_state_dict()["state"][0]
    return {name: value for name, value in exported.items() if name != "step"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("compress", [True, False])
def test_every_codec_and_width_loads_into_every_other(dtype: torch.dtype, compress: bool) -> None:
    """B9."""
    start = torch.randn(4, 100).to(dtype)
    ways = [{**codec, "master_weight_bits": bits} for codec, bits in product(CODECS, BITS)]
    trained = []
    for how in ways:
        param = nn.Parameter(start.clone())
        optimizer = make(param, {**how, "compress_state_dict": compress})
        train([param], optimizer, range(4))
        trained.append((how, param, optimizer, optimizer.state_dict()))
    for (how, param, optimizer, saved), wanted in product(trained, ways):
        twin = nn.Parameter(param.detach().clone())
        fresh = make(twin, wanted)
        fresh.load_state_dict(saved)
        _check_moments(optimizer, fresh, how, wanted)
        _check_masters(param, optimizer, twin, fresh)
        before = twin.detach().clone()
        train([twin], fresh, range(4, 5))
        assert not torch.equal(before, twin.detach())


def _check_moments(
    old: flash.FlashOptimizer,
    new: flash.FlashOptimizer,
    how: dict[str, Any],
    wanted: dict[str, Any],
) -> None:
    before, after = moments(old), moments(new)
    assert before.keys() == after.keys() == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    to = wanted.get("codec", "none")
    for name, values in before.items():
        if to == "none" or how.get("codec") == to:
            assert same_bits(after[name], values)
            continue
        codes = flash.quantize(values, to, second_moment=name != "exp_avg")
        assert same_bits(after[name], flash.dequantize(*codes, to))


def _check_masters(
    old_param: nn.Parameter,
    old: flash.FlashOptimizer,
    new_param: nn.Parameter,
    new: flash.FlashOptimizer,
) -> None:
    before, after = master(old_param, old), master(new_param, new)
    bits = new.param_groups[0]["master_weight_bits"]
    if old_param.dtype == torch.float32 or bits == 32:
        assert same_bits(after, before)  # as many bits as there were, and zeros
    elif bits == 24:
        unit = 2.0 ** -{torch.bfloat16: 15, torch.float16: 18}[old_param.dtype]
        assert bool(((after - before).abs() <= unit * before.abs().clamp(min=2.0**-14)).all())
    else:
        assert "weight_correction" not in new.state[new_param]
        assert same_bits(after, new_param.detach().float())

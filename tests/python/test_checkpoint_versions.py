"""Files of every version of the format that was released load bit-exactly, for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import master, same_bits
from torch import Tensor, nn

FILES = sorted((Path(__file__).parents[1] / "fixtures").glob("flashoptim_cpp-format-*.pt"))
CASES = [
    pytest.param(case, id=f"{path.stem}:{name}")
    for path in FILES
    for name, case in torch.load(path, weights_only=True)["cases"].items()
]


def meaning(param: Tensor, optimizer: flash.FlashOptimizer, codec: str) -> dict[str, Tensor]:
    """fp32 master weight and moments of a parameter."""
    state = optimizer.state[param]
    values = {"master": master(param, optimizer)}
    for name in ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        if f"{name}_scale" in state:
            values[name] = flash.dequantize(state[name], state[f"{name}_scale"], codec)
        elif name in state:
            values[name] = state[name].clone()
    return values


def test_there_is_a_file_of_the_present_version() -> None:
    names = [path.name for path in FILES]
    assert f"flashoptim_cpp-format-{flash.FORMAT_VERSION}.pt" in names


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_file_means_what_it_meant(case: dict[str, Any]) -> None:
    """B10."""
    codec = case["options"].get("codec", "root")
    params = [nn.Parameter(weight) for weight in case["weights"]]
    optimizer = getattr(flash, case["optimizer"])(params, **case["options"])
    optimizer.load_state_dict(case["state_dict"])
    assert [meaning(p, optimizer, codec).keys() for p in params] == [
        values.keys() for values in case["meaning"]
    ]
    for param, values in zip(params, case["meaning"], strict=True):
        assert same_bits(meaning(param, optimizer, codec), values)
    for i, saved in case["state_dict"]["state"].items():
        if case["options"].get("compress_state_dict", True):
            # Corrections of 16 bits were saved as integers at first, and are bytes since.
            as_bytes = saved.get("weight_correction", torch.empty(0)).dtype == torch.uint8
            shown = optimizer.state_dict()["state"][i] if as_bytes else optimizer.state[params[i]]
            assert same_bits(dict(shown), saved)

    for param, gradient in zip(params, case["gradients"], strict=True):
        param.grad = gradient
    optimizer.step()
    for param, values in zip(params, case["meaning_after"], strict=True):
        assert same_bits(meaning(param, optimizer, codec), values)

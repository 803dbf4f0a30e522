"""States and weights for torch's own optimizers, which go on with them."""

from __future__ import annotations

import copy
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, bits_of, mixed_parameters, parameter, same_bits, set_gradients, train
from torch import nn

PAIRS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "adamw": (flash.FlashAdamW, torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw-amsgrad": (flash.FlashAdamW, torch.optim.AdamW, {"amsgrad": True, "maximize": True}),
    "adam": (flash.FlashAdam, torch.optim.Adam, {"weight_decay": 0.1, "eps": 1e-6}),
    "sgd-momentum": (
        flash.FlashSGD,
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    ),
    "sgd-nesterov": (flash.FlashSGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "sgd": (flash.FlashSGD, torch.optim.SGD, {}),
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 8))


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_training_moves_to_torch_in_fp32(pair: str, quantize: bool) -> None:
    """B8."""
    ours, theirs, options = PAIRS[pair]
    narrow, wide = model(), model()
    flash.cast_model(narrow)
    params, wide_params = list(narrow.parameters()), list(wide.parameters())
    optimizer = ours(params, lr=1e-2, master_weight_bits=32, quantize=quantize, **options)
    train(params, optimizer, range(5))
    before = bits_of(params, optimizer)

    wide.load_state_dict(optimizer.get_fp32_model_state_dict(narrow))
    reference = theirs(wide_params)
    reference.load_state_dict(optimizer.torch_state_dict())
    assert same_bits(bits_of(params, optimizer), before)
    group = reference.param_groups[0]
    assert {**group, **options, "lr": 1e-2} == group
    assert group.keys() - {"initial_lr"} == theirs(wide_params).param_groups[0].keys()
    for param, twin in zip(params, wide_params, strict=True):
        for name, value in reference.state[twin].items():
            codes, scale = (
                optimizer.state[param].get(name),
                optimizer.state[param].get(f"{name}_scale"),
            )
            if scale is not None:
                codes = flash.dequantize(codes, scale)
            assert value is None or same_bits(value, codes)

    start = [twin.detach().clone() for twin in wide_params]
    for step in range(5, 8):
        set_gradients(params, step)
        for param, twin in zip(params, wide_params, strict=True):
            twin.grad = param.grad.float()
        optimizer.step()
        reference.step()
    after = optimizer.get_fp32_model_state_dict(narrow)
    for twin, first, (name, end) in zip(wide_params, start, after.items(), strict=True):
        off, moved = float((end - twin.detach()).norm()), float((twin.detach() - first).norm())
        assert off <= (0.05 if quantize else 2e-5) * moved, name


@pytest.mark.parametrize("rule", RULES)
def test_exported_states_come_back(rule: str) -> None:
    make, options = RULES[rule]
    params = mixed_parameters()
    optimizer = make(params, **options)
    train(params, optimizer, range(3))
    if rule == "sgdw-nesterov":
        with pytest.raises(ValueError, match=r"parameter group 0: weight_decay=0.1 is decoupled"):
            optimizer.torch_state_dict()
        optimizer.param_groups[0]["weight_decay"] = 0.0
    exported = copy.deepcopy(optimizer.torch_state_dict())
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    back = make(twins, **{**options, "decouple_lr": False} if "decouple_lr" in options else options)
    back.load_state_dict(exported)
    for param, twin in zip(params, twins, strict=True):
        ours, theirs = dict(optimizer.state[param]), dict(back.state[twin])
        for name in (
            "weight_correction",
            "stream_key",
            "step",
        ):  # torch's SGD and Lion do not count
            ours.pop(name, None), theirs.pop(name, None)
        assert same_bits(ours, theirs)
    if rule == "adamw-decouple-lr":
        assert back.param_groups[0]["weight_decay"] == 1.0  # 1e-3 / 1e-3, times the learning rate


def test_unused_and_complex_parameters_and_several_groups_are_exported_as_torch_keeps_them() -> (
    None
):
    params = [
        parameter(4, 64),
        parameter(2, 2),
        nn.Parameter(torch.randn(3, 8, dtype=torch.complex64)),
    ]
    groups = [{"params": params[:1], "lr": 0.5}, {"params": params[1:]}]
    optimizer = flash.FlashAdamW(groups)
    train([params[0], params[2]], optimizer, range(2))
    exported = optimizer.torch_state_dict()
    assert exported["state"].keys() == {0, 2}
    assert [group["params"] for group in exported["param_groups"]] == [[0], [1, 2]]
    assert [group["lr"] for group in exported["param_groups"]] == [0.5, 1e-3]
    assert exported["state"][2]["exp_avg"].dtype == torch.complex64
    reference = torch.optim.AdamW([{"params": params[:1]}, {"params": params[1:]}])
    reference.load_state_dict(exported)
    train(params, reference, range(2, 4))


def test_lion_is_exported_for_lion_pytorch_which_cannot_maximize() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashLion([param], weight_decay=0.1)
    train([param], optimizer, range(2))
    exported = optimizer.torch_state_dict()
    group = exported["param_groups"][0]
    assert group == {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1, "params": [0]}
    assert exported["state"][0].keys() == {"exp_avg"}
    optimizer.param_groups[0]["maximize"] = True
    with pytest.raises(ValueError, match=r"maximize=True is not in lion_pytorch.Lion"):
        optimizer.torch_state_dict()

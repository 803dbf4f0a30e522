"""State dicts and states that do not fit are refused by name and remedy, and nothing changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, parameter, same_bits, set_gradients, train
from torch import nn

Change = Callable[[dict[str, Any]], Any]


def put(name: str, make: Callable[[torch.Tensor], Any]) -> Change:
    """Replaces an entry of the second parameter's state."""

    def change(saved: dict[str, Any]) -> None:
        state = saved["state"][1]
        state[name] = make(state.get(name))

    return change


def drop(name: str) -> Change:
    return lambda saved: saved["state"][1].pop(name)


def in_group(**values: Any) -> Change:
    return lambda saved: saved["param_groups"][0].update(values)


def without(*names: str) -> Change:
    return lambda saved: [saved["param_groups"][0].pop(name) for name in names]


PARAMETER = r"parameter 1 of group 0 \(second\): .*"
BAD: dict[str, tuple[Change, str]] = {
    "newer format": (in_group(flashoptim_format=2), "format version 2.*reads version 1"),
    "bad learning rate": (in_group(lr=float("nan")), "parameter group 0: lr must be .* not nan"),
    "bad initial learning rate": (
        in_group(initial_lr=float("nan")),
        "parameter group 0: initial_lr must be .* not nan",
    ),
    "fewer parameters": (
        in_group(params=[0]),
        r"groups of \[1\] parameters and the optimizer of \[2\]",
    ),
    "more groups": (
        lambda saved: saved["param_groups"].append(saved["param_groups"][0]),
        r"groups of \[2, 2\] parameters",
    ),
    "state of nobody": (lambda saved: saved["state"].update({7: {}}), r"state of \[7\]"),
    "another shape": (put("exp_avg", lambda t: t[:4]), PARAMETER + r"'exp_avg' .*shape \[4, 64\]"),
    "transposed": (put("exp_avg_sq", lambda t: t.t()), PARAMETER + r"'exp_avg_sq' .*\[64, 8\]"),
    "another scale": (
        put("exp_avg_scale", lambda t: t[:4]),
        PARAMETER + r"'exp_avg_scale' is torch.float32 \[4, 1\], and .*\[8, 1\]",
    ),
    "scale as bf16": (
        put("exp_avg_sq_scale", lambda t: t.bfloat16()),
        PARAMETER + "'exp_avg_sq_scale' is torch.bfloat16 .*before anything cast",
    ),
    "scale as a number": (
        put("exp_avg_scale", lambda _: 1.0),
        PARAMETER + "'exp_avg_scale' is float,",
    ),
    "codes as fractions": (
        put("exp_avg", lambda t: t.float() / 3),
        PARAMETER + "'exp_avg' .*torch.float32 instead of torch.int8 and cannot be restored",
    ),
    "codes out of range": (put("exp_avg", lambda t: t.float() * 1000), PARAMETER + "'exp_avg'"),
    "unsigned codes": (put("exp_avg", lambda t: t.view(torch.uint8)), PARAMETER + "torch.uint8"),
    "no scale": (
        drop("exp_avg_scale"),
        PARAMETER + "'exp_avg' .*torch.int8 without 'exp_avg_scale'",
    ),
    "no codes": (drop("exp_avg"), PARAMETER + "'exp_avg_scale' but no 'exp_avg'"),
    "no second moment": (
        lambda saved: [drop(n)(saved) for n in ("exp_avg_sq", "exp_avg_sq_scale")],
        PARAMETER + "no 'exp_avg_sq'; load a state dict of the same optimizer class",
    ),
    "no step": (drop("step"), PARAMETER + "no 'step'"),
    "half a step": (put("step", lambda _: 2.5), PARAMETER + "'step' .*whole number, not 2.5"),
    "endless steps": (put("step", lambda _: float("inf")), PARAMETER + "'step' .*not inf"),
    "step as NaN": (put("step", lambda _: torch.tensor(float("nan"))), PARAMETER + "'step' .*nan"),
    "negative step": (put("step", lambda _: -1), PARAMETER + "'step' .*not -1"),
    "many steps": (put("step", lambda _: torch.ones(2)), PARAMETER + "'step' .*whole number"),
    "step as a word": (put("step", lambda _: "three"), PARAMETER + "'step' .*not 'three'"),
    "stream key as NaN": (put("stream_key", lambda _: float("nan")), PARAMETER + "'stream_key'"),
    "not a tensor": (put("exp_avg", lambda _: [1, 2]), PARAMETER + "'exp_avg' .*list"),
    "unknown entry": (put("momentum", lambda _: 1), PARAMETER + "'momentum', which this optimizer"),
    "correction as bf16 of 16 bits": (
        lambda saved: [
            put("weight_correction", lambda t: t.bfloat16())(saved),
            saved["state"][0].pop("weight_correction"),
            in_group(master_weight_bits=32)(saved),
        ],
        PARAMETER + "'weight_correction' .*torch.bfloat16 instead of torch.int16",
    ),
    "correction as bf16 of unknown width": (
        lambda saved: [
            put("weight_correction", lambda t: t.bfloat16())(saved),
            without("master_weight_bits")(saved),
        ],
        PARAMETER + "'weight_correction' .*torch.bfloat16",
    ),
    "codes of nobody knows which codec": (without("codec"), PARAMETER + r".*'codec'"),
    "codes without a version": (without("flashoptim_format"), "does not say 'flashoptim_format'"),
    "correction of another width": (
        in_group(master_weight_bits=32),
        r"parameter 0 of group 0 \(first\): .*torch.int8.*master_weight_bits=32; make",
    ),
    "codes as floats without scales": (
        lambda saved: [put("exp_avg", lambda t: t.float())(saved), drop("exp_avg_scale")(saved)],
        PARAMETER + "its group says quantize=True.*'exp_avg' without 'exp_avg_scale'",
    ),
    "negative second moment": (
        lambda saved: [
            put("exp_avg_sq", lambda t: -t.float())(saved),
            drop("exp_avg_sq_scale")(saved),
            in_group(compress_state_dict=False)(saved),
        ],
        PARAMETER + "'exp_avg_sq' .*negative",
    ),
}


def two_parameters() -> list[nn.Parameter]:
    return [parameter(8, 64, dtype=torch.bfloat16) for _ in range(2)]


def optimizer_of(params: list[nn.Parameter], make: Any = flash.FlashAdamW, **options: Any) -> Any:
    return make(list(zip(("first", "second"), params, strict=True)), **options)


@pytest.mark.parametrize("case", BAD)
def test_a_state_dict_that_does_not_fit_is_refused_and_changes_nothing(case: str) -> None:
    change, message = BAD[case]
    if "codec" in case or "version" in case:
        message = message.replace(PARAMETER, r"parameter 0 of group 0 \(first\): .*")
    params = two_parameters()
    optimizer = optimizer_of(params)
    train(params, optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    change(saved)
    before, groups = bits_of(params, optimizer), copy.deepcopy(optimizer.param_groups)
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(saved)
    assert same_bits(bits_of(params, optimizer), before)
    assert [{**g, "params": 0} for g in groups] == [
        {**g, "params": 0} for g in optimizer.param_groups
    ]
    train(params, optimizer, range(3, 4))


@pytest.mark.parametrize(
    ("saver", "loader", "message"),
    [
        (flash.FlashSGD, flash.FlashAdamW, "'momentum_buffer', which this optimizer does not keep"),
        (flash.FlashAdamW, flash.FlashSGD, "'exp_avg'"),
        (flash.FlashLion, flash.FlashAdamW, "no 'exp_avg_sq'"),
        (flash.FlashAdamW, flash.FlashLion, "'exp_avg_sq'"),
        (torch.optim.SGD, flash.FlashAdamW, "'momentum_buffer'"),
        (torch.optim.RMSprop, flash.FlashAdamW, "'square_avg'"),
        (torch.optim.AdamW, flash.FlashLion, "'exp_avg_sq'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_state_dict_of_another_rule_is_refused(saver: Any, loader: Any, message: str) -> None:
    params = two_parameters()
    options = {"momentum": 0.9} if "SGD" in saver.__name__ else {}
    source = saver(list(zip(("first", "second"), params, strict=True)), **options)
    train(params, source, range(2))
    with pytest.raises(
        ValueError, match=rf"parameter 0 of group 0 \(first\): its saved .*{message}"
    ):
        optimizer_of(params, loader).load_state_dict(source.state_dict())


def test_a_state_dict_of_another_model_is_refused() -> None:
    params = two_parameters()
    source = optimizer_of(params)
    train(params, source, range(2))
    others = [parameter(8, 64), parameter(8, 128, dtype=torch.bfloat16)]
    with pytest.raises(ValueError, match=r"\(first\): .*16-bit parameter, and this one is float32"):
        optimizer_of(others).load_state_dict(source.state_dict())
    others[0] = parameter(8, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"\(second\): .*\[8, 64\], and the parameter \[8, 128\]"):
        optimizer_of(others).load_state_dict(source.state_dict())


def test_something_that_is_no_state_dict_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"'param_groups'; this one has \['bias', 'weight'\]"):
        flash.FlashAdamW(model.parameters()).load_state_dict(model.state_dict())


STATE_CHANGES: dict[str, Change] = {
    "dtype": lambda state: state.update(exp_avg=state["exp_avg"].float()),
    "shape": lambda state: state.update(exp_avg=state["exp_avg"][4:]),
    "scale": lambda state: state.update(exp_avg_scale=state["exp_avg_scale"][4:]),
    "strides": lambda state: state.update(exp_avg=state["exp_avg"].t().contiguous().t()),
    "step": lambda state: state.update(step=3),
    "device": lambda state: state.update(exp_avg=state["exp_avg"].to("meta")),
    "missing": lambda state: state.pop("exp_avg_scale"),
}


@pytest.mark.parametrize("change", STATE_CHANGES)
def test_a_state_changed_by_hand_is_refused_before_anything_is_written(change: str) -> None:
    params = two_parameters()
    optimizer = optimizer_of(params)
    train(params, optimizer, range(2))
    STATE_CHANGES[change](optimizer.state[params[1]])
    before = [p.detach().clone() for p in params]
    set_gradients(params, 2)
    refused = (ValueError, NotImplementedError)  # the latter is torch's, of tensors without data
    with pytest.raises(refused, match=r"parameter 1 of group 0 \(second\): "):
        optimizer.step()
    assert same_bits(before, [p.detach() for p in params])


def test_a_parameter_replaced_with_another_shape_is_refused_until_its_state_is_too() -> None:
    params = two_parameters()
    optimizer = optimizer_of(params)
    train(params, optimizer, range(2))
    smaller = nn.Parameter(params[1].detach()[:4].clone())
    state = optimizer.state.pop(params[1])
    optimizer.param_groups[0]["params"][1] = smaller
    optimizer.state[smaller] = state
    set_gradients([params[0], smaller], 2)
    with pytest.raises(ValueError, match=r"in its state is .*\[8, 64\].*should be .*\[4, 64\]"):
        optimizer.step()
    for name, value in state.items():
        if value.dim():
            state[name] = value[:4].clone()
    before = smaller.detach().clone()
    optimizer.step()
    assert not same_bits(before, smaller.detach())

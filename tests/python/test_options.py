"""Constructor arguments, defaults, groups with their own options, and values that are refused."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, parameter, same_bits, set_gradients, train
from flashoptim_cpp import _C
from flashoptim_cpp._state import check_device
from torch import nn

CLASSES = [flash.FlashSGD, flash.FlashSGDW, flash.FlashAdam, flash.FlashAdamW, flash.FlashLion]
DEPARTURES: dict[str, Any] = {
    "lr": 0.25,
    "momentum": 0.5,
    "dampening": 0.1,
    "betas": (0.8, 0.95),
    "eps": 1e-6,
    "weight_decay": 0.05,
    "amsgrad": True,
    "maximize": True,
    "decouple_lr": True,
    "quantize": False,
    "codec": "softsign",
    "master_weight_bits": 32,
    "stochastic_rounding": True,
    "nonfinite": "skip",
    "seed": 7,
    "compress_state_dict": False,
    "check_numerics": True,
    "foreach": True,
    "fused": True,
}


@pytest.mark.parametrize("rule", CLASSES)
def test_every_constructor_argument_is_in_defaults_and_makes_the_same_optimizer(rule: Any) -> None:
    """C7."""
    names = inspect.signature(rule).parameters.keys() - {"params"}
    given = {name: value for name, value in DEPARTURES.items() if name in names}
    optimizer = rule([parameter(4, 8)], **given)
    assert optimizer.defaults.keys() == names
    assert {name: optimizer.defaults[name] for name in given} == given
    again = type(optimizer)([parameter(4, 8)], **optimizer.defaults)
    assert again.defaults == optimizer.defaults
    assert [again.param_groups[0][name] for name in names] == [
        optimizer.param_groups[0][name] for name in names
    ]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (flash.FlashSGD, torch.optim.SGD),
        (flash.FlashAdam, torch.optim.Adam),
        (flash.FlashAdamW, torch.optim.AdamW),
    ],
)
def test_defaults_are_those_of_torch(ours: Any, theirs: Any) -> None:
    mine, others = ours([parameter(2)]).defaults, theirs([parameter(2)]).defaults
    assert {k: v for k, v in others.items() if k != "decoupled_weight_decay"} == {
        k: v for k, v in mine.items() if k in others
    }


def test_torch_scripts_may_pass_positional_arguments_up_to_weight_decay() -> None:
    adamw = flash.FlashAdamW([parameter(2)], 0.1, (0.5, 0.6), 1e-4, 0.2)
    assert [adamw.defaults[k] for k in ("lr", "betas", "eps", "weight_decay")] == [
        0.1,
        (0.5, 0.6),
        1e-4,
        0.2,
    ]
    sgd = flash.FlashSGD([parameter(2)], 0.1, 0.9, 0.0, 0.2, True)
    assert [sgd.defaults[k] for k in ("lr", "momentum", "weight_decay", "nesterov")] == [
        0.1,
        0.9,
        0.2,
        True,
    ]


BAD = [
    (flash.FlashAdamW, {"lr": -1.0}, ValueError, "lr must be .* not -1"),
    (flash.FlashAdamW, {"lr": math.nan}, ValueError, "lr must be .* not nan"),
    (flash.FlashAdamW, {"lr": math.inf}, ValueError, "lr must be .* not inf"),
    (flash.FlashAdamW, {"lr": "fast"}, TypeError, "lr must be a number .* not 'fast'"),
    (flash.FlashAdamW, {"lr": None}, TypeError, "lr must be a number .* not None"),
    (flash.FlashAdamW, {"lr": torch.ones(2)}, TypeError, "lr must be a number"),
    (flash.FlashAdamW, {"betas": (1.0, 0.9)}, ValueError, r"betas\[0\] .* not 1"),
    (flash.FlashAdamW, {"betas": (0.9, -0.1)}, ValueError, r"betas\[1\] .* not -0.1"),
    (flash.FlashAdamW, {"betas": (0.9, math.nan)}, ValueError, r"betas\[1\] .* not nan"),
    (flash.FlashAdamW, {"betas": 0.9}, TypeError, "betas must be two numbers, not 0.9"),
    (flash.FlashAdamW, {"eps": -1e-8}, ValueError, "eps must be .* not -1e-08"),
    (flash.FlashAdamW, {"eps": 1e31}, ValueError, "eps must be .* not 1e\\+31"),
    (flash.FlashAdamW, {"weight_decay": -0.1}, ValueError, "weight_decay must be .* not -0.1"),
    (flash.FlashLion, {"betas": (0.9, 1.5)}, ValueError, r"betas\[1\] .* not 1.5"),
    (flash.FlashSGD, {"momentum": -0.9}, ValueError, "momentum must be .* not -0.9"),
    (flash.FlashSGD, {"dampening": math.nan}, ValueError, "dampening must be .* not nan"),
    (flash.FlashSGD, {"nesterov": True}, ValueError, "nesterov needs a momentum"),
    (flash.FlashSGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, ValueError, "nesterov"),
    (flash.FlashSGD, {"codec": "zip"}, ValueError, "codec must be one of .* not 'zip'"),
    (flash.FlashSGD, {"master_weight_bits": 20}, ValueError, "master_weight_bits .* not 20"),
    (flash.FlashSGD, {"nonfinite": "ignore"}, ValueError, "nonfinite .* not 'ignore'"),
    (flash.FlashSGD, {"seed": -1}, ValueError, "seed must be .* not -1"),
    (flash.FlashSGD, {"seed": 0.5}, ValueError, "seed must be .* not 0.5"),
    (flash.FlashAdamW, {"differentiable": True}, NotImplementedError, "differentiable=True"),
    (flash.FlashAdamW, {"momentum": 0.9}, TypeError, "momentum"),
]


@pytest.mark.parametrize(
    ("initial_lr", "error", "message"),
    [
        (math.nan, ValueError, "initial_lr must be .* not nan"),
        (-1e-3, ValueError, "initial_lr must be .* not -0.001"),
        (torch.tensor(math.inf), ValueError, "initial_lr must be .* not inf"),
        (torch.ones(2), TypeError, "initial_lr must be a number or a one-element tensor"),
        ("first", TypeError, "initial_lr must be a number .* not 'first'"),
    ],
    ids=str,
)
def test_a_bad_initial_learning_rate_is_refused_when_added_and_when_set(
    initial_lr: Any, error: Any, message: str
) -> None:
    group = {"params": [parameter(4, 64)], "initial_lr": initial_lr}
    with pytest.raises(error, match=message):
        flash.FlashAdamW([group], decouple_lr=True)
    optimizer = flash.FlashAdamW([parameter(4, 64)], decouple_lr=True)
    train(optimizer.param_groups[0]["params"], optimizer, range(1))
    optimizer.param_groups[0]["initial_lr"] = initial_lr
    with pytest.raises(error, match=message):
        optimizer.step()


def test_an_initial_learning_rate_may_be_a_tensor() -> None:
    ends = []
    for initial_lr in (0.5, torch.tensor(0.5)):
        param = nn.Parameter(torch.ones(4, 64))
        group = {"params": [param], "initial_lr": initial_lr}
        optimizer = flash.FlashLion([group], lr=0.25, weight_decay=0.5, decouple_lr=True)
        param.grad = torch.zeros_like(param)
        optimizer.step()
        ends.append(param.detach())
    assert torch.equal(ends[0], torch.full((4, 64), 0.75))
    assert torch.equal(ends[0], ends[1])


@pytest.mark.parametrize(("rule", "options", "error", "message"), BAD, ids=str)
def test_a_bad_option_is_refused_by_name_and_value(
    rule: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rule([parameter(2)], **options)


def test_a_bad_option_of_an_added_group_adds_nothing() -> None:
    optimizer = flash.FlashAdamW([parameter(2)])
    with pytest.raises(ValueError, match="parameter group 1: lr must be"):
        optimizer.add_param_group({"params": [parameter(2)], "lr": -1.0})
    assert len(optimizer.param_groups) == 1


def test_a_bad_option_set_later_is_refused_before_anything_is_written() -> None:
    params = [parameter(4, 8), parameter(4, 8)]
    optimizer = flash.FlashAdamW([{"params": [params[0]]}, {"params": [params[1]]}])
    train(params, optimizer, range(2))
    before = [p.detach().clone() for p in params]
    optimizer.param_groups[1]["lr"] = math.nan
    with pytest.raises(ValueError, match=r"parameter group 1: lr .* nan"):
        train(params, optimizer, range(2, 3))
    assert same_bits(before, [p.detach() for p in params])
    optimizer.param_groups[1]["lr"] = 1e-3
    train(params, optimizer, range(2, 3))
    assert not same_bits(before[0], params[0].detach())


@pytest.mark.parametrize(
    ("param", "error", "message"),
    [
        (parameter(2, 2, dtype=torch.float64), TypeError, "dtype is torch.float64"),
        (nn.Parameter(torch.zeros(2, dtype=torch.complex128)), TypeError, "torch.complex128"),
        (nn.Parameter(torch.zeros(2, 2, device="meta")), NotImplementedError, "meta device"),
        (nn.Parameter(torch.zeros(2, 4)[:, ::2]), ValueError, r"holes or overlaps.*contiguous\(\)"),
        (nn.Parameter(torch.zeros(4, 1).expand(4, 4)), ValueError, "holes or overlaps"),
        (nn.Parameter(torch.eye(3).to_sparse()), TypeError, "layout is torch.sparse_coo"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_parameter_that_cannot_be_stepped_is_refused_by_name(
    param: nn.Parameter, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"parameter 1 of group 0: .*{message}"):
        flash.FlashAdamW([parameter(2), param])
    with pytest.raises(error, match=r"parameter 1 of group 0 \(head.weight\): "):
        flash.FlashAdamW([("body.weight", parameter(2)), ("head.weight", param)])


def test_a_tensor_of_a_device_without_a_backend_is_refused_with_the_reason() -> None:
    if _C.cuda_available():
        pytest.skip("this machine steps CUDA tensors")
    with pytest.raises(NotImplementedError, match=re.escape(_C.cuda_status())):
        check_device(torch.device("cuda:0"))
    with pytest.raises(NotImplementedError, match=r"it is on xpu; CPU tensors can be stepped"):
        check_device(torch.device("xpu"))


class Wrapped(torch.Tensor):
    """A subclass that has no memory of its own, as sharded and quantized tensors."""

    def __tensor_flatten__(self) -> None: ...


def test_a_tensor_without_memory_of_its_own_is_refused() -> None:
    param = nn.Parameter(torch.zeros(2, 2).as_subclass(Wrapped))
    with pytest.raises(TypeError, match="it is a Wrapped; plain tensors"):
        flash.FlashAdamW([param])


def test_a_frozen_parameter_may_be_of_any_dtype() -> None:
    frozen = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    param = parameter(4, 8)
    optimizer = flash.FlashAdamW([frozen, param])
    train([param], optimizer, range(2))
    assert frozen not in optimizer.state


def test_a_group_may_differ_in_every_option() -> None:
    """C9."""
    groups = [
        {},
        {"quantize": False},
        {"codec": "softsign"},
        {"codec": "none"},
        {"master_weight_bits": 32},
        {"master_weight_bits": 16, "stochastic_rounding": True},
        {"amsgrad": True},
        {"lr": 0.5},
        {"betas": (0.5, 0.5)},
    ]
    params = [parameter(4, 64, dtype=torch.bfloat16) for _ in groups]
    with torch.no_grad():
        for param in params[1:]:
            param.copy_(params[0])
    optimizer = flash.FlashAdamW(
        [{"params": [p], **group} for p, group in zip(params, groups, strict=True)], lr=1e-2
    )
    for step in range(3):
        for param in params:
            set_gradients([param], step)
        optimizer.step()

    def dtype(group: int, name: str) -> torch.dtype | None:
        value = optimizer.state[params[group]].get(name)
        return None if value is None else value.dtype

    assert [dtype(g, "exp_avg") for g in range(5)] == [
        torch.int8,
        torch.float32,
        torch.int8,
        torch.float32,
        torch.int8,
    ]
    assert [dtype(g, "weight_correction") for g in (0, 4, 5)] == [torch.int8, torch.int16, None]
    assert dtype(6, "max_exp_avg_sq") == torch.uint8
    assert dtype(0, "max_exp_avg_sq") is None
    codes = [optimizer.state[params[g]]["exp_avg"] for g in (0, 2)]
    assert not torch.equal(*codes)
    moved = [float((p - params[0]).detach().float().abs().max()) for p in params]
    assert moved[7] > 0.1
    assert moved[8] > 0
    report = optimizer.memory_report().parameters
    assert [row.codec for row in report[:5]] == ["root", "none", "softsign", "none", "root"]
    assert [row.master_weight_bits for row in report[3:6]] == [24, 32, 16]


@pytest.mark.parametrize("change", ["quantize", "codec", "master_weight_bits"])
def test_options_changed_after_steps_convert_the_state(change: str) -> None:
    """B9."""
    values = {
        "quantize": (True, False),
        "codec": ("root", "softsign"),
        "master_weight_bits": (24, 32),
    }[change]
    param = parameter(4, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param], **{change: values[0]})
    train([param], optimizer, range(3))
    before = dict(optimizer.state[param])
    optimizer.param_groups[0][change] = values[1]
    state = optimizer.state_dict()["state"][0]
    exact = flash.FlashAdamW([param], **{change: values[1]})
    exact.load_state_dict(optimizer.state_dict())
    assert same_bits(state, exact.state_dict()["state"][0])
    if change == "codec":
        values_before = flash.dequantize(before["exp_avg"], before["exp_avg_scale"], "root")
        values_after = flash.dequantize(state["exp_avg"], state["exp_avg_scale"], "softsign")
        assert float((values_before - values_after).abs().max()) < 0.02
    train([param], optimizer, range(3, 5))
    assert float(optimizer.state[param]["step"]) == 5


def test_a_momentum_switched_on_later_gets_its_buffer() -> None:
    param = parameter(4, 64)
    optimizer = flash.FlashSGD([param], lr=0.1)
    train([param], optimizer, range(2))
    assert "momentum_buffer" not in optimizer.state[param]
    optimizer.param_groups[0]["momentum"] = 0.9
    train([param], optimizer, range(2, 4))
    assert optimizer.state[param]["momentum_buffer"].dtype == torch.int8


@pytest.mark.parametrize("name", RULES)
def test_a_tensor_as_learning_rate_is_read_at_each_step(name: str) -> None:
    rule, options = RULES[name]
    results = []
    for lr in (1e-2, torch.tensor(1e-2, dtype=torch.float64)):
        torch.manual_seed(0)
        param = parameter(4, 64)
        optimizer = rule([param], lr=lr, **options)
        train([param], optimizer, range(2))
        if isinstance(lr, torch.Tensor):
            lr.fill_(1e-3)
        else:
            optimizer.param_groups[0]["lr"] = 1e-3
        train([param], optimizer, range(2, 4))
        results.append(param.detach())
    assert same_bits(results[0], results[1])


def test_betas_may_be_a_list_or_tensors() -> None:
    results = []
    for betas in ((0.5, 0.75), [0.5, 0.75], (torch.tensor(0.5), torch.tensor(0.75))):
        torch.manual_seed(0)
        param = parameter(4, 64)
        train([param], flash.FlashAdamW([param], betas=betas), range(3))
        results.append(param.detach())
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_weights_without_correction_are_warned_of_once() -> None:
    for bits in (None, 16):
        params = [parameter(4, 8, dtype=torch.bfloat16), parameter(4, 8, dtype=torch.float16)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer = flash.FlashAdamW(params, master_weight_bits=bits, stochastic_rounding=False)
            train(params, optimizer, range(3))
        assert [str(w.message).split(" is ")[0] for w in caught] == ["parameter 0 of group 0"]
        assert "below half a unit in the last place are lost" in str(caught[0].message)
        assert "stochastic_rounding=True" in str(caught[0].message)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.bfloat16, {}),
        (torch.bfloat16, {"master_weight_bits": None}),
        (torch.bfloat16, {"stochastic_rounding": False}),
        (torch.float32, {"master_weight_bits": None, "stochastic_rounding": False}),
        (torch.float32, {"master_weight_bits": 24, "stochastic_rounding": False}),
    ],
)
def test_other_weights_are_not_warned_of(dtype: torch.dtype, options: dict[str, Any]) -> None:
    params = [parameter(4, 8, dtype=dtype)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(params, flash.FlashAdamW(params, **options), range(2))

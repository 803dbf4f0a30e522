"""Scripts for the package `flashoptim` run with only the import changed.

What differs on purpose is listed in docs/migrating.md.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, master, parameter, same_bits, set_gradients, train
from torch import nn

REQUIRED = inspect.Parameter.empty
KEPT = [
    ("quantize", True),
    ("compress_state_dict", True),
    ("master_weight_bits", 24),
    ("check_numerics", False),
    ("fused", True),
]
SGD = [
    ("params", REQUIRED),
    ("lr", 1e-3),
    ("momentum", 0.0),
    ("dampening", 0.0),
    ("weight_decay", 0.0),
    ("nesterov", False),
]
ADAM = [("params", REQUIRED), ("lr", 1e-3), ("betas", (0.9, 0.999)), ("eps", 1e-8)]
# Every public name of versions 0.1.3 and 0.1.4, and its arguments in their order. The defaults are
# those of 0.1.4; of 0.1.3 compress_state_dict differs.
SIGNATURES: dict[str, list[tuple[str, Any]]] = {
    "FlashSGD": [*SGD, *KEPT],
    "FlashSGDW": [*SGD, ("decouple_lr", False), *KEPT],
    "FlashAdam": [*ADAM, ("weight_decay", 0.0), *KEPT],
    "FlashAdamW": [*ADAM, ("weight_decay", 1e-2), ("decouple_lr", False), *KEPT],
    "FlashLion": [
        ("params", REQUIRED),
        ("lr", 1e-3),
        ("betas", (0.9, 0.99)),
        ("weight_decay", 0),
        ("decouple_lr", False),
        *KEPT,
    ],
    "cast_model": [
        ("model", REQUIRED),
        ("dtype", torch.bfloat16),
        ("selective", True),
        ("full_precision_layers", None),
        ("full_precision_recast_layers", None),
    ],
    "compute_ecc_bits": [
        ("fp32_param", REQUIRED),
        ("narrow_param", REQUIRED),
        ("master_bytewidth", 4),
    ],
    "reconstruct_fp32_param": [("param", REQUIRED), ("error_bits", REQUIRED)],
    "FlashOptimizer.step": [("self", REQUIRED), ("closure", None)],
    "FlashOptimizer.step_param": [("self", REQUIRED), ("p", REQUIRED), ("group", None)],
    "FlashOptimizer.zero_grad": [("self", REQUIRED), ("set_to_none", True)],
    "FlashOptimizer.add_param_group": [("self", REQUIRED), ("param_group", REQUIRED)],
    "FlashOptimizer.state_dict": [("self", REQUIRED)],
    "FlashOptimizer.load_state_dict": [("self", REQUIRED), ("state_dict", REQUIRED)],
    "FlashOptimizer.recompute_param_stats": [("self", REQUIRED)],
    "FlashOptimizer.get_fp32_model_state_dict": [("self", REQUIRED), ("model", REQUIRED)],
    "FlashOptimizer.set_fp32_model_state_dict": [
        ("self", REQUIRED),
        ("model", REQUIRED),
        ("fp32_state_dict", REQUIRED),
    ],
}
# fused=True asks for what is always done here, and torch's default is None.
OTHER_DEFAULTS = {("fused", True): None}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_same_names_order_and_defaults(name: str) -> None:
    found: Any = flash
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters.values())
    wanted = [(key, OTHER_DEFAULTS.get((key, value), value)) for key, value in SIGNATURES[name]]
    shared = parameters[: len(wanted)]
    assert [(p.name, p.default) for p in shared] == wanted
    assert {p.kind for p in shared} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert {p.kind for p in parameters[len(wanted) :]} <= {inspect.Parameter.KEYWORD_ONLY}


def test_the_other_public_names_are_there() -> None:
    assert issubclass(flash.NumericsError, RuntimeError)
    assert isinstance(flash.__version__, str)
    for name in ("FlashSGD", "FlashSGDW", "FlashAdam", "FlashAdamW", "FlashLion"):
        assert issubclass(getattr(flash, name), flash.FlashOptimizer)
    assert {name.split(".")[0] for name in SIGNATURES} | {"NumericsError"} <= set(flash.__all__)


def test_gradient_release_has_the_same_arguments() -> None:
    assert {"enable_gradient_release", "GradientReleaseHandle"} <= set(flash.__all__)
    parameters = inspect.signature(flash.enable_gradient_release).parameters
    assert list(parameters)[:2] == ["model", "optimizer"]
    for name in ("grad_scaler", "pre_step"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is None
    assert callable(flash.GradientReleaseHandle.remove)


@pytest.mark.parametrize("name", ["FlashSGD", "FlashSGDW", "FlashAdam", "FlashAdamW", "FlashLion"])
def test_a_step_of_each_parameter_is_a_step_of_all(name: str) -> None:
    one = [parameter(4, 8), parameter(5, 64), parameter(7)]
    other = [nn.Parameter(param.detach().clone()) for param in one]
    optimizers = []
    for params in (one, other):
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 1e-2, "weight_decay": 0.1}]
        optimizers.append(getattr(flash, name)(groups))
    for step in range(3):
        for params in (one, other):
            set_gradients(params, step)
            params[0].grad = None if step == 1 else params[0].grad
        optimizers[0].step()
        for param in other:
            optimizers[1].step_param(param)
        assert same_bits(bits_of(one, optimizers[0]), bits_of(other, optimizers[1]))
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    for param in other:
        optimizers[1].step_param(param, optimizers[1].param_groups[param is other[2]])
    optimizers[0].step()
    assert same_bits(bits_of(one, optimizers[0]), bits_of(other, optimizers[1]))


def test_a_step_of_a_parameter_that_the_optimizer_has_not_is_refused() -> None:
    param = parameter(4, 8)
    optimizer = flash.FlashAdamW([{"params": [param]}, {"params": [parameter(3)]}])
    with pytest.raises(ValueError, match=r"shape \[2, 8\] is in none of the optimizer's groups"):
        optimizer.step_param(parameter(2, 8))
    with pytest.raises(ValueError, match="not in the group given"):
        optimizer.step_param(param, optimizer.param_groups[1])


def test_every_argument_can_be_given_by_position() -> None:
    arguments = (0.5, (0.8, 0.9), 1e-6, 0.1, True, False, False, 32, True, False)
    optimizer = flash.FlashAdamW([parameter(4, 8)], *arguments)
    names = [name for name, _ in SIGNATURES["FlashAdamW"][1:]]
    assert [optimizer.defaults[name] for name in names] == list(arguments)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("FlashAdamW", {"lr": -1.0}),
    ("FlashAdamW", {"eps": -1e-8}),
    ("FlashAdamW", {"betas": (1.5, 0.9)}),
    ("FlashAdam", {"betas": (0.9, -0.1)}),
    ("FlashAdam", {"weight_decay": -0.1}),
    ("FlashLion", {"betas": (-0.1, 0.9)}),
    ("FlashLion", {"weight_decay": -0.1}),
    ("FlashSGD", {"nesterov": True}),
    ("FlashSGDW", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    ("FlashSGD", {"weight_decay": -0.1}),
    ("FlashSGD", {"master_weight_bits": 20}),
]


@pytest.mark.parametrize(("name", "options"), REFUSED, ids=str)
def test_what_is_a_value_error_there_is_one_here(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        getattr(flash, name)([parameter(4, 8)], **options)


def test_the_helpers_raise_value_errors_as_there() -> None:
    fp32 = torch.randn(4, 8)
    narrow = fp32.bfloat16()
    bits = flash.compute_ecc_bits(fp32, narrow)
    for call in (
        lambda: flash.reconstruct_fp32_param(fp32, bits),
        lambda: flash.reconstruct_fp32_param(narrow, bits.float()),
        lambda: flash.compute_ecc_bits(narrow, narrow),
        lambda: flash.compute_ecc_bits(fp32, fp32),
        lambda: flash.compute_ecc_bits(fp32, narrow, 5),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    model = nn.Linear(8, 4).bfloat16()
    optimizer = flash.FlashAdamW(model.parameters())
    with pytest.raises(ValueError, match=r"'weight' is torch.bfloat16, not float32"):
        optimizer.set_fp32_model_state_dict(model, {"weight": narrow})


# As its users write them. Only the device is another one.
SCRIPTS = {
    "first steps": """
import torch
from flashoptim import FlashAdamW, cast_model

net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
cast_model(net, dtype=torch.bfloat16)
optimizer = FlashAdamW(net.parameters(), lr=1e-2)
losses = []
for _ in range(20):
    out = net(torch.linspace(-1, 1, 128).reshape(8, 16).to(torch.bfloat16))
    loss = (out.float() - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2
assert all(p.grad is None for p in net.parameters())
""",
    "precision of the master weights": """
import torch
from flashoptim import FlashAdamW

for bits in (24, 32):
    net = torch.nn.Linear(64, 4, bias=False)
    torch.nn.init.ones_(net.weight)
    net.to(torch.bfloat16)
    optimizer = FlashAdamW(net.parameters(), lr=1e-4, weight_decay=0.0, master_weight_bits=bits)
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    assert (net.weight == 1).all()
    assert (optimizer.get_fp32_model_state_dict(net)["weight"] < 1).all()

weight = torch.nn.Parameter(torch.ones(4, 64, dtype=torch.float32))
optimizer = FlashAdamW([weight], lr=1e-5, master_weight_bits=None)
weight.grad = torch.ones_like(weight)
optimizer.step()
""",
    "layers in full precision": """
import torch
from torch import nn
from flashoptim import cast_model

net = nn.Sequential()
net.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
net.target = nn.Linear(8, 8)
net.head = nn.Linear(8, 4)
last, between = [net.head], ["tar*"]
cast_model(
    net, torch.bfloat16, full_precision_layers=last, full_precision_recast_layers=between
)
kinds = {name: p.dtype for name, p in net.named_parameters()}
assert kinds["body.0.weight"] == torch.bfloat16
assert kinds["body.1.weight"] == kinds["target.weight"] == kinds["head.weight"] == torch.float32
assert net.target(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
assert net.head(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.float32
""",
    "weight decay": """
import torch
from flashoptim import FlashAdamW, FlashLion, FlashSGDW

for make in (FlashAdamW, FlashLion, FlashSGDW):
    ends = []
    # The rate itself at a constant learning rate, or relative to it: the same decay.
    for options in ({"weight_decay": 0.1}, {"weight_decay": 0.1 * 1e-2, "decouple_lr": True}):
        weight = torch.nn.Parameter(torch.ones(4, 64, dtype=torch.bfloat16))
        optimizer = make([weight], lr=1e-2, **options)
        assert optimizer.param_groups[0].get("initial_lr", 1e-2) == 1e-2
        for _ in range(5):
            weight.grad = torch.zeros_like(weight)
            optimizer.step()
        ends.append(weight.detach().float().mean().item())
    assert ends[0] == ends[1] < 1
""",
    "fp32 weights": """
import torch
from torch import nn
from flashoptim import FlashAdamW, cast_model

def make():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))
    net.fc = nn.Identity()
    cast_model(net, dtype=torch.bfloat16, full_precision_layers=["3"])
    return net, FlashAdamW(net.parameters(), lr=1e-3, master_weight_bits=24)

def train(net, optimizer):
    net(torch.ones(2, 3, 8, 8, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

net, optimizer = make()
train(net, optimizer)
torch.save(optimizer.get_fp32_model_state_dict(net), "fp32.pt")
weights = torch.load("fp32.pt", weights_only=True)
assert all(w.dtype == torch.float32 for w in weights.values() if w.is_floating_point())

other, its_optimizer = make()
train(other, its_optimizer)
its_optimizer.set_fp32_model_state_dict(other, weights)
again = its_optimizer.get_fp32_model_state_dict(other)
assert weights.keys() == again.keys()
assert all(torch.equal(weights[name], again[name]) for name in weights)
""",
    "compressed checkpoints": """
import os
import torch
from flashoptim import FlashAdamW

weight = torch.nn.Parameter(torch.randn(256, 256).bfloat16())
sizes = {}
for compress in (True, False):
    optimizer = FlashAdamW([weight], lr=1e-3, compress_state_dict=compress)
    weight.grad = torch.randn(256, 256).bfloat16()
    optimizer.step()
    torch.save(optimizer.state_dict(), "state.pt")
    sizes[compress] = os.path.getsize("state.pt")
    fresh = FlashAdamW([weight], lr=1e-3)
    fresh.load_state_dict(torch.load("state.pt", weights_only=True))
    fresh.step()
assert sizes[True] < 0.4 * sizes[False]
""",
    "checking the learning rate": """
import torch
from flashoptim import FlashLion, NumericsError

weight = torch.nn.Parameter(torch.full((4, 64), 8.0, dtype=torch.bfloat16))
optimizer = FlashLion([weight], lr=1e-9, master_weight_bits=32, check_numerics=True)
weight.grad = torch.ones_like(weight)
try:
    optimizer.step()
except NumericsError as error:
    message = str(error)
assert "learning rate" in message
optimizer.param_groups[0]["lr"] = 1e-2
optimizer.step()
optimizer.recompute_param_stats()
optimizer.step()
""",
    "distributed checkpoints": """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from flashoptim import FlashAdamW

net = torch.nn.Linear(64, 64).bfloat16()
optimizer = FlashAdamW(net.parameters(), lr=1e-3)
net(torch.ones(2, 64).bfloat16()).sum().backward()
optimizer.step()
optimizer.zero_grad()
saved = get_optimizer_state_dict(net, optimizer)
dcp.save({"optimizer": saved}, checkpoint_id="checkpoint", no_dist=True)

fresh = FlashAdamW(net.parameters(), lr=1e-3)
loaded = get_optimizer_state_dict(net, fresh)
dcp.load({"optimizer": loaded}, checkpoint_id="checkpoint", no_dist=True)
set_optimizer_state_dict(net, fresh, loaded)
for p in net.parameters():
    assert torch.equal(fresh.state[p]["exp_avg"], optimizer.state[p]["exp_avg"])
""",
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_with_only_the_import_changed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SCRIPTS[name].count("from flashoptim import") == 1
    exec(SCRIPTS[name].replace("from flashoptim import", "from flashoptim_cpp import"), {})


def test_the_helpers_rebuild_a_state_by_hand() -> None:
    """As the docstrings there show it, with the name of the correction here."""
    model = nn.Linear(64, 8)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    flash.cast_model(model)
    optimizer = flash.FlashAdam(model.parameters(), lr=1e-3, master_weight_bits=24)
    train(list(model.parameters()), optimizer, range(1))
    with torch.no_grad():
        for name, param in model.named_parameters():
            param.copy_(weights[name].to(param.dtype))
            bits = flash.compute_ecc_bits(weights[name], param, master_bytewidth=3)
            optimizer.state[param]["weight_correction"] = bits
    for name, param in model.named_parameters():
        off = (master(param, optimizer) - weights[name]).abs()
        assert bool((off <= 2.0**-16 * weights[name].abs() + 2.0**-24).all())
    set_gradients(model.parameters(), 1)
    optimizer.step()
    assert not same_bits(master(model.weight, optimizer), weights["weight"])

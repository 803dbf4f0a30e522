"""Checkpoints move between the GPU and the CPU, and training goes on with the same bits."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from cases import RULES, Options, Problem, every_storage
from helpers import CPU, Content, assert_same, both, contents, parameters, take_steps
from torch import Tensor

CHECKPOINT_RULES = (
    "sgd",
    "sgd-momentum",
    "adam-amsgrad",
    "adamw",
    "adamw-decouple-lr",
    "lion",
)
BEFORE, AFTER = range(1, 5), range(5, 9)
# Ways of keeping state that checkpoints must not lose.
WAYS: dict[str, Options] = {
    "root": {},
    "softsign": {"codec": "softsign"},
    "fp32 moments": {"quantize": False},
    "decompressed": {"compress_state_dict": False},
}

Saved = tuple[list[Tensor], dict[str, Any]]


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Tensors of all storages."""
    return Problem(every_storage(((5, 100), (33, 64), (70,), (0, 64), ())))


def make_optimizer(
    rule: str, way: str, problem: Problem, device: torch.device
) -> flash.FlashOptimizer:
    """A fresh one."""
    make, options = RULES[rule]
    return make(problem.parameter_groups(device), **{**options, **WAYS[way]})


def save(optimizer: flash.FlashOptimizer) -> bytes:
    """Weights and state as a file."""
    file = io.BytesIO()
    weights = [param.detach() for param in parameters(optimizer)]
    torch.save((weights, optimizer.state_dict()), file)
    return file.getvalue()


def load(optimizer: flash.FlashOptimizer, saved: bytes, map_location: str | None) -> None:
    """Restores weights and state from a file."""
    weights, state_dict = torch.load(
        io.BytesIO(saved), map_location=map_location, weights_only=True
    )
    for param, weight in zip(parameters(optimizer), weights, strict=True):
        param.data.copy_(weight)
    optimizer.load_state_dict(state_dict)


def now(optimizer: flash.FlashOptimizer) -> list[Content]:
    return contents(parameters(optimizer), optimizer)


@pytest.mark.parametrize("map_location", [None, "cpu", "device"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", CHECKPOINT_RULES)
def test_there_and_back(
    rule: str, way: str, map_location: str | None, problem: Problem, device: torch.device
) -> None:
    """GPU to CPU to GPU: equal after each load, and after more steps on either device."""
    location = str(device) if map_location == "device" else map_location
    straight = make_optimizer(rule, way, problem, CPU)
    take_steps(straight, problem, CPU, BEFORE)
    first = make_optimizer(rule, way, problem, device)
    take_steps(first, problem, device, BEFORE)
    assert_same(now(straight), now(first), problem.names, "the devices differ before saving")

    on_cpu = make_optimizer(rule, way, problem, CPU)
    load(on_cpu, save(first), location)
    assert_same(now(first), now(on_cpu), problem.names, "loading on the CPU")
    again = make_optimizer(rule, way, problem, device)
    load(again, save(on_cpu), location)
    assert_same(now(first), now(again), problem.names, "loading on the device")
    for param in parameters(again):
        state = again.state[param]
        assert state["step"].device == CPU
        assert all(t.device == device for t in state.values() if t.dim())

    take_steps(straight, problem, CPU, AFTER)
    for optimizer, where in ((on_cpu, CPU), (again, device)):
        take_steps(optimizer, problem, where, AFTER)
        assert_same(now(straight), now(optimizer), problem.names, f"going on with {where}")


def test_a_step_count_on_the_device_is_accepted(problem: Problem, device: torch.device) -> None:
    """B6: As `torch.load(map_location="cuda")` leaves it."""
    optimizer = make_optimizer("adamw", "root", problem, device)
    take_steps(optimizer, problem, device, BEFORE)
    moved = copy.deepcopy(optimizer.state_dict())
    for state in moved["state"].values():
        state["step"] = state["step"].to(device)
        state["stream_key"] = state["stream_key"].to(device)
    before = now(optimizer)
    optimizer.load_state_dict(moved)
    assert_same(before, now(optimizer), problem.names)
    take_steps(optimizer, problem, device, AFTER)


@pytest.mark.parametrize("copying", ["deepcopy", "pickle"])
def test_copies_of_an_optimizer_go_on(copying: str, problem: Problem, device: torch.device) -> None:
    optimizer = make_optimizer("adam-amsgrad", "root", problem, device)
    take_steps(optimizer, problem, device, BEFORE)
    for param in parameters(optimizer):
        param.grad = None  # of mixed dtypes, which pickling refuses to set again
    if copying == "deepcopy":
        twin = copy.deepcopy(optimizer)
    else:
        twin = pickle.loads(pickle.dumps(optimizer))
    assert_same(now(optimizer), now(twin), problem.names)
    for one in (optimizer, twin):
        take_steps(one, problem, device, AFTER)
    assert_same(now(optimizer), now(twin), problem.names)


def test_torch_state_on_the_device_is_taken_over(device: torch.device) -> None:
    """A run of `torch.optim.AdamW` goes on with ours, the same on both devices."""
    problem = Problem(every_storage(((5, 100), (33, 64)), ("fp32",)))

    def work(where: torch.device) -> list[Content]:
        params = parameters(make_optimizer("adamw", "root", problem, where))
        theirs = torch.optim.AdamW(params, lr=1e-3, fused=False, foreach=False)
        generator = torch.Generator().manual_seed(3)
        gradients = [torch.randn(param.shape, generator=generator) for param in params]
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient.to(where)
        theirs.step()
        saved = copy.deepcopy(theirs.state_dict())
        # Roots and quotients of torch's kernels may differ between devices; its state must not.
        for index, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
            saved["state"][index]["exp_avg"] = (gradient * 0.125).to(where)
            saved["state"][index]["exp_avg_sq"] = (gradient.square() * 0.125).to(where)
            param.data.copy_(gradient)
        ours = flash.FlashAdamW(params)
        ours.load_state_dict(saved)
        ours.step()
        return contents(params, ours)

    both(device, work)

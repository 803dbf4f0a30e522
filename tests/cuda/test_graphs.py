"""CUDA graphs: a captured step follows learning rate, step count and gradients when replayed."""

from __future__ import annotations

from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from cases import RULES, Problem, every_storage
from helpers import assert_same, contents, parameters, schedule, set_gradient
from torch import Tensor, nn

WARM_UP = (1, 2)
REPLAYS = (3, 4, 5, 6, 7)
REPLAYED_RULES = (
    "sgd",
    "sgd-dampening",
    "sgdw-nesterov-decouple-lr",
    "adam-amsgrad",
    "adamw",
    "adamw-decouple-lr",
    "lion",
)


def is_supported(device: torch.device) -> bool:
    """Whether optimizers can be made with ``capturable=True``."""
    try:
        flash.FlashAdamW([nn.Parameter(torch.ones(4, 64, device=device))], capturable=True)
    except NotImplementedError:
        return False
    return True


@pytest.fixture
def capturable(gpu: torch.device) -> torch.device:
    """The device, for tests that need ``capturable=True``."""
    if not is_supported(gpu):
        pytest.skip("capturable=True is not supported: test_capturable_is_supported fails")
    return gpu


def test_capturable_is_supported(gpu: torch.device) -> None:
    """C19."""
    assert is_supported(gpu), "FlashAdamW(..., capturable=True) raises NotImplementedError"


def rate(rule: str, step: int) -> float:
    """A step's learning rate, one that fp32 holds exactly."""
    return float(torch.tensor(schedule(RULES[rule][1]["lr"], step)))


def eager(rule: str, problem: Problem, device: torch.device) -> flash.FlashOptimizer:
    """An optimizer after all steps, taken one by one with plain numbers."""
    make, options = RULES[rule]
    optimizer = make(problem.parameter_groups(device), **options)
    for group in optimizer.param_groups:
        if "initial_lr" in group:
            group["initial_lr"] = rate(rule, 0)
    for step in (*WARM_UP, *REPLAYS):
        for group in optimizer.param_groups:
            group["lr"] = rate(rule, step)
        gradients = problem.gradients(step, device)
        for param, gradient in zip(parameters(optimizer), gradients, strict=True):
            set_gradient(param, gradient)
        optimizer.step()
    return optimizer


class Replayed:
    """A capturable optimizer with static gradients and the learning rate on the device."""

    def __init__(self, rule: str, problem: Problem, device: torch.device) -> None:
        make, options = RULES[rule]
        self.rule, self.problem, self.device = rule, problem, device
        self.lr = torch.tensor(rate(rule, 0), device=device)
        self.optimizer = make(
            problem.parameter_groups(device), **{**options, "lr": self.lr}, capturable=True
        )
        self.params = parameters(self.optimizer)
        for param, gradient in zip(self.params, problem.gradients(1, device), strict=True):
            set_gradient(param, gradient.clone())

    def prepare(self, step: int) -> None:
        """Writes a step's learning rate and gradients where the step reads them."""
        self.lr.fill_(rate(self.rule, step))
        gradients = self.problem.gradients(step, self.device)
        for param, gradient in zip(self.params, gradients, strict=True):
            assert param.grad is not None
            param.grad.data.copy_(gradient)

    def capture(self) -> torch.cuda.CUDAGraph:
        """Warms up on a side stream, as torch asks for, and captures one step."""
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for step in WARM_UP:
                self.prepare(step)
                self.optimizer.step()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.optimizer.step()
        return graph


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Tensors that go through the kernels of every form."""
    shapes = ((33, 64), (5, 100), (70,), (0, 64))
    storages = ("bf16-24", "bf16-32", "fp16-24", "fp32")
    return Problem(every_storage(shapes, storages, all_gradients_of=[(33, 64)]))


@pytest.mark.parametrize("rule", REPLAYED_RULES)
def test_replays_are_eager_steps(rule: str, problem: Problem, capturable: torch.device) -> None:
    replayed = Replayed(rule, problem, capturable)
    graph = replayed.capture()
    for step in REPLAYS:
        replayed.prepare(step)
        graph.replay()
    torch.cuda.synchronize(capturable)
    expected = eager(rule, problem, capturable)
    assert_same(
        contents(parameters(expected), expected),
        contents(replayed.params, replayed.optimizer),
        problem.names,
        "replays differ from eager steps",
    )


def test_eager_capturable_steps(problem: Problem, capturable: torch.device) -> None:
    """Without a graph too, capturable=True changes no bit."""
    replayed = Replayed("adamw", problem, capturable)
    for step in (*WARM_UP, *REPLAYS):
        replayed.prepare(step)
        replayed.optimizer.step()
    expected = eager("adamw", problem, capturable)
    assert_same(
        contents(parameters(expected), expected),
        contents(replayed.params, replayed.optimizer),
        problem.names,
    )


def test_step_counts_are_on_the_device(problem: Problem, capturable: torch.device) -> None:
    replayed = Replayed("adamw", problem, capturable)
    graph = replayed.capture()
    graph.replay()
    steps = [replayed.optimizer.state[param]["step"] for param in replayed.params]
    assert all(isinstance(step, Tensor) and step.is_cuda for step in steps)
    assert {float(step) for step in steps} == {len(WARM_UP) + 1.0}


def test_a_captured_optimizer_can_be_saved(problem: Problem, capturable: torch.device) -> None:
    """What was replayed loads into an optimizer that steps eagerly, and goes on the same way."""
    replayed = Replayed("adamw", problem, capturable)
    graph = replayed.capture()
    for step in REPLAYS[:-1]:
        replayed.prepare(step)
        graph.replay()
    saved: dict[str, Any] = replayed.optimizer.state_dict()
    groups = problem.parameter_groups(capturable)
    fresh = flash.FlashAdamW(groups, weight_decay=0.1)
    for param, source in zip(parameters(fresh), replayed.params, strict=True):
        param.data.copy_(source.detach())
    fresh.load_state_dict(saved)
    for group in fresh.param_groups:
        group["lr"] = rate("adamw", REPLAYS[-1])
    gradients = problem.gradients(REPLAYS[-1], capturable)
    for param, gradient in zip(parameters(fresh), gradients, strict=True):
        set_gradient(param, gradient)
    fresh.step()
    expected = eager("adamw", problem, capturable)
    assert_same(
        contents(parameters(expected), expected),
        contents(parameters(fresh), fresh),
        problem.names,
    )


def test_policies_that_wait_are_refused(capturable: torch.device) -> None:
    param = nn.Parameter(torch.ones(4, 64, device=capturable))
    param.grad = torch.ones_like(param)
    optimizer = flash.FlashAdamW([param], capturable=True, nonfinite="error")
    with pytest.raises(ValueError, match="capturable"):
        optimizer.step()
    assert bool((param == 1).all())


def test_capturing_without_capturable_is_refused(problem: Problem, gpu: torch.device) -> None:
    """Instead of baking learning rate and step count in; nothing is changed by the attempt."""
    optimizer = flash.FlashAdamW(problem.parameter_groups(gpu))
    params = parameters(optimizer)
    for step in (1, 2):
        for param, gradient in zip(params, problem.gradients(step, gpu), strict=True):
            set_gradient(param, gradient)
        optimizer.step()
    before = contents(params, optimizer)
    scratch = torch.zeros(4, device=gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch.add_(1)
        with pytest.raises(RuntimeError, match="capturable"):
            optimizer.step()
    assert_same(before, contents(params, optimizer), problem.names, "something was written")
    optimizer.step()
    assert all(float(optimizer.state[param]["step"]) == 3 for param in params)

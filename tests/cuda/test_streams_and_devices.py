"""Streams, several GPUs and the current device."""

from __future__ import annotations

import flashoptim_cpp as flash
import pytest
import torch
from cases import MAIN_RULES, RULES, Problem, every_storage
from helpers import (
    CPU,
    Content,
    assert_same,
    contents,
    parameters,
    schedule,
    set_gradient,
    take_steps,
)
from torch import nn

STEPS = (1, 2, 3)
# A tenth of a second on a GPU of 2 GHz: much longer than a step takes to be enqueued.
WAIT_CYCLES = 200_000_000


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Tensors that go through different kernels."""
    return Problem(every_storage(((33, 64), (5, 100), (64, 256)), ("bf16-24", "fp16-24", "fp32")))


def expected_of(rule: str, problem: Problem) -> list[Content]:
    """What `STEPS` give on the CPU."""
    make, options = RULES[rule]
    optimizer = make(problem.parameter_groups(CPU), **options)
    take_steps(optimizer, problem, CPU, STEPS)
    return contents(parameters(optimizer), optimizer)


def optimizer_with_zero_gradients(
    rule: str, problem: Problem, device: torch.device
) -> flash.FlashOptimizer:
    """After the first of `STEPS`; its gradients are buffers to be filled, now 0."""
    make, options = RULES[rule]
    optimizer = make(problem.parameter_groups(device), **options)
    take_steps(optimizer, problem, device, STEPS[:1])
    for param, gradient in zip(
        parameters(optimizer), problem.gradients(STEPS[0], device), strict=True
    ):
        set_gradient(param, torch.zeros_like(gradient))
    # All later gradients exist before a stream waits, and nothing is under way.
    for step in STEPS:
        problem.gradients(step, device)
    torch.cuda.synchronize(device)
    return optimizer


def fill_gradients(
    optimizer: flash.FlashOptimizer, problem: Problem, device: torch.device, step: int
) -> None:
    """Writes the gradients of a step, on the current stream, and sets its learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = schedule(optimizer.defaults["lr"], step)
    for param, gradient in zip(parameters(optimizer), problem.gradients(step, device), strict=True):
        assert param.grad is not None
        param.grad.data.copy_(gradient)


@pytest.mark.parametrize("rule", MAIN_RULES)
def test_the_step_runs_on_the_current_stream(
    rule: str, problem: Problem, gpu: torch.device
) -> None:
    """Gradients written late, on the same stream, are there when the step reads them."""
    optimizer = optimizer_with_zero_gradients(rule, problem, gpu)
    stream = torch.cuda.Stream(gpu)
    with torch.cuda.stream(stream):
        for step in STEPS[1:]:
            torch.cuda._sleep(WAIT_CYCLES)
            fill_gradients(optimizer, problem, gpu, step)
            optimizer.step()
    assert not stream.query(), "step() waited for its stream"
    stream.synchronize()
    actual = contents(parameters(optimizer), optimizer)
    assert_same(expected_of(rule, problem), actual, problem.names)


@pytest.mark.parametrize("rule", MAIN_RULES)
def test_two_streams_with_events(rule: str, problem: Problem, gpu: torch.device) -> None:
    """Steps on one stream after the other, each waiting for the last by an event."""
    optimizer = optimizer_with_zero_gradients(rule, problem, gpu)
    streams = [torch.cuda.Stream(gpu), torch.cuda.Stream(gpu)]
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(gpu))
    for step in STEPS[1:]:
        stream = streams[step % 2]
        stream.wait_event(done)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(WAIT_CYCLES)
            fill_gradients(optimizer, problem, gpu, step)
            optimizer.step()
        done = torch.cuda.Event()
        done.record(stream)
    torch.cuda.current_stream(gpu).wait_event(done)
    actual = contents(parameters(optimizer), optimizer)
    assert_same(expected_of(rule, problem), actual, problem.names)


def test_gradients_from_a_side_stream(problem: Problem, gpu: torch.device) -> None:
    """The step waits for gradients that the current stream has been told to wait for."""
    optimizer = optimizer_with_zero_gradients("adamw", problem, gpu)
    side = torch.cuda.Stream(gpu)
    for step in STEPS[1:]:
        side.wait_stream(torch.cuda.current_stream(gpu))
        with torch.cuda.stream(side):
            torch.cuda._sleep(WAIT_CYCLES)
            fill_gradients(optimizer, problem, gpu, step)
        torch.cuda.current_stream(gpu).wait_stream(side)
        optimizer.step()
    actual = contents(parameters(optimizer), optimizer)
    assert_same(expected_of("adamw", problem), actual, problem.names)


def test_the_first_step_on_a_side_stream(problem: Problem, gpu: torch.device) -> None:
    """State is made on the stream of the step that needs it."""
    make, options = RULES["adamw"]
    optimizer = make(problem.parameter_groups(gpu), **options)
    for step in STEPS:
        problem.gradients(step, gpu)
    stream = torch.cuda.Stream(gpu)
    stream.wait_stream(torch.cuda.current_stream(gpu))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WAIT_CYCLES)
        take_steps(optimizer, problem, gpu, STEPS)
    stream.synchronize()
    actual = contents(parameters(optimizer), optimizer)
    assert_same(expected_of("adamw", problem), actual, problem.names)


def test_the_current_device_stays(problem: Problem, gpu: torch.device) -> None:
    before = torch.cuda.current_device()
    optimizer = optimizer_with_zero_gradients("lion", problem, gpu)
    fill_gradients(optimizer, problem, gpu, STEPS[1])
    optimizer.step()
    assert torch.cuda.current_device() == before


@pytest.mark.parametrize("current", [0, 1])
def test_two_gpus_in_one_optimizer(current: int, problem: Problem, gpu: torch.device) -> None:
    """Each tensor is stepped where it lies, whichever device is current."""
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    places = [torch.device("cuda", index % 2) for index in range(len(problem.names))]
    make, options = RULES["adamw"]
    groups = problem.parameter_groups(CPU)
    turn = iter(places)
    for group in groups:
        group["params"] = [nn.Parameter(p.detach().to(next(turn))) for p in group["params"]]
    with torch.cuda.device(current):
        optimizer = make(groups, **options)
        params = parameters(optimizer)
        for step in STEPS:
            for group in optimizer.param_groups:
                group["lr"] = schedule(options["lr"], step)
            gradients = problem.gradients(step, CPU)
            for param, gradient, place in zip(params, gradients, places, strict=True):
                set_gradient(param, gradient.to(place))
            optimizer.step()
        assert torch.cuda.current_device() == current
    actual = contents(params, optimizer)
    assert_same(expected_of("adamw", problem), actual, problem.names)

"""A step launches kernels and returns: no allocation, no waiting, no copy, no compilation."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import flashoptim_cpp as flash
import pytest
import torch
from cases import (
    MAIN_RULES,
    RULES,
    WITHOUT_MOMENTS,
    GroupCase,
    Problem,
    TensorCase,
    every_storage,
)
from helpers import parameters, set_gradient, take_steps
from torch import Tensor, nn
from tracing import trace

# A fifth of a second on a GPU of 2 GHz.
WAIT_CYCLES = 400_000_000
GIB = 1 << 30
# Beyond this the driver has taken memory from the GPU; it does so in pieces of this size.
DRIVER_PIECE = 2 << 20
# The allocator gives large tensors up to a mebibyte more than they asked for.
ROUNDING = 16 << 20

# Parts of the names of API calls that a step must not make.
ALLOCATIONS = ("Malloc", "MemAlloc", "Free", "HostAlloc", "HostRegister", "MemCreate", "MemMap")
WAITS = ("Synchronize", "EventQuery", "StreamQuery")
COPIES = ("Memcpy", "Memset")
COMPILATIONS = ("ModuleLoad", "LibraryLoad", "LinkCreate", "nvrtc")


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Tensors that go through the kernels of many forms."""
    groups = every_storage(((33, 64), (5, 100), (70,)), all_gradients_of=[(33, 64)])
    return Problem(groups)


def warmed_up(
    rule: str, problem: Problem, device: torch.device, way: str = "plain"
) -> flash.FlashOptimizer:
    """After two steps, with gradients."""
    make, options = RULES[rule]
    groups = problem.parameter_groups(device)
    optimizer = make(groups, **options, capturable=way != "plain")
    take_steps(optimizer, problem, device, (1, 2))
    if way == "lr on GPU":
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(1e-3, device=device)
        optimizer.step()
    return optimizer


def cosine(optimizer: flash.FlashOptimizer, steps: int) -> Iterator[int]:
    """Counts steps, with another learning rate in each unless the GPU holds it."""
    base = optimizer.defaults["lr"]
    for step in range(steps):
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = base * 0.5 * (1 + math.cos(math.pi * step / steps))
        yield step


WAYS = pytest.mark.parametrize("way", ["plain", "capturable", "lr on GPU"])


@WAYS
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_a_hundred_steps_allocate_nothing(
    rule: str, way: str, problem: Problem, gpu: torch.device
) -> None:
    optimizer = warmed_up(rule, problem, gpu, way)
    torch.cuda.synchronize(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_stats(gpu)
    free_before = torch.cuda.mem_get_info(gpu)[0]
    for _ in cosine(optimizer, 100):
        optimizer.step()
    torch.cuda.synchronize(gpu)
    after = torch.cuda.memory_stats(gpu)
    for count in (
        "allocation.all.allocated",
        "allocation.all.freed",
        "allocated_bytes.all.allocated",
        "num_device_alloc",
    ):
        assert after.get(count) == before.get(count), count
    assert after["allocated_bytes.all.peak"] == before["allocated_bytes.all.current"]
    assert abs(free_before - torch.cuda.mem_get_info(gpu)[0]) < DRIVER_PIECE


@WAYS
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_api_calls_of_a_step(rule: str, way: str, problem: Problem, device: torch.device) -> None:
    """By the profiler, which sees what the native code does too."""
    optimizer = warmed_up(rule, problem, device, way)

    def steps() -> None:
        for _ in cosine(optimizer, 5):
            optimizer.step()

    found = trace(steps, device)
    assert found.calls_of(*ALLOCATIONS, *WAITS, *COPIES, *COMPILATIONS) == []
    assert found.copies == []
    if device.type == "cuda":
        assert found.calls_of("Launch"), f"the profiler missed the launches: {found}"
        assert found.kernels, f"the profiler missed the kernels: {found}"
        assert all("flashoptim" in name for name in found.kernels), found.kernels


@WAYS
@pytest.mark.parametrize("rule", MAIN_RULES)
def test_a_step_does_not_wait(rule: str, way: str, problem: Problem, gpu: torch.device) -> None:
    """It returns while the GPU is still busy with what was enqueued before."""
    optimizer = warmed_up(rule, problem, gpu, way)
    torch.cuda.synchronize(gpu)
    busy = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(WAIT_CYCLES)
        busy.record()
        for _ in cosine(optimizer, 3):
            optimizer.step()
        still_busy = not busy.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert still_busy, "step() waited for the GPU"
    torch.cuda.synchronize(gpu)


def launches(count: int, device: torch.device) -> int:
    """Kernels of one step of `count` tensors of two forms."""
    shapes = ((8, 64), (5, 100))
    tensors = tuple(TensorCase(shapes[index % 2]) for index in range(count))
    problem = Problem([GroupCase("group", tensors)])
    optimizer = warmed_up("adamw", problem, device)
    return len(trace(optimizer.step, device).kernels)


def test_launches_do_not_grow_with_the_number_of_tensors(gpu: torch.device) -> None:
    few = launches(10, gpu)
    assert 1 <= few <= 2
    assert launches(150, gpu) == few
    # A table of tensors has its limits, but they are wide.
    assert launches(1000, gpu) <= 8


@pytest.mark.parametrize("stochastic", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("way", ["plain", "capturable"])
@pytest.mark.parametrize("rule", [rule for rule in MAIN_RULES if rule not in WITHOUT_MOMENTS])
def test_bf16_weights_have_a_fast_kernel(
    rule: str, way: str, stochastic: bool, gpu: torch.device
) -> None:
    options = {"stochastic_rounding": stochastic}
    problem = Problem([GroupCase("group", (TensorCase((33, 64)),), options)])
    optimizer = warmed_up(rule, problem, gpu, way)
    steps = [name for name in trace(optimizer.step, gpu).kernels if "Step" in name]
    assert len(steps) == 1
    assert "StepFastKernel" in steps[0]


def state_bytes(optimizer: flash.FlashOptimizer, param: Tensor) -> int:
    """Bytes of a parameter's state on the GPU."""
    return sum(value.nbytes for value in optimizer.state[param].values() if value.is_cuda)


@pytest.mark.parametrize("rule", ["adamw", "adam-amsgrad", "lion", "sgd-momentum"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_peak_memory_of_a_gibibyte(rule: str, dtype: torch.dtype, gpu: torch.device) -> None:
    """Steps need no memory beside the state, not even the first one."""
    elements = GIB // torch.empty((), dtype=dtype).element_size()
    param = nn.Parameter(torch.zeros(elements // 4096, 4096, dtype=dtype, device=gpu))
    param.grad = torch.full_like(param, 0.5)
    make, options = RULES[rule]
    optimizer = make([param], **options)
    torch.cuda.synchronize(gpu)
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    optimizer.step()
    kept = state_bytes(optimizer, param)
    assert torch.cuda.max_memory_allocated(gpu) - before <= kept + ROUNDING
    torch.cuda.synchronize(gpu)
    before = torch.cuda.memory_allocated(gpu)
    free_before = torch.cuda.mem_get_info(gpu)[0]
    torch.cuda.reset_peak_memory_stats(gpu)
    for _ in range(3):
        optimizer.step()
    torch.cuda.synchronize(gpu)
    assert torch.cuda.max_memory_allocated(gpu) == before
    assert abs(free_before - torch.cuda.mem_get_info(gpu)[0]) < DRIVER_PIECE
    assert bool((param != 0).all())


def test_three_hundred_shapes_need_no_compilation(device: torch.device) -> None:
    """The first step makes state and plan, nothing more."""
    shapes = [(1 + index % 17, 4 + 7 * index) for index in range(300)]
    params = [nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
    for param in params:
        set_gradient(param, torch.full(param.shape, 0.5, dtype=torch.bfloat16, device=device))
    optimizer = flash.FlashAdamW(params)

    def timed_step() -> float:
        start = time.perf_counter()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    first = timed_step()
    assert first < 1.0, f"the first step took {first} s"
    assert timed_step() < 1.0
    assert trace(optimizer.step, device).calls_of(*COMPILATIONS) == []
    assert all(float(optimizer.state[param]["step"]) == 3 for param in parameters(optimizer))

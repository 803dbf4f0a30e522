"""What gradient release is for: gradients never exist all at once, and nothing else grows."""

from __future__ import annotations

import gc
import itertools
import resource
import subprocess
import sys
import tracemalloc
import weakref
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import parameter
from release_common import loss_of, net, train
from torch import Tensor, nn

pytestmark = pytest.mark.filterwarnings("ignore:gradient release is on")


def gradient_bytes(model: nn.Module) -> int:
    return sum(p.grad.untyped_storage().nbytes() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("how", ["plainly", "clipped", "measured"])
def test_at_most_the_two_largest_gradients_are_there_at_any_time(how: str) -> None:
    sizes = [64, 96, 128, 80, 64, 112, 64]
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))).bfloat16()
    peaks: list[int] = []
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(lambda _: peaks.append(gradient_bytes(model)))
    optimizer = flash.FlashAdamW(model.parameters())
    largest_two = sum(sorted(param.nbytes for param in model.parameters())[-2:])
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    model(x).sum().backward()
    assert max(peaks) > 2 * largest_two  # without release
    optimizer.zero_grad()
    peaks.clear()
    handle = flash.enable_gradient_release(
        model, optimizer, max_norm=None if how == "plainly" else 1.0
    )
    if how == "measured":
        with handle.measure():
            model(x).sum().backward()
    model(x).sum().backward()
    assert len(peaks) == 12 * (2 if how == "measured" else 1)
    assert max(peaks) <= largest_two
    assert gradient_bytes(model) == 0


PEAKS = """
import warnings
import flashoptim_cpp as flash, torch
from torch import nn

warnings.simplefilter("ignore")
torch.set_num_threads(1)
size, layers = 2048, 20
options = {"bias": False, "dtype": torch.bfloat16}
model = nn.Sequential(*(nn.Linear(size, size, **options) for _ in range(layers)))
optimizer = flash.FlashAdamW(model.parameters())
x = torch.randn(2, size, dtype=torch.bfloat16)

def peak():
    # getrusage would say what the process that started this one had at that time.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

def step():
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

with flash.enable_gradient_release(model, optimizer):
    step()  # makes the state
    for _ in range(3):
        step()
    released = peak()
step()
print(peak() - released, size * size * 2, layers)
"""


def test_the_process_needs_less_memory_by_nearly_all_gradients() -> None:
    run = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    more, gradient, layers = map(int, run.stdout.split())
    # Release needs two gradients at most, and heap memory is not given out without gaps.
    assert more > (layers - 5) * gradient


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize(
    "options",
    [{}, {"max_norm": 1.0}, {"accumulate": 2, "accumulate_dtype": torch.float32}],
    ids=str,
)
def test_two_hundred_steps_leave_nothing_behind(options: dict[str, Any]) -> None:
    """E5."""
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())
    flash.enable_gradient_release(model, optimizer, **options)
    train(model, optimizer, range(20))
    tracemalloc.start()
    try:
        train(model, optimizer, range(2))
        gc.collect()
        before, resident = tracemalloc.get_traced_memory()[0], resident_bytes()
        train(model, optimizer, range(200))
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    assert resident_bytes() - resident < 4_000_000


def test_enabling_and_removing_leave_nothing_behind() -> None:
    """E5."""
    model = net()
    optimizer = flash.FlashAdamW(model.parameters())

    def once() -> None:
        with flash.enable_gradient_release(model, optimizer):
            train(model, optimizer, range(1))

    for _ in range(5):
        once()
    tracemalloc.start()
    try:
        once()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            once()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


def test_an_optimizer_is_freed_and_its_hooks_do_nothing_then() -> None:
    model = net()
    gc.collect()
    gc.disable()
    try:
        optimizer = flash.FlashAdamW(model.parameters())
        handles = [flash.enable_gradient_release(model, optimizer)]
        train(model, optimizer, range(2))
        freed = weakref.ref(optimizer)
        del optimizer
        assert freed() is None
        before = model.twice.weight.detach().clone()
        loss_of(model, 0).backward()
        handles.clear()
        loss_of(model, 0).backward()
        assert torch.equal(before, model.twice.weight)
        assert model.twice.weight.grad is not None
    finally:
        gc.enable()


def calls_of_a_backward_pass(count: int) -> int:
    """Python and C functions that one backward pass with release calls."""
    params = nn.ParameterList([parameter(4, 64, dtype=torch.bfloat16) for _ in range(count)])
    optimizer = flash.FlashAdamW(params)
    flash.enable_gradient_release(params, optimizer)

    def loss() -> Tensor:
        return torch.stack([param.sum() for param in params]).sum()

    for _ in range(2):
        loss().backward()
        optimizer.step()
    last = loss()
    calls = 0

    def count_call(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        last.backward()
    finally:
        sys.setprofile(None)
    return calls


def test_the_cost_of_a_parameter_does_not_grow_with_their_number() -> None:
    few, many = calls_of_a_backward_pass(10), calls_of_a_backward_pass(210)
    each = (many - few) / 200
    assert each < 60
    assert few < 11 * each + 100

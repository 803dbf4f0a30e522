"""Memory over many steps and many optimizers, several processes, and forked ones."""

from __future__ import annotations

import gc
import os
import resource
import signal
import tracemalloc
import weakref
from collections.abc import Callable

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, parameter, same_bits, set_gradients, train
from flashoptim_cpp._preparing import PREPARING


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("options", [{}, {"nonfinite": "error"}, {"check_numerics": True}], ids=str)
def test_steps_allocate_nothing_that_stays(options: dict[str, object]) -> None:
    params = [parameter(64, 64, dtype=torch.bfloat16) for _ in range(50)]
    optimizer = flash.FlashAdamW(params, **options)
    train(params, optimizer, range(3))
    for _ in range(20):
        optimizer.step()
    tracemalloc.start()
    try:
        optimizer.step()
        before, resident = tracemalloc.get_traced_memory()[0], resident_bytes()
        for _ in range(100):
            optimizer.step()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    assert resident_bytes() - resident < 1_000_000


def test_a_step_needs_no_memory_that_grows_with_the_tensor() -> None:
    param = torch.nn.Parameter(torch.zeros(1 << 14, 1 << 10, dtype=torch.bfloat16))
    optimizer = flash.FlashAdamW([param])
    param.grad = torch.full_like(param, 1e-3)
    optimizer.step()
    # The highest mark that the process ever reached must not rise.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer.step()
    risen = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert risen < param.numel() // 8


def test_optimizers_are_freed_as_soon_as_nobody_holds_them() -> None:
    def one() -> weakref.ref[object]:
        params = [parameter(256, 256, dtype=torch.bfloat16) for _ in range(4)]
        optimizer = flash.FlashAdamW(params)
        train(params, optimizer, range(2))
        return weakref.ref(optimizer)

    gc.disable()
    try:
        assert one()() is None
        for _ in range(20):
            one()
        before = resident_bytes()
        for _ in range(100):
            assert one()() is None
        assert resident_bytes() - before < 3_000_000  # one optimizer holds 1.3 MB
    finally:
        gc.enable()


def test_state_that_is_moved_away_is_freed() -> None:
    param = parameter(64, 64)
    optimizer = flash.FlashAdamW([param])
    train([param], optimizer, range(2))
    moved = weakref.ref(optimizer.state[param]["exp_avg"])
    optimizer.state[param]["exp_avg"] = optimizer.state[param]["exp_avg"].clone()
    assert moved() is None


def in_child(work: Callable[[], bool]) -> int:
    """Runs work in a forked process; returns its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return pid


def exit_codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.parametrize("children", [1, 4])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_processes_step_at_once_with_threads_of_their_own(children: int) -> None:
    torch.set_num_threads(2)
    params = [parameter(300, 320, dtype=torch.bfloat16) for _ in range(4)]
    optimizer = flash.FlashAdamW(params)
    train(params, optimizer, range(2))  # the threads of the parent exist now
    set_gradients(params, 2)
    start = bits_of(params, optimizer)
    for _ in range(50):
        optimizer.step()
    expected = bits_of(params, optimizer)
    with torch.no_grad():
        for param, (weight, state) in zip(params, start, strict=True):
            param.copy_(weight)
            for name, value in state.items():
                optimizer.state[param][name].copy_(value)

    def work() -> bool:
        for _ in range(50):
            optimizer.step()
        torch.set_num_threads(1)  # torch's own threads do not survive a fork
        return same_bits(bits_of(params, optimizer), expected)

    assert exit_codes([in_child(work) for _ in range(children)]) == [0] * children
    assert work()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_while_a_thread_makes_state_can_make_its_own() -> None:
    param = parameter(2, 64)
    optimizer = flash.FlashAdamW([param])
    set_gradients([param], 0)

    def work() -> bool:
        signal.alarm(60)  # what hangs fails
        optimizer.step()
        return "exp_avg" in optimizer.state[param]

    with PREPARING:  # as another thread would hold it
        assert exit_codes([in_child(work)]) == [0]
    assert work()
    signal.alarm(0)

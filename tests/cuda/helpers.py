"""Running optimizers on one device or another, and comparing what comes out to the last bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from cases import Make, Options, Problem
from flashoptim_cpp import _C, FlashOptimizer
from torch import Tensor, nn

CPU = torch.device("cpu")

#: What one parameter and its state hold, on the host, by name.
Content = dict[str, Tensor]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LINES_OF_A_MESSAGE = 12


def image(tensor: Tensor) -> Tensor:
    """The tensor's elements as integers, so that NaN equals itself and -0 is not 0."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one device are equal to the last bit."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(image(a), image(b))


def contents(params: Iterable[Tensor], optimizer: FlashOptimizer) -> list[Content]:
    """Copies, on the host, of parameters and their state."""
    return [
        {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in {"weight": param, **optimizer.state.get(param, {})}.items()
        }
        for param in params
    ]


def _difference(expected: Tensor, actual: Tensor) -> str | None:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return (
            f"{actual.dtype} {list(actual.shape)} instead of "
            f"{expected.dtype} {list(expected.shape)}"
        )
    if same_bits(expected, actual):
        return None
    one, two = image(expected).reshape(-1), image(actual).reshape(-1)
    places = (one != two).nonzero()
    first = int(places[0])
    mask = (1 << (8 * one.element_size())) - 1
    return (
        f"{len(places)} of {one.numel()} differ, first at {first}: "
        f"{int(two[first]) & mask:#x} instead of {int(one[first]) & mask:#x}"
    )


def assert_same(
    expected: Sequence[Content], actual: Sequence[Content], names: Sequence[str], when: str = ""
) -> None:
    """Fails, naming what differs and where, unless all bits are equal."""
    assert len(expected) == len(actual) == len(names), "another number of parameters"
    found: list[str] = []
    for name, one, two in zip(names, expected, actual, strict=True):
        if one.keys() != two.keys():
            found.append(f"{name}: has {sorted(two)} instead of {sorted(one)}")
            continue
        differences = ((entry, _difference(one[entry], two[entry])) for entry in one)
        found += [f"{name}: {entry}: {text}" for entry, text in differences if text]
    if found:
        shown = found[:_LINES_OF_A_MESSAGE]
        more = len(found) - len(shown)
        shown += [f"and {more} more"] if more else []
        raise AssertionError("\n".join([f"{when or 'not the same bits'}:", *shown]))


@contextmanager
def cpu_target(name: str) -> Iterator[None]:
    """Steps on the CPU with one instruction set."""
    before = _C.cpu_target()
    _C.set_cpu_target(name)
    try:
        yield
    finally:
        _C.set_cpu_target(before)


def vector_targets() -> list[str]:
    """The CPU's instruction sets but for the slow reference; that one where it is alone."""
    return [name for name in _C.cpu_targets() if name != "scalar"] or ["scalar"]


def set_gradient(param: Tensor, gradient: Tensor) -> None:
    """Gives a parameter a gradient of any dtype, which torch's own check would refuse."""
    if param.grad is None:
        param.grad = torch.empty_like(param)
    param.grad.data = gradient


def parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def schedule(base: float, step: int) -> float:
    """A learning rate that is another one in every step."""
    return base * (0.6 + 0.4 * math.cos(0.37 * step))


def take_steps(
    optimizer: FlashOptimizer, problem: Problem, device: torch.device, steps: Iterable[int]
) -> None:
    """Steps with the problem's gradients; the learning rate changes every time."""
    params = parameters(optimizer)
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = schedule(optimizer.defaults["lr"], step)
        for param, gradient in zip(params, problem.gradients(step, device), strict=True):
            set_gradient(param, gradient)
        optimizer.step()


def run(
    make: Make,
    options: Options,
    problem: Problem,
    device: torch.device,
    look_at: Collection[int],
) -> dict[int, list[Content]]:
    """What is in parameters and states of a fresh optimizer after the steps `look_at`."""
    optimizer = make(problem.parameter_groups(device), **options)
    seen = {}
    for step in range(1, max(look_at) + 1):
        take_steps(optimizer, problem, device, [step])
        if step in look_at:
            seen[step] = contents(parameters(optimizer), optimizer)
    return seen


def assert_conformance(
    make: Make,
    options: Options,
    problem: Problem,
    device: torch.device,
    look_at: Collection[int],
    targets: Sequence[str],
) -> None:
    """Steps on the device and with each CPU target, and compares all bits after some steps."""
    actual = run(make, options, problem, device, look_at)
    for target in targets:
        with cpu_target(target):
            expected = run(make, options, problem, CPU, look_at)
        for step in sorted(look_at):
            when = f"{device.type} differs from {target} after step {step}"
            assert_same(expected[step], actual[step], problem.names, when)


def both(
    device: torch.device,
    work: Callable[[torch.device], list[Content]],
    names: Sequence[str] | None = None,
) -> None:
    """Does the same on the CPU and on the device and compares all bits."""
    expected, actual = work(CPU), work(device)
    names = names or [f"parameter {index}" for index in range(len(expected))]
    assert_same(expected, actual, names, f"{device.type} differs from the CPU")

"""What gradient release costs for each parameter: python -m bench.release."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import flashoptim_cpp as flash
import torch
from torch import nn

COUNT = 300
REPEATS = 50


def microseconds(work: Callable[[], None]) -> float:
    """The best of several runs, for each parameter."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best * 1e6 / COUNT


def main() -> None:
    """Prints a line for the backward pass alone, the plain step and both kinds of release."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    params = nn.ParameterList(nn.Parameter(torch.randn(8, 64).bfloat16()) for _ in range(COUNT))
    optimizer = flash.FlashAdamW(params)

    def gradients() -> None:
        torch.autograd.backward(torch.stack([param.sum() for param in params]).sum())

    def backward() -> None:
        gradients()
        for param in params:
            param.grad = None

    def step() -> None:
        gradients()
        optimizer.step()
        optimizer.zero_grad()

    times = {"forward and backward": microseconds(backward), "and step": microseconds(step)}
    with flash.enable_gradient_release(params, optimizer):
        times["with release"] = microseconds(step)
    with flash.enable_gradient_release(params, optimizer, max_norm=1.0):
        times["with release and max_norm"] = microseconds(step)
    for name, each in times.items():
        print(f"{name:<28}{each:8.1f} us per parameter")


if __name__ == "__main__":
    main()

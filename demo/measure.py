"""Measurements: bytes of real tensors, equality to the bit, and what this machine can do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside nested dicts, lists and tuples, with the path that leads to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            name = key if isinstance(key, str | int) else type(key).__name__
            yield from leaves(item, f"{path}/{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    else:
        yield path, value


@dataclass(frozen=True)
class Memory:
    """Bytes held by a run between two steps."""

    weights: int
    gradients: int
    optimizer_state: int

    @property
    def total(self) -> int:
        """All three together."""
        return self.weights + self.gradients + self.optimizer_state


def measure_memory(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Memory:
    """Sum the storages of weights, gradients and optimizer state; shared ones count once."""
    parameters = list(model.parameters())
    seen: set[tuple[torch.device, int]] = set()

    def count(tensors: Iterable[Tensor]) -> int:
        total = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = (tensor.device, storage.data_ptr())
            if storage.nbytes() and key not in seen:
                seen.add(key)
                total += storage.nbytes()
        return total

    return Memory(
        weights=count(parameters),
        gradients=count(p.grad for p in parameters if p.grad is not None),
        optimizer_state=count(
            value
            for state in optimizer.state.values()
            for _, value in leaves(state)
            if isinstance(value, Tensor)
        ),
    )


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copies of all weights, all optimizer state and all hyper-parameters."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {
        path: value.detach().clone() if isinstance(value, Tensor) else value
        for path, value in leaves(state)
    }


def first_difference(one: dict[str, Any], two: dict[str, Any]) -> str | None:
    """The path of the first entry that differs in any bit, or None."""
    for path in sorted(one.keys() | two.keys()):
        if path not in one or path not in two or not _same(one[path], two[path]):
            return path
    return None


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    # Bytes, because torch.equal on floats takes -0 for 0 and no NaN for itself.
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def bfloat16_is_fast(device: torch.device) -> bool:
    """Whether a bfloat16 matrix product is at least as fast as a float32 one.

    It is on GPUs and on CPUs with bfloat16 instructions; elsewhere it can be ten times slower.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return _matmul_seconds(torch.bfloat16) <= _matmul_seconds(torch.float32)


def _matmul_seconds(dtype: torch.dtype) -> float:
    a, b = torch.ones(1024, 256, dtype=dtype), torch.ones(256, 768, dtype=dtype)
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begin)
    return best


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown CPU")

"""Clocks for a CPU and for a CUDA device, and what is kept of their samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import torch

Call = Callable[[], object]
# device: events around steps that were queued while the device was busy: what the device needs.
# wall: steps one after another, the last one waited for: what a training loop sees.
# wall_sync: each step waited for.
Metric = Literal["device", "wall", "wall_sync"]
METRICS: Final[tuple[Metric, ...]] = ("device", "wall", "wall_sync")

_SLEEP_CYCLES_PER_SECOND: Final = 2e9  # no GPU's clock is much faster
_LONG_SECONDS: Final = 0.2
_LONGEST_SLEEP_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Statistics:
    """Median and spread of samples, in milliseconds per step."""

    median: float
    min: float
    max: float
    q1: float
    q3: float
    samples: int
    steps_per_sample: int

    @classmethod
    def of(cls, seconds: Sequence[float], steps_per_sample: int) -> Statistics:
        """Of one or more samples in seconds per step."""
        values = sorted(1e3 * value for value in seconds)
        quarters = (
            statistics.quantiles(values, n=4, method="inclusive") if values[1:] else values * 3
        )
        return cls(
            median=statistics.median(values),
            min=values[0],
            max=values[-1],
            q1=quarters[0],
            q3=quarters[2],
            samples=len(values),
            steps_per_sample=steps_per_sample,
        )


class Clock(Protocol):
    """Times calls that step an optimizer or copy memory."""

    device: torch.device

    def wait(self) -> None:
        """Until everything that was started has ended."""

    def metrics(self, wanted: Sequence[Metric]) -> tuple[Metric, ...]:
        """Those of the wanted metrics that differ here, in order."""

    def sample(self, metric: Metric, call: Call, count: int) -> float:
        """Seconds per call, of some calls one after another."""


class CpuClock:
    """Wall time after one call that does not count, so that all find caches and threads alike.

    A call so long that this makes no difference counts itself.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def wait(self) -> None:
        """Nothing runs on its own."""

    def metrics(self, wanted: Sequence[Metric]) -> tuple[Metric, ...]:
        """All of them are one."""
        return ("wall",) if wanted else ()

    def sample(self, metric: Metric, call: Call, count: int) -> float:
        """Wall seconds per call."""
        first = _elapsed(call, 1)
        return first if first >= _LONG_SECONDS else _elapsed(call, count)


def _elapsed(call: Call, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


class CudaClock:
    """Event time and wall time on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sleep: Callable[[int], None] | None = getattr(torch.cuda, "_sleep", None)

    def wait(self) -> None:
        """For all streams of the device."""
        torch.cuda.synchronize(self.device)

    def metrics(self, wanted: Sequence[Metric]) -> tuple[Metric, ...]:
        """All of them."""
        return tuple(wanted)

    def sample(self, metric: Metric, call: Call, count: int) -> float:
        """Seconds per call, as the metric says."""
        call()
        self.wait()
        if metric == "device":
            return self._device(call, count)
        begin = time.perf_counter()
        for _ in range(count):
            call()
            if metric == "wall_sync":
                self.wait()
        self.wait()
        return (time.perf_counter() - begin) / count

    def _device(self, call: Call, count: int) -> float:
        begin = time.perf_counter()
        call()
        host = time.perf_counter() - begin
        self.wait()
        self._keep_busy(1.5 * count * host)
        event: Any = torch.cuda.Event  # without types
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        for _ in range(count):
            call()
        end.record()
        self.wait()
        return float(start.elapsed_time(end)) / 1e3 / count

    def _keep_busy(self, seconds: float) -> None:
        """Lets the device wait, so that what follows is queued before it starts."""
        if self._sleep is not None:
            self._sleep(int(min(seconds, _LONGEST_SLEEP_SECONDS) * _SLEEP_CYCLES_PER_SECOND))


def clock_of(device: torch.device) -> Clock:
    """The clock for a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock()


def calls_per_sample(seconds_per_call: float, seconds_per_sample: float, most: int = 400) -> int:
    """As many calls as fill a sample, at least one."""
    if seconds_per_call <= 0:
        return most
    return max(1, min(most, round(seconds_per_sample / seconds_per_call)))


class Copy:
    """The copy that steps are compared with: ``copy_`` from one buffer to another of its size."""

    def __init__(self, device: torch.device, size: int) -> None:
        count = max(1, size // 4)
        self._source = torch.randint(
            -(1 << 31), (1 << 31) - 1, (count,), dtype=torch.int32, device=device
        )
        self._target = torch.zeros_like(self._source)
        self.moved_bytes = 2 * self._source.nbytes  # read and written

    def __call__(self) -> None:
        """Copies once."""
        self._target.copy_(self._source)

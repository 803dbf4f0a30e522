"""What a piece of work did to the GPU, by torch's profiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile, record_function

_RANGE = "flashoptim_traced_work"
_API = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True)
class Trace:
    """Names of what happened between the start and the end of the work, in order."""

    api_calls: list[str]  # of the CUDA runtime and driver
    kernels: list[str]  # with those that ran after the work had returned
    copies: list[str]  # copies and fills of memory, likewise

    def calls_of(self, *parts: str) -> list[str]:
        """The API calls whose names hold one of `parts`."""
        return [name for name in self.api_calls if any(part in name for part in parts)]


def trace(work: Callable[[], object], device: torch.device) -> Trace:
    """Does the work once under the profiler."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    with profile(activities=activities) as profiler:
        with record_function(_RANGE):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    timed = sorted((e for e in events if "ts" in e and "dur" in e), key=lambda e: float(e["ts"]))
    ranges = [e for e in timed if e["name"] == _RANGE and e.get("cat") == "user_annotation"]
    assert len(ranges) == 1, f"the profiler recorded the work {len(ranges)} times"
    start, length = float(ranges[0]["ts"]), float(ranges[0]["dur"])

    def names(*categories: str) -> list[str]:
        return [str(e["name"]) for e in timed if e.get("cat") in categories]

    inside = [e for e in timed if start <= float(e["ts"]) <= start + length]
    calls = [str(e["name"]) for e in inside if e.get("cat") in _API]
    return Trace(calls, names("kernel"), names("gpu_memcpy", "gpu_memset"))

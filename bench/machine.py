"""Which machine, which software and which sources a result is of."""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import torch

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results"

# What the figures depend on.
_SOURCES: Final = ("bench/*.py", "bindings", "include", "src", "cmake", "CMakeLists.txt")
_PACKAGES: Final = ("torch", "triton", "flashoptim", "bitsandbytes", "torchao", "numpy")
_DECORATION: Final = re.compile(
    r"\((R|TM)\)|@.*|\b(CPU|Processor|NVIDIA|\d+-Core)\b", re.IGNORECASE
)


def slug(name: str) -> str:
    """A processor's name as a part of a file name: lower case, without trade marks and clocks."""
    return re.sub(r"[^a-z0-9]+", "-", _DECORATION.sub(" ", name).lower()).strip("-")


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_memory(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def describe(device: torch.device) -> dict[str, Any]:
    """The machine, as far as figures depend on it."""
    machine: dict[str, Any] = {
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "cpu_target": cpu_target(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        machine |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "gpu_processors": properties.multi_processor_count,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "driver": driver(),
        }
    return machine


def driver() -> str | None:
    """The version of the GPU's driver, which is said once for each GPU."""
    said = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return said.partition("\n")[0] if said else None


def cpu_target() -> str:
    """The instruction set that our CPU step uses."""
    backends: dict[str, str] = importlib.import_module("flashoptim_cpp").backends()
    return backends["cpu"].partition(" of ")[0]


def versions() -> dict[str, str]:
    """Of Python and of the packages that take part."""
    found = {
        "python": platform.python_version(),
        "flashoptim_cpp": str(importlib.import_module("flashoptim_cpp").__version__),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def commit(*more_sources: str) -> str:
    """Of the sources, with a plus where they were changed since; "unknown" outside of git."""
    head = _output("git", "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    sources = (*_SOURCES, *more_sources)
    return head + ("+" if _output("git", "status", "--porcelain", "--", *sources) else "")


def today() -> str:
    """The date in Greenwich."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def _output(*command: str) -> str | None:
    """The output of a program, or None where it cannot be run or fails."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

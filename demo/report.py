"""What the demo tells at the end: a table for people, a file for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import flashoptim_cpp
import torch
from measure import Memory, cpu_name
from train import History, Settings

WARM_UP_TIMINGS = 5  # the first steps allocate state and fill caches


@dataclass(frozen=True)
class Result:
    """One run's measurements."""

    history: History
    memory: Memory
    checkpoint_bytes: int
    parameters: int

    @property
    def bytes_per_param(self) -> float:
        """Weights, gradients and optimizer state."""
        return self.memory.total / self.parameters

    @property
    def checkpoint_bytes_per_param(self) -> float:
        """Size of the file that ``torch.save`` wrote."""
        return self.checkpoint_bytes / self.parameters

    @property
    def optimizer_ms(self) -> float:
        """Median time of ``optimizer.step()``."""
        return statistics.median(self.history.optimizer_ms[WARM_UP_TIMINGS:])

    @property
    def train_step_ms(self) -> float:
        """Median time of forward, backward, clipping and optimizer."""
        return statistics.median(self.history.step_ms[WARM_UP_TIMINGS:])

    @property
    def validation_loss(self) -> float:
        """Loss over the validation windows after the last step."""
        return self.history.validation[-1][1]

    def memory_per_param(self) -> dict[str, float]:
        """Bytes per parameter by kind."""
        return {kind: size / self.parameters for kind, size in asdict(self.memory).items()}


def table(torch_result: Result, flash_result: Result) -> str:
    """The comparison as text."""
    one, two = torch_result, flash_result
    kinds = zip(one.memory_per_param().items(), two.memory_per_param().values(), strict=True)
    rows: list[tuple[str, float, float, int]] = [
        (f"  {kind.replace('_', ' ')}", a, b, 2) for (kind, a), b in kinds
    ]
    rows += [
        ("  total", one.bytes_per_param, two.bytes_per_param, 2),
        ("checkpoint file, bytes/parameter", *_pair("checkpoint_bytes_per_param", one, two), 2),
        ("optimizer step, ms (median)", one.optimizer_ms, two.optimizer_ms, 2),
        ("whole training step, ms (median)", one.train_step_ms, two.train_step_ms, 1),
        ("validation loss, nats/byte", one.validation_loss, two.validation_loss, 4),
    ]
    head = f"{'':34}{'torch AdamW':>13}{'FlashAdamW':>13}{'torch/flash':>13}"
    lines = [head, "-" * len(head), "memory, bytes/parameter"]
    for label, a, b, digits in rows:
        lines.append(f"{label:34}{a:13.{digits}f}{b:13.{digits}f}{a / b:12.2f}x")
    return "\n".join(lines)


def _pair(name: str, one: Result, two: Result) -> tuple[float, float]:
    return getattr(one, name), getattr(two, name)


def summary(
    torch_result: Result,
    flash_result: Result,
    settings: Settings,
    *,
    resume_bit_identical: bool,
    seconds: float,
) -> dict[str, Any]:
    """Everything measured and everything needed to understand it, ready for JSON."""
    results = {"torch": torch_result, "flash": flash_result}

    def each(name: str) -> dict[str, float]:
        return {key: getattr(result, name) for key, result in results.items()}

    return {
        "bytes_per_param": each("bytes_per_param"),
        "step_ms": each("optimizer_ms"),
        "val_loss": each("validation_loss"),
        "checkpoint_bytes_per_param": each("checkpoint_bytes_per_param"),
        "resume_bit_identical": resume_bit_identical,
        "memory_per_param": {key: r.memory_per_param() for key, r in results.items()},
        "train_step_ms": each("train_step_ms"),
        "parameters": torch_result.parameters,
        "steps": settings.steps,
        "tokens_per_step": settings.batch * settings.config.context,
        "seed": settings.seed,
        "device": device_name(settings.device),
        "matmul_dtype": "bfloat16" if settings.autocast else "float32",
        "machine": {
            "cpu": cpu_name(),
            "cpus": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "flashoptim_cpp": flashoptim_cpp.__version__,
        },
        "seconds": round(seconds, 1),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` for people and programs."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

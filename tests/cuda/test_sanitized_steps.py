"""The program that compute-sanitizer runs is right without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

PROGRAM = Path(__file__).with_name("sanitized_steps.py")


def test_the_native_plan_without_torch(device: torch.device) -> None:
    arguments = ["cpu"] if device.type == "cpu" else []
    result = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 results differ" in result.stdout

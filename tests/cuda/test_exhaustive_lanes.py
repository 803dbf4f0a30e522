"""Reciprocal and square root of the fast kernels, for every float of their ranges."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).with_name("exhaustive_lanes.cu")
ROOT = SOURCE.parents[2]
FLAGS = (
    "--std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    "--fmad=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ftz=false",
    "-Xcompiler=-ffp-contract=off",
    f"-I{ROOT / 'include'}",
    f"-I{ROOT / 'src'}",
)
NO_GPU = 2


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_every_float(device: torch.device, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is not on the path")
    architecture = "sm_90"
    if device.type == "cuda":
        architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    program = tmp_path / "exhaustive_lanes"
    built = run(nvcc, *FLAGS, f"-arch={architecture}", str(SOURCE), "-o", str(program))
    assert built.returncode == 0, built.stdout + built.stderr
    checked = run(str(program))
    if device.type == "cpu":
        assert checked.returncode in (0, NO_GPU), checked.stdout + checked.stderr
        pytest.skip("it builds, but only a GPU can run it")
    print(checked.stdout)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count(": 0 differ") == 2

"""The LibTorch adapter on a GPU: the bits of the Python package, and those of the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from parity import CASES, differences, run_package, run_program

pytestmark = pytest.mark.skipif(
    "FLASHOPTIM_LIBTORCH_PARITY" not in os.environ,
    reason="FLASHOPTIM_LIBTORCH_PARITY names no program (scripts/test_cuda.sh)",
)


@pytest.mark.parametrize("name", CASES)
def test_adapter_and_package_agree_on_both_devices(
    name: str, device: torch.device, tmp_path: Path
) -> None:
    case = CASES[name]
    package = run_package(case)
    assert differences(run_program(case, tmp_path / "cpu"), package) == []
    assert differences(run_program(case, tmp_path / "gpu", str(device)), package) == []
    assert differences(run_package(case, str(device)), package) == []

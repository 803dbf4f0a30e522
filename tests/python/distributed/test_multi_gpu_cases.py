"""What `make test-multi-gpu` runs on GPUs, here with a tiny model on two processes of this CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "multi_gpu" / "run.py"


@pytest.mark.timeout(200)
def test_every_case_passes_on_the_cpu(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(RUN), "--device", "cpu", "--tiny", "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["multi-gpu-none.json"]

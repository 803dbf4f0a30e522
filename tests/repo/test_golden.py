"""The golden vectors under version control are those that the independent reference makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GENERATE = Path(__file__).resolve().parents[1] / "golden" / "generate.py"


def test_golden_vectors_are_up_to_date() -> None:
    command = [sys.executable, "-B", str(GENERATE), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

"""The checked-in type stub describes the extension module as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_stub_is_what_make_stubs_writes(tmp_path: Path) -> None:
    fresh = tmp_path / "_C.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "flashoptim_cpp._C"]
    subprocess.run([*command, "-o", str(fresh)], check=True, cwd=tmp_path)
    checked_in = ROOT / "bindings" / "python" / "flashoptim_cpp" / "_C.pyi"
    assert checked_in.read_text(encoding="utf-8") == fresh.read_text(encoding="utf-8"), (
        "the extension module changed: run `make stubs`"
    )

"""The LibTorch adapter leaves the bytes of the Python package."""

from __future__ import annotations

from pathlib import Path

import pytest
from parity import CASES, differences, run_package, run_program


@pytest.mark.parametrize("name", CASES)
def test_the_adapter_ends_with_the_bytes_of_the_package(name: str, tmp_path: Path) -> None:
    ours = run_program(CASES[name], tmp_path)
    theirs = run_package(CASES[name])
    assert differences(ours, theirs) == []
    assert len(theirs) > 6 * len(["weight", "step", "stream_key"])


def test_a_difference_is_found(tmp_path: Path) -> None:
    ours = run_program(CASES["adamw"], tmp_path)
    theirs = run_package(CASES["adamw"], seed=1)
    assert "0.weight" in differences(ours, theirs)
    assert differences(ours, {**ours, "more": b""}) == ["more"]

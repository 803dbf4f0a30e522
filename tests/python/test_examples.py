"""The examples run, and a resumed run of each ends where an uninterrupted one does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from common import same_bits
from snippets import ROOT

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/train.py"))


def load(name: str) -> Any:
    path = ROOT / "examples" / name / "train.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_an_example_of_each_framework() -> None:
    assert EXAMPLES == ["accelerate", "lightning", "torchtitan", "transformers"]


@pytest.mark.filterwarnings("ignore")  # what the frameworks warn of is theirs
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_resumes_to_the_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    example = load(name)
    start = example.train(tmp_path / "short", 3)
    straight = example.train(tmp_path / "straight", 6)
    example.train(tmp_path / "resumed", 3)
    resumed = example.train(tmp_path / "resumed", 6, resume=True)
    assert same_bits(resumed, straight)
    assert not same_bits(start, straight)

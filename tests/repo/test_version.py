"""The version is written in the file VERSION and read from there."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_installed_package_has_the_version_of_the_file() -> None:
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert importlib.metadata.version("flashoptim-cpp") == version

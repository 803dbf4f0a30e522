"""The tests that tests/user-cases.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([\w./]+\.py)::(\w+)`")


def test_every_case_has_tests_that_exist() -> None:
    lines = (TESTS / "user-cases.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if re.match(r"\| [A-Z]\d+ \|", line)]
    assert len(rows) > 30
    missing = [row for row in rows if not NAMED.search(row)]
    for row in rows:
        for file, name in NAMED.findall(row):
            path = TESTS / "python" / file
            if not path.exists() or f"\ndef {name}(" not in path.read_text(encoding="utf-8"):
                missing.append(f"{file}::{name}")
    assert not missing

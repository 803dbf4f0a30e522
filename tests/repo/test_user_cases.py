"""The tests that tests/user-cases.md names exist, and carry the numbers of their cases."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([\w./]+\.py)::(\w+)`")


def docstring(path: Path, name: str) -> str:
    """That of a function of a file; "" if there is none."""
    if not path.exists():
        return ""
    functions = ast.parse(path.read_text(encoding="utf-8")).body
    found = [node for node in functions if isinstance(node, ast.FunctionDef) and node.name == name]
    return (ast.get_docstring(found[0]) or "") if found else ""


def test_every_case_has_tests_that_exist() -> None:
    lines = (TESTS / "user-cases.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if re.match(r"\| [A-Z]\d+ \|", line)]
    assert len(rows) > 30
    wrong = [row for row in rows if not NAMED.search(row)]
    for row in rows:
        number = row.split()[1]
        for file, name in NAMED.findall(row):
            if not re.search(rf"\b{number}\b", docstring(TESTS / "python" / file, name)):
                wrong.append(f"{number}: {file}::{name}")
    assert not wrong

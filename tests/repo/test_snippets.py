"""Code in the documentation stands, line for line, in a file that the tests build and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/cpp.md",)
SNIPPET = re.compile(r"^(?:<!-- (\S+) -->\n)?```(?:cpp|c)\n(.*?)^```$", re.S | re.M)


def lines(text: str) -> list[str]:
    """The lines of a text without their indentation."""
    return [line.strip() for line in text.strip().splitlines()]


def stands_in(snippet: str, source: str) -> bool:
    wanted, found = lines(snippet), lines(source)
    return any(
        found[start : start + len(wanted)] == wanted
        for start in range(len(found) - len(wanted) + 1)
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_stands_in_the_file_that_it_names(page: str) -> None:
    snippets = SNIPPET.findall((ROOT / page).read_text(encoding="utf-8"))
    assert snippets
    for name, code in snippets:
        assert name, f"no file is named above this snippet of {page}:\n{code}"
        source = (ROOT / name).read_text(encoding="utf-8")
        assert stands_in(code, source), f"{name} does not hold this snippet of {page}:\n{code}"


def test_a_snippet_that_differs_is_found() -> None:
    assert stands_in("b;\n  c;\n", "a;\n    b;\n    c;\nd;\n")
    assert not stands_in("b;\nd;\n", "a;\nb;\nc;\nd;\n")

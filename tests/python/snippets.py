"""The Python snippets of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(path: Path, section: str | None = None) -> list[str]:
    """The texts between ```python and ``` in a Markdown file, in order.

    Args:
        path: the file.
        section: take only those below the heading of this text, up to the next heading.
    """
    text = path.read_text(encoding="utf-8")
    if section is not None:
        found = re.search(rf"^#+ {re.escape(section)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
        if found is None:
            raise ValueError(f"{path} has no heading '{section}'")
        text = found[1]
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)

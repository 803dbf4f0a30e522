"""Habits that hold for every file of the tree."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MAX_LINES = 450
CODE_SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
IGNORED_FOLDERS = {".git", ".venv", "build", "dist", "out", "__pycache__"}

# Split so that this file does not hold what it looks for.
MARKERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME"]) + r")\b")
# A folder of somebody's machine; "src/work/x" and "https://host/home/x" are none.
LOCAL_PATH = re.compile(r"(?<![\w./~-])/(" + "|".join(["work", "home", "root", "Users"]) + r")/")


def project_files(root: Path) -> list[Path]:
    """Files under version control or about to be; all but outputs where there is no git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*command, "--exclude-standard"], capture_output=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return sorted(root / name for name in names if name and (root / name).is_file())
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not IGNORED_FOLDERS & set(path.relative_to(root).parts)
    )


def text_of(path: Path) -> str | None:
    """The text of a file, or None for a binary one."""
    data = path.read_bytes()
    return None if b"\0" in data else data.decode("utf-8", errors="replace")


def too_long(root: Path, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        if path.suffix in CODE_SUFFIXES or path.name in ("CMakeLists.txt", "Makefile"):
            count = path.read_text(encoding="utf-8").count("\n")
            if count > MAX_LINES:
                found.append(f"{path.relative_to(root)}: {count} lines")
    return found


def unwanted_text(root: Path, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        for number, line in enumerate((text_of(path) or "").splitlines(), start=1):
            for pattern in (MARKERS, LOCAL_PATH):
                match = pattern.search(line)
                if match:
                    found.append(f"{path.relative_to(root)}:{number}: {match.group()}")
    return found


def test_the_tree_is_seen() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in project_files(ROOT)}
    assert {"CMakeLists.txt", "pyproject.toml", "tests/repo/test_tree.py"} <= names


def test_no_source_file_is_too_long() -> None:
    assert too_long(ROOT, project_files(ROOT)) == []


def test_no_leftover_marker_or_local_path() -> None:
    assert unwanted_text(ROOT, project_files(ROOT)) == []


def test_the_length_check_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "long.cc"
    path.write_text("\n" * (MAX_LINES + 1))
    assert too_long(tmp_path, [path]) == [f"long.cc: {MAX_LINES + 1} lines"]
    path.write_text("\n" * MAX_LINES)
    assert too_long(tmp_path, [path]) == []


def test_the_text_check_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    marker, folder = "TO" + "DO", "/ho" + "me/"
    path.write_text(f"fine\n// {marker}: later\nsee {folder}me/x\nsrc{folder}x is fine\n")
    assert unwanted_text(tmp_path, [path]) == [f"notes.md:2: {marker}", f"notes.md:3: {folder}"]


def test_a_binary_file_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"\0" + b"/ro" + b"ot/")
    assert unwanted_text(tmp_path, project_files(tmp_path)) == []

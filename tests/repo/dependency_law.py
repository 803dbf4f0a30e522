"""The dependency law of the source tree, as data, and a checker that reads ``#include`` lines.

``core <- {cpu, cuda, checkpoint} <- optimizer <- capi <- {bindings, tools}``: a folder may include
what stands to its left and itself. CONTRIBUTING.md says it in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE_SUFFIXES = {".c", ".h", ".hh", ".hpp", ".cc", ".cpp", ".cu", ".cuh", ".inc"}

# Headers from outside the project, by the library that they belong to.
EXTERNAL = {
    "highway": re.compile(r"hwy/"),
    "torch": re.compile(r"(torch|ATen|c10)/"),
    "python": re.compile(r"nanobind/|Python\.h$"),
    "json": re.compile(r"nlohmann/"),
    "zstd": re.compile(r"zstd\.h$|zstd_errors\.h$|zdict\.h$"),
    "cli": re.compile(r"CLI/"),
    "zlib": re.compile(r"zlib\.h$"),
    "test": re.compile(r"gtest/"),
    "os": re.compile(r"(sys|linux|asm)/|(unistd|pthread|sched|fcntl|dlfcn|signal)\.h$"),
}
# Only in angle brackets: "cuda/x.h" in quotes is a folder of this project.
CUDA = re.compile(
    r"(cuda|cub|thrust|cooperative_groups|nv)(/|\.h$)"
    r"|(cuda|cu|nvrtc|nvtx|nvml|curand|cublas|driver_types|vector_types|device_|mma|sm_)[\w/]*\.h$"
)
LAYERS = ("core", "cpu", "cuda", "checkpoint", "optimizer", "capi")
# What the formulas must not reach for: files, consoles, clocks, threads.
CORE_FORBIDDEN_STD = frozenset(
    {"chrono", "condition_variable", "cstdio", "filesystem", "fstream", "future", "iostream"}
    | {"istream", "mutex", "ostream", "print", "shared_mutex", "thread"}
)


@dataclass(frozen=True)
class Law:
    """What the files below one folder may include, besides the C++ standard library."""

    layers: frozenset[str]
    external: frozenset[str] = frozenset()
    forbidden_std: frozenset[str] = frozenset()
    # Headers beside the including file, named without a folder.
    neighbours: bool = False


def law(
    layers: str, external: str = "", forbidden_std: frozenset[str] = frozenset(), near: bool = False
) -> Law:
    return Law(frozenset(layers.split()), frozenset(external.split()), forbidden_std, near)


# The longest folder that holds a file decides. "include" stands for include/flashoptim.
LAWS = {
    "include": law("include"),
    "src/core": law("core include", forbidden_std=CORE_FORBIDDEN_STD),
    "src/cpu": law("cpu core include", "highway os"),
    "src/cuda": law("cuda core include", "cuda"),
    "src/checkpoint": law("checkpoint core include", "json zlib zstd os"),
    "src/optimizer": law("optimizer cpu cuda checkpoint core include"),
    "src/capi": law("capi optimizer include"),
    "bindings": law("capi include", "python", near=True),
    "bindings/libtorch": law("capi include", "torch", near=True),
    "tools": law("capi include", "cli json os", near=True),
    "examples": law("capi include", "os", near=True),
    "examples/libtorch": law("include", "torch"),
    "tests/consumer": law("include", "torch"),
    "tests/libtorch": law("include", "torch test", near=True),
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:([<"])([^>"]+)[>"]|(\S+))', re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)


@dataclass(frozen=True)
class Violation:
    """One include that the law forbids."""

    file: str
    line: int
    include: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: includes {self.include}: {self.reason}"


def includes(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yields (line number, written in angle brackets, path) for each include of a file."""
    text = COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield line, match.group(1) == "<", match.group(2) or match.group(3)


def owner(path: str, in_brackets: bool) -> str:
    """Names the layer or library that a header belongs to; "std" when there is no slash."""
    first = path.split("/")[0]
    if first == "flashoptim":
        return "include"
    if not in_brackets and first in LAYERS and "/" in path:
        return first
    for library, pattern in EXTERNAL.items():
        if pattern.match(path):
            return library
    if CUDA.match(path):
        return "cuda"
    if in_brackets and "/" not in path:
        return "std"
    return "unknown"


def law_of(file: Path) -> tuple[str, Law] | None:
    """Finds the law that governs a file, given relative to the root of the project."""
    for folder in file.parents:
        if folder.as_posix() in LAWS:
            return folder.as_posix(), LAWS[folder.as_posix()]
    return None


def judge(file: Path, beside: Path, in_brackets: bool, path: str) -> str | None:
    """Returns why a file may not include a header, or None when it may."""
    belongs_to = owner(path, in_brackets)
    # "cuda" names a layer of ours and NVIDIA's library: both belong to src/cuda and its tests.
    is_layer = not in_brackets and belongs_to in LAYERS
    governed = law_of(file)
    if governed is None:
        if belongs_to == "torch":
            return "only bindings/libtorch, its tests and its example may know torch"
        if belongs_to == "cuda" and not is_layer and "cuda" not in file.as_posix():
            return "CUDA headers belong to src/cuda and its tests"
        return None
    folder, rules = governed
    if belongs_to == "include":
        return None
    if belongs_to == "std":
        return f"{folder} does no I/O and no threads" if path in rules.forbidden_std else None
    if is_layer:
        return None if belongs_to in rules.layers else f"{folder} may not know src/{belongs_to}"
    if belongs_to == "unknown":
        if rules.neighbours and not in_brackets and "/" not in path and (beside / path).is_file():
            return None
        return 'not a known header; write ours relative to src/ ("core/x.h") or as <flashoptim/x.h>'
    return None if belongs_to in rules.external else f"{folder} may not know {belongs_to}"


def check_tree(root: Path) -> list[Violation]:
    """Checks every C++ and CUDA source below a root; returns what breaks the law."""
    violations = []
    for top in ("include", "src", "bindings", "tools", "examples", "tests", "bench"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SOURCE_SUFFIXES or not path.is_file():
                continue
            file = path.relative_to(root)
            for line, in_brackets, include in includes(path.read_text(encoding="utf-8")):
                reason = judge(file, path.parent, in_brackets, include)
                if reason is not None:
                    shown = f"<{include}>" if in_brackets else f'"{include}"'
                    violations.append(Violation(file.as_posix(), line, shown, reason))
    return violations

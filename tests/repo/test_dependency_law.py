"""Folders are the dependency graph: no include goes against the arrow."""

from __future__ import annotations

from pathlib import Path

import pytest
from dependency_law import LAWS, check_tree, includes

ROOT = Path(__file__).resolve().parents[2]


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_this_project_obeys_the_law() -> None:
    violations = check_tree(ROOT)
    assert not violations, "\n" + "\n".join(map(str, violations))


def test_every_source_folder_has_a_law() -> None:
    folders = {f"src/{path.name}" for path in (ROOT / "src").iterdir() if path.is_dir()}
    assert folders <= LAWS.keys()


# Each file breaks the law by its include.
FORBIDDEN = [
    ("include/flashoptim/a.h", "<hwy/highway.h>"),
    ("include/flashoptim/a.h", "<cuda_runtime.h>"),
    ("include/flashoptim/a.h", "<torch/extension.h>"),
    ("include/flashoptim/a.h", '"core/lanes.h"'),
    ("src/core/a-inl.h", '"cpu/pool.h"'),
    ("src/core/a-inl.h", '"hwy/highway.h"'),
    ("src/core/a-inl.h", "<cuda_runtime.h>"),
    ("src/core/a-inl.h", "<fstream>"),
    ("src/core/a-inl.h", "<sys/mman.h>"),
    ("src/cpu/a.cc", '"cuda/backend.h"'),
    ("src/cpu/a.cc", '"optimizer/plan.h"'),
    ("src/cpu/a.cc", '"../core/a-inl.h"'),
    ("src/cpu/a.cc", '"a.h"'),
    ("src/cuda/a.cu", '"cpu/pool.h"'),
    ("src/cuda/a.cu", '"hwy/highway.h"'),
    ("src/checkpoint/a.cc", '"optimizer/plan.h"'),
    ("src/optimizer/a.cc", '"capi/error.h"'),
    ("src/optimizer/a.cc", "<cuda_runtime.h>"),
    ("src/optimizer/a.cc", "<hwy/highway.h>"),
    ("src/optimizer/a.cc", "<zlib.h>"),
    ("src/capi/a.cc", '"cpu/pool.h"'),
    ("src/new_folder/a.cc", "<torch/torch.h>"),
    ("bindings/python/a.cc", '"optimizer/plan.h"'),
    ("bindings/python/a.cc", '"core/lanes.h"'),
    ("bindings/python/a.cc", "<torch/extension.h>"),
    ("bindings/python/a.cc", '"no_such_neighbour.h"'),
    ("tools/a.cc", '"checkpoint/file.h"'),
    ("tools/a.cc", "<ATen/ATen.h>"),
    ("examples/cpp/a.cc", "<torch/torch.h>"),
    ("tests/libtorch/a.cc", '"optimizer/plan.h"'),
    ("tests/cpp/plan_test.cc", "<cuda_runtime_api.h>"),
    ("tests/cpp/plan_test.cc", "<c10/core/Device.h>"),
    ("bench/cpp/step_bench.cc", "<cuda.h>"),
]

ALLOWED = [
    ("include/flashoptim/a.h", "<cstdint>"),
    ("include/flashoptim/a.h", '"flashoptim/b.h"'),
    ("src/core/a-inl.h", '"core/lanes.h"'),
    ("src/core/a-inl.h", "<flashoptim/b.h>"),
    ("src/core/a-inl.h", "<bit>"),
    ("src/cpu/a.cc", '"hwy/foreach_target.h"'),
    ("src/cpu/a.cc", "<thread>"),
    ("src/cpu/a.cc", "<pthread.h>"),
    ("src/cuda/a.cu", "<cuda_fp16.h>"),
    ("src/cuda/a.cu", "<cooperative_groups/reduce.h>"),
    ("src/cuda/a.cu", '"cuda/launch.h"'),
    ("src/checkpoint/a.cc", "<nlohmann/json.hpp>"),
    ("src/checkpoint/a.cc", "<zlib.h>"),
    ("tools/a.cc", "<nlohmann/json.hpp>"),
    ("src/optimizer/a.cc", '"cuda/backend.h"'),
    ("src/capi/a.cc", '"optimizer/plan.h"'),
    ("bindings/python/a.cc", "<nanobind/nanobind.h>"),
    ("bindings/python/a.cc", '"neighbour.h"'),
    ("bindings/libtorch/a.cc", "<torch/torch.h>"),
    ("examples/libtorch/a.cc", "<torch/nn.h>"),
    ("tests/libtorch/a.cc", "<gtest/gtest.h>"),
    ("tools/a.cc", "<CLI/CLI.hpp>"),
    ("tests/cpp/plan_test.cc", '"cpu/pool.h"'),
    ("tests/cpp/cuda_step_test.cc", "<cuda_runtime_api.h>"),
]


@pytest.mark.parametrize(("file", "include"), FORBIDDEN)
def test_a_forbidden_include_is_found(tmp_path: Path, file: str, include: str) -> None:
    write(tmp_path, file, f"// A comment.\n#include <vector>\n#  include {include}\n")
    (violation,) = check_tree(tmp_path)
    assert (violation.file, violation.line, violation.include) == (file, 3, include)


@pytest.mark.parametrize(("file", "include"), ALLOWED)
def test_an_allowed_include_passes(tmp_path: Path, file: str, include: str) -> None:
    write(tmp_path, "bindings/python/neighbour.h", "")
    write(tmp_path, file, f"#include {include}\n")
    assert check_tree(tmp_path) == []


def test_an_include_in_a_comment_does_not_count() -> None:
    text = '/*\n#include "x.h"\n*/\n// #include "y.h"\n#include <bit>\n'
    assert list(includes(text)) == [(5, True, "bit")]


def test_an_include_through_a_macro_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "src/core/a-inl.h", "#include HIDDEN\n")
    (violation,) = check_tree(tmp_path)
    assert violation.include == '"HIDDEN"'

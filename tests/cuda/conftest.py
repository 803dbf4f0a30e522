"""Settings that all CUDA tests share.

FLASHOPTIM_TEST_DEVICE=cpu puts the CPU in the place of the GPU: everything is compared with itself,
which shows that the tests work, and what only a GPU can show is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flashoptim_cpp import _C

DEVICE = torch.device(os.environ.get("FLASHOPTIM_TEST_DEVICE", "cuda:0"))
# Small tensors on a busy machine: torch's threads would wait for each other.
THREADS = 1 if DEVICE.type == "cpu" else 4

# What fails first tells most.
ORDER = (
    "test_sanitized_steps",
    "test_exhaustive_lanes",
    "test_conformance",
    "test_shapes",
    "test_columns",
    "test_streams_and_devices",
    "test_amp",
    "test_graphs",
    "test_checkpoint_devices",
    "test_libtorch",
    "test_no_hidden_work",
    "test_large",
)


def pytest_configure(config: pytest.Config) -> None:
    if DEVICE.type == "cpu":
        return
    if not torch.cuda.is_available():
        pytest.exit("PyTorch finds no GPU; FLASHOPTIM_TEST_DEVICE=cpu tries the tests", 2)
    if not _C.cuda_available():
        pytest.exit(f"flashoptim_cpp cannot step CUDA tensors: {_C.cuda_status()}", 2)


def pytest_report_header(config: pytest.Config) -> str:
    name = "the CPU in its place"
    if DEVICE.type == "cuda":
        name = torch.cuda.get_device_name(DEVICE)
    return f"GPU: {name}; torch {torch.__version__}; CPU targets: {', '.join(_C.cpu_targets())}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: index for index, name in enumerate(ORDER)}
    items.sort(key=lambda item: place.get(Path(str(item.path)).stem, len(ORDER)))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test."""
    return DEVICE


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    """The same, for tests of what only a GPU does."""
    if device.type != "cuda":
        pytest.skip("only a GPU can show this")
    return device


@pytest.fixture(autouse=True)
def _same_start(device: torch.device) -> Iterator[None]:
    """Every test starts from the same seed, and errors of its kernels are its own."""
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(THREADS)
    if device.type == "cuda":
        torch.cuda.synchronize(device)

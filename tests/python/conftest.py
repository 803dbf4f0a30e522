"""Settings that all Python tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes tens of seconds or gigabytes")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Every test starts from the same seed and with one thread.

    On a busy machine torch's threads wait for each other longer than these small tensors take.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)

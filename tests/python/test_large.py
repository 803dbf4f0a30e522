"""Tensors of more than 2^31 elements."""

from __future__ import annotations

import flashoptim_cpp as flash
import pytest
import torch
from torch import nn

ELEMENTS = 2**31 + 5
NEEDED_GB = 20


def available_gb() -> float:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    return int(fields["MemAvailable"].split()[0]) / 2**20


@pytest.mark.slow
@pytest.mark.xdist_group("memory")
def test_elements_beyond_2_to_the_31_are_updated() -> None:
    """C14."""
    if available_gb() < NEEDED_GB:
        pytest.skip(f"needs {NEEDED_GB} GB of free memory")
    torch.set_num_threads(2)
    param = nn.Parameter(torch.ones(ELEMENTS, dtype=torch.bfloat16))
    param.grad = torch.zeros_like(param)
    places = [0, 1, 2**30, 2**31 - 1, 2**31, 2**31 + 3, ELEMENTS - 1]
    param.grad[places] = 1.0
    optimizer = flash.FlashLion([param], lr=0.25)
    optimizer.step()
    assert param.detach()[places].tolist() == [0.75] * len(places)
    others = [2, 2**31 - 2, 2**31 + 1, 2**31 + 2]
    assert param.detach()[others].tolist() == [1.0] * len(others)
    # In pieces: a comparison of all would take more memory than the optimizer.
    changed = sum(int(torch.count_nonzero(piece != 1)) for piece in param.detach().split(2**27))
    assert changed == len(places)
    state = optimizer.state[param]
    assert state["exp_avg_scale"].shape == (1, 2**25 + 1)
    assert state["exp_avg"][places].tolist() == [127] * len(places)

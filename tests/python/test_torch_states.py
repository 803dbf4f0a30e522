"""State dicts of torch's optimizers, where they differ from the usual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import parameter, same_bits, train
from torch import nn


def test_torchs_sgd_without_a_buffer_yet_starts_undamped_as_there() -> None:
    params = [parameter(4, 64)]
    reference = torch.optim.SGD(params, lr=1e-2)
    train(params, reference, range(2))
    twins = [nn.Parameter(params[0].detach().clone())]
    optimizer = flash.FlashSGD(twins, quantize=False)
    optimizer.load_state_dict(reference.state_dict())
    for each in (reference, optimizer):
        each.param_groups[0].update(momentum=0.9, dampening=0.5)
    start = [params[0].detach().clone()]
    train(params, reference, range(2, 4))
    train(twins, optimizer, range(2, 4))
    moved = float((params[0].detach() - start[0]).norm())
    assert float((params[0] - twins[0]).detach().norm()) < 1e-5 * moved


@pytest.mark.parametrize(
    "options", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str
)
def test_every_implementation_of_torchs_adamw_goes_on(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """B8."""
    params = [parameter(8, 64)]
    reference = torch.optim.AdamW(params, amsgrad=True, **options)
    train(params, reference, range(3))
    path = tmp_path / "state.pt"
    torch.save(reference.state_dict(), path)
    optimizer = flash.FlashAdamW(params)
    optimizer.load_state_dict(torch.load(path, weights_only=True))
    assert same_bits(optimizer.state[params[0]]["step"], torch.tensor(3.0))
    assert {"max_exp_avg_sq", "max_exp_avg_sq_scale"} <= optimizer.state[params[0]].keys()
    assert optimizer.param_groups[0]["foreach"] is None
    train(params, optimizer, range(3, 4))

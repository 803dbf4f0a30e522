"""State that other code moves or replaces between steps."""

import flashoptim_cpp as flash
import pytest
import torch
from common import parameter, set_gradients

NAMES = (
    "step",
    "weight_correction",
    "exp_avg",
    "exp_avg_scale",
    "exp_avg_sq",
    "exp_avg_sq_scale",
)


def stepped() -> tuple[torch.nn.Parameter, flash.FlashAdamW]:
    torch.manual_seed(0)
    param = parameter(8, 64, dtype=torch.bfloat16)
    optimizer = flash.FlashAdamW([param])
    set_gradients([param], 0)
    optimizer.step()
    return param, optimizer


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_moved_in_place_is_stepped_where_it_is(name: str) -> None:
    """As code does that brings optimizers to another device: `t.data = t.data.to(...)`."""
    param, optimizer = stepped()
    twin, other = stepped()
    old = optimizer.state[param][name]
    before = old.data
    untouched = before.clone()
    old.data = before.clone()
    for tensor, each in ((param, optimizer), (twin, other)):
        set_gradients([tensor], 1)
        each.step()
    assert torch.equal(before, untouched)
    assert torch.equal(param, twin)
    for key, value in other.state[twin].items():
        assert torch.equal(optimizer.state[param][key], value), key

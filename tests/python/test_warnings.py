"""Warnings name the line of the user's program that they are about."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

NEAREST: dict[str, Any] = {"master_weight_bits": None, "stochastic_rounding": False}


def narrow() -> nn.Parameter:
    return nn.Parameter(torch.ones(64, dtype=torch.bfloat16))


def misspelt() -> None:
    flash.FlashAdamW([{"params": [narrow()], "weight_deacy": 0.1}])


def misspelt_later() -> None:
    optimizer = flash.FlashAdamW([narrow()])
    optimizer.add_param_group({"params": [narrow()], "weight_deacy": 0.1})


def loses_updates() -> None:
    flash.FlashSGD([narrow()], lr=0.1, **NEAREST)


def loses_updates_later() -> None:
    param = nn.Parameter(torch.ones(64))
    optimizer = flash.FlashAdamW([param], **NEAREST)
    param.data = param.data.bfloat16()
    param.grad = torch.ones_like(param)
    optimizer.step()


def released(prepare: Callable[[Any], object]) -> None:
    model = nn.Linear(4, 4)
    optimizer = flash.FlashAdamW(model.parameters())
    flash.enable_gradient_release(model, optimizer)
    prepare(optimizer)
    torch.autograd.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()


def released_plain() -> None:
    released(lambda optimizer: None)


def released_with_hooks_and_a_scheduler() -> None:
    def prepare(optimizer: Any) -> None:
        optimizer.register_step_post_hook(lambda *_: None)
        lr_scheduler.ConstantLR(optimizer)

    released(prepare)


@pytest.mark.parametrize(
    ("work", "where"),
    [
        (misspelt, misspelt),
        (misspelt_later, misspelt_later),
        (loses_updates, loses_updates),
        (loses_updates_later, loses_updates_later),
        (released_plain, released),
        (released_with_hooks_and_a_scheduler, released),
    ],
)
def test_a_warning_points_at_the_user(work: Callable[[], None], where: Callable[..., None]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    lines, first = inspect.getsourcelines(where)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert first < caught[0].lineno < first + len(lines)

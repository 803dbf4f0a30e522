"""Whatever is saved, copied and loaded between steps, training goes on as if nothing had been."""

from __future__ import annotations

import copy
import io
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import RULES, bits_of, same_bits
from torch import nn

SHAPES = ((5, 64), (3, 100), (70,), (), (0, 4), (2, 3, 64), (4, 3))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
STEPS = 12

Make = Callable[[list[nn.Parameter]], flash.FlashOptimizer]


def through_a_file(state_dict: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def loaded_from_a_copy(optimizer: flash.FlashOptimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def loaded_from_a_file(optimizer: flash.FlashOptimizer) -> None:
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))


def loaded_from_itself(optimizer: flash.FlashOptimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def loaded_from_a_pickle(optimizer: flash.FlashOptimizer) -> None:
    optimizer.load_state_dict(pickle.loads(pickle.dumps(optimizer)).state_dict())


def emptied_and_restored(optimizer: flash.FlashOptimizer) -> None:
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict({**saved, "state": {}})
    optimizer.load_state_dict(saved)


def exchanged_and_restored(optimizer: flash.FlashOptimizer) -> None:
    """The state dict of the optimizer itself is kept, and must not be written."""
    saved = optimizer.state_dict()
    optimizer.load_state_dict(copy.deepcopy({**saved, "state": saved["state"]}))
    for state in optimizer.state.values():
        for value in state.values():
            value.fill_(1)
    optimizer.load_state_dict(saved)


EVENTS = (
    loaded_from_a_copy,
    loaded_from_a_file,
    loaded_from_itself,
    loaded_from_a_pickle,
    emptied_and_restored,
    exchanged_and_restored,
)


def set_some_gradients(params: list[nn.Parameter], step: int) -> None:
    for index, param in enumerate(params):
        generator = torch.Generator().manual_seed(100 * step + index)
        gradient = torch.randn(param.shape, generator=generator).to(param.dtype)
        param.grad = None if random.Random(100 * step + index).random() < 0.2 else gradient


@pytest.mark.parametrize("seed", range(40))
def test_events_between_steps_leave_no_trace(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    make, options = RULES[chance.choice(list(RULES))]
    options = {
        **options,
        "lr": 1e-2,
        "master_weight_bits": chance.choice([None, 16, 24, 32]),
        "codec": chance.choice(["root", "softsign", "none"]),
        "stochastic_rounding": chance.random() < 0.5,
        "compress_state_dict": chance.random() < 0.8,
    }
    params = [
        nn.Parameter(torch.randn(shape).to(chance.choice(DTYPES)))
        for shape in chance.sample(SHAPES, 4)
    ]
    twins = [nn.Parameter(param.detach().clone()) for param in params]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*updates below half a unit")
        straight, disturbed = make(params, **options), make(twins, **options)
    events = []
    for step in range(STEPS):
        for each, optimizer in ((params, straight), (twins, disturbed)):
            set_some_gradients(each, step)
            optimizer.step()
        if disturbed.state:
            events.append(chance.choice(EVENTS))
            events[-1](disturbed)
        assert same_bits(bits_of(params, straight), bits_of(twins, disturbed)), (options, events)

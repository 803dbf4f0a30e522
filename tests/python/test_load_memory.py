"""B7: loading needs memory for the state that is made and for one tensor more.

An optimizer that has state already is loaded into that memory, and as a whole or not at all.
"""

from __future__ import annotations

import copy
import subprocess
import sys

import flashoptim_cpp as flash
import pytest
import torch
from common import bits_of, mixed_parameters, parameter, same_bits, train
from torch import nn

# Prints the memory that loading added, that of a state and the number of elements.
PEAK = """
import flashoptim_cpp as flash, torch

torch.set_num_threads(1)
elements = 1 << 24

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

def stepped(param, bits=24):
    optimizer = flash.FlashAdamW([param], master_weight_bits=bits)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    param.grad = None
    return optimizer

param = torch.nn.Parameter(torch.zeros(elements // 1024, 1024, dtype=torch.bfloat16))
saved = stepped(param, BITS).state_dict()
other = OTHER
held = HELD
ballast = torch.ones(max(0, peak() - resident()), dtype=torch.uint8)  # up to the peak so far
before = peak()
other.load_state_dict(saved)
state = sum(value.nbytes for value in other.state[param].values())
print(peak() - before, state, elements)
"""
SLACK = 6 << 20


def measured(other: str, bits: int = 24, held: str = "None") -> tuple[int, int, int]:
    script = PEAK.replace("OTHER", other).replace("HELD", held).replace("BITS", str(bits))
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    more, state, largest_tensor = map(int, run.stdout.split())
    return more, state, largest_tensor


def test_b7_the_peak_is_one_state_and_one_tensor() -> None:
    """B7."""
    more, state, largest_tensor = measured("flash.FlashAdamW([param])")
    assert state - SLACK <= more <= state + largest_tensor + SLACK


@pytest.mark.parametrize("bits", [24, 32])
def test_b7_an_optimizer_with_state_is_loaded_in_place(bits: int) -> None:
    """B7."""
    more, state, _ = measured(f"stepped(param, {bits})", bits)
    assert state > 4 * SLACK
    assert more <= SLACK


def test_b7_state_that_somebody_holds_is_not_written() -> None:
    more, state, largest_tensor = measured("stepped(param)", held="other.state_dict()")
    assert state - SLACK <= more <= state + largest_tensor + SLACK


def pair() -> tuple[list[nn.Parameter], flash.FlashAdamW]:
    torch.manual_seed(0)
    params = mixed_parameters()
    return params, flash.FlashAdamW(params, lr=1e-2, master_weight_bits=32)


def places(params: list[nn.Parameter], optimizer: flash.FlashAdamW) -> list[list[int]]:
    return [[v.data_ptr() for v in optimizer.state[p].values() if v.dim()] for p in params]


def test_tensors_stay_where_they_are() -> None:
    params, optimizer = pair()
    train(params, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    wanted = bits_of(params, optimizer)
    train(params, optimizer, range(2, 4))
    before = places(params, optimizer)
    for param, (weight, _) in zip(params, wanted, strict=True):
        param.data.copy_(weight)
    optimizer.load_state_dict(saved)
    assert same_bits(bits_of(params, optimizer), wanted)
    assert places(params, optimizer) == before
    twins, other = pair()
    train(twins, other, range(5))
    train(params, optimizer, range(2, 5))
    assert same_bits(bits_of(params, optimizer), bits_of(twins, other))


def test_two_states_can_be_exchanged_again_and_again() -> None:
    """As with torch's optimizers, which never write into what a state dict holds."""
    params, optimizer = pair()
    train(params, optimizer, range(2))
    one = optimizer.state_dict()
    _, source = pair()
    others = source.param_groups[0]["params"]
    train(others, source, range(4))
    two = source.state_dict()
    first, second = copy.deepcopy(one), copy.deepcopy(two)
    for _ in range(2):
        optimizer.load_state_dict(two)
        assert same_bits(optimizer.state_dict()["state"], second["state"])
        assert same_bits(one["state"], first["state"])
        optimizer.load_state_dict(one)
        assert same_bits(optimizer.state_dict()["state"], first["state"])
        assert same_bits(two["state"], second["state"])


def test_states_of_one_optimizer_can_be_permuted() -> None:
    params = [parameter(8, 64, dtype=torch.bfloat16) for _ in range(3)]
    optimizer = flash.FlashAdamW(params, master_weight_bits=32)
    train(params, optimizer, range(2))
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved["state"])
    turned = {i: saved["state"][(i + 1) % 3] for i in range(3)}
    groups = saved["param_groups"]
    del saved
    optimizer.load_state_dict({"state": turned, "param_groups": groups})
    del turned
    found = optimizer.state_dict()["state"]
    for i in range(3):
        kept[(i + 1) % 3]["stream_key"] = found[i]["stream_key"]
        assert same_bits(found[i], kept[(i + 1) % 3])


def test_the_last_parameter_being_wrong_leaves_the_first_as_it_was() -> None:
    params, optimizer = pair()
    train(params, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train(params, optimizer, range(2, 4))
    saved["state"][5]["exp_avg_sq"][0, 0] = -1.0  # kept in fp32, being short
    before = bits_of(params, optimizer)
    with pytest.raises(ValueError, match=r"parameter 5 of group 0.*negative"):
        optimizer.load_state_dict(saved)
    assert same_bits(bits_of(params, optimizer), before)

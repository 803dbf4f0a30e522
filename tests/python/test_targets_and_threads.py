"""The same bits from every CPU target and any number of threads."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from common import RULES, STORAGES, bits_of, mixed_parameters, parameter, set_gradients, train
from flashoptim_cpp import _C
from torch import Tensor


def digest(value: Any) -> str:
    """A hash of all bytes in nested containers of tensors."""
    sha = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, Tensor):
            sha.update(item.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            for name in sorted(item):
                sha.update(name.encode())
                add(item[name])
        else:
            for part in item:
                add(part)

    add(value)
    return sha.hexdigest()


def train_everything() -> str:
    """A hash of what all rules and ways of keeping state come to."""
    results = []
    for make, options in RULES.values():
        for storage in STORAGES.values():
            torch.manual_seed(0)
            params = [*mixed_parameters(), parameter(3, 200), parameter(70, 67)]
            optimizer = make(params, **{"lr": 1e-2, **options, **storage})
            train(params, optimizer, range(3))
            set_gradients(params, 3)
            params[0].grad[1, 3] = float("nan")
            optimizer.step()
            results.append(bits_of(params, optimizer))
    return digest(results)


@functools.cache
def result_of_target(target: str) -> tuple[str, str]:
    """The target in use and the hash, from a process that is told to use a target."""
    code = (
        "import test_targets_and_threads as tests, torch\n"
        "from flashoptim_cpp import _C\n"
        "torch.set_num_threads(1)\n"
        "print(_C.cpu_target(), tests.train_everything())\n"
    )
    env = {**os.environ, "FLASHOPTIM_CPU_TARGET": target}
    folder = os.path.dirname(__file__)
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=folder)
    name, result = out.stdout.split()
    return name, result


@pytest.mark.parametrize("target", ["avx512_vbmi", "avx512", "avx2", "scalar"])
def test_a_forced_target_is_used_and_gives_the_same_bits(target: str) -> None:
    if target not in _C.cpu_targets():
        pytest.skip(f"this machine has no {target}")
    name, result = result_of_target(target)
    assert name == target
    assert result == train_everything()


def test_a_target_that_this_machine_lacks_is_refused_by_name() -> None:
    env = {**os.environ, "FLASHOPTIM_CPU_TARGET": "abacus"}
    command = [sys.executable, "-c", "from flashoptim_cpp import _C; _C.cpu_target()"]
    out = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert out.returncode != 0
    assert "abacus" in out.stderr


@pytest.mark.parametrize("rule", RULES)
def test_any_number_of_threads_gives_the_same_bits(rule: str) -> None:
    make, options = RULES[rule]
    results = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        params = [parameter(300, 320, dtype=torch.bfloat16), parameter(70000), *mixed_parameters()]
        optimizer = make(params, stochastic_rounding=True, **options)
        train(params, optimizer, range(3))
        assert _C.cpu_threads() == threads
        results.append(bits_of(params, optimizer))
    assert len({digest(result) for result in results}) == 1

"""Loading needs memory for the state that is made and for one tensor more."""

from __future__ import annotations

import subprocess
import sys

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

param = torch.nn.Parameter(torch.zeros(elements // 1024, 1024, dtype=torch.bfloat16))
one = flash.FlashAdamW([param])
param.grad = torch.zeros_like(param)
one.step()
param.grad = None
saved = one.state_dict()
other = flash.FlashAdamW([param])
ballast = torch.ones(max(0, peak() - resident()), dtype=torch.uint8)  # up to the peak so far
before = peak()
other.load_state_dict(saved)
state = sum(value.nbytes for value in other.state[param].values())
print(peak() - before, state, elements)
"""


def test_the_peak_is_one_state_and_one_tensor() -> None:
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    more, state, largest_tensor = map(int, run.stdout.split())
    slack = 6 << 20
    assert state - slack <= more <= state + largest_tensor + slack

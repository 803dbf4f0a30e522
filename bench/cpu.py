"""Times CPU steps of our optimizers beside torch's, all in one process and in turn.

make bench-cpu
python -m bench.cpu --quick    # tiny tensors, to see that it works

Writes bench/results/cpu-MODEL-THREADSt.json and prints what it holds. The last line is our AdamW's
speed as a multiple of torch's fused AdamW in fp32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run as a file; `cuda.py` beside it must not hide a package of that name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from bench import command_line, machine, results, tables
from bench.cases import CPU_CASES
from bench.measure import CpuClock

_COPY_BYTES = 1 << 28


def main() -> int:
    """Runs the benchmark; the result is the exit status."""
    parser = argparse.ArgumentParser(description="Time CPU steps beside torch's optimizers.")
    command_line.add_arguments(parser, rounds=7, budget=150)
    parser.add_argument("--threads", type=int, help="threads of torch and of our step")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    cases = command_line.chosen_cases(parser, arguments, CPU_CASES)
    options = command_line.options(arguments, seconds_per_sample=0.05, copy_bytes=_COPY_BYTES)
    clock = CpuClock()
    result = results.new(
        "cpu",
        clock.device,
        command_line.command("bench.cpu"),
        arguments.commit,
        command_line.settings(options),
    )
    name = f"cpu-{machine.slug(machine.cpu_name())}-{torch.get_num_threads()}t"
    path = command_line.output(arguments, name)
    command_line.run_cases(cases, clock, options, arguments.budget, result, path)
    print(tables.machine_line(result))
    command_line.print_cases(result)
    print(f"\nwritten: {command_line.short(path)}")
    print(last_line(result))
    return 0


def last_line(result: results.Result) -> str:
    """The speed against torch's fused AdamW in fp32 at the two sizes that count."""
    ratios = (
        (name, results.speed_ratio(result, name, "adamw", "torch-fused-fp32"))
        for name in ("2^26", "gpt2")
    )
    told = (f"{ratio:.2f}x ({name})" for name, ratio in ratios if ratio is not None)
    return f"adamw vs torch fused fp32: {' '.join(told) or 'not run'}"


if __name__ == "__main__":
    sys.exit(main())

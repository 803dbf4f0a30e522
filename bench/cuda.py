"""Times GPU steps of our optimizers beside torch's and other packages', in one process and in turn.

make bench-cuda
python -m bench.cuda --cases gpt2,resnet50 --peers official,torchao
python -m bench.cuda --quick --device cpu    # tiny tensors, to see that it works

Peers take part if they can be imported: flashoptim (the official package), bitsandbytes, torchao.
Writes bench/results/cuda-GPU.json and prints what it holds. The last line counts the targets that
are met; the exit status does not depend on it. Without a usable GPU the exit status is 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

if not __package__:  # run as a file; this file must not hide a package of its name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import flashoptim_cpp
import torch

from bench import command_line, machine, results, tables
from bench.cases import CUDA_CASES
from bench.contenders import PEERS
from bench.measure import clock_of

_COPY_BYTES = 1 << 32


def main() -> int:
    """Runs the benchmark; the result is the exit status."""
    parser = argparse.ArgumentParser(description="Time GPU steps beside other optimizers.")
    command_line.add_arguments(parser, rounds=11, budget=300)
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help=f"packages that take part, with commas, or none (default: {','.join(PEERS)})",
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, …; cpu only with --quick")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    problem = _problem(device, quick=arguments.quick)
    if problem:
        print(f"bench-cuda: {problem}", file=sys.stderr)
        return 2
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    cases = command_line.chosen_cases(parser, arguments, CUDA_CASES)
    options = command_line.options(
        arguments, seconds_per_sample=0.03, copy_bytes=_COPY_BYTES, peers=_peers(parser, arguments)
    )
    result = results.new(
        "cuda",
        device,
        command_line.command("bench.cuda"),
        arguments.commit,
        command_line.settings(options),
    )
    path = command_line.output(arguments, f"cuda-{_name(device)}")
    command_line.run_cases(cases, clock_of(device), options, arguments.budget, result, path)
    _print(result, path)
    return 0


def _problem(device: torch.device, *, quick: bool) -> str:
    """Why the device cannot be used, or nothing."""
    if device.type == "cpu":
        return "" if quick else "--device cpu is for --quick; python -m bench.cpu times a CPU"
    if device.type != "cuda":
        return f"--device must be a CUDA device, not {device}"
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU on this machine"
    if (device.index or 0) >= torch.cuda.device_count():
        return f"there is no {device}; torch finds {torch.cuda.device_count()} GPUs"
    if "cuda" not in flashoptim_cpp.backends():
        return "flashoptim_cpp was built without CUDA; build it with FLASHOPTIM_CUDA=ON"
    return ""


def _peers(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> frozenset[str]:
    """The packages that take part; those not installed are left out."""
    names = {"official": "flashoptim"}
    wanted = [names.get(name, name) for name in arguments.peers.split(",") if name != "none"]
    for name in wanted:
        if name not in PEERS:
            parser.error(f"no peer '{name}'; there are {', '.join(PEERS)}")
    return frozenset(name for name in wanted if importlib.util.find_spec(name) is not None)


def _name(device: torch.device) -> str:
    return machine.slug(torch.cuda.get_device_name(device)) if device.type == "cuda" else "none"


def _print(result: results.Result, path: Path) -> None:
    print(tables.machine_line(result))
    command_line.print_cases(result)
    print(f"\n{tables.of_cases(result).text()}")
    print(f"\n{tables.of_targets(result).text()}")
    print(f"\nwritten: {command_line.short(path)}")
    targets = result["targets"]
    print(f"targets met: {sum(target['met'] for target in targets)} of {len(targets)}")


if __name__ == "__main__":
    sys.exit(main())

"""What all experiments share: their arguments, their device, and the result file they write.

A ``main`` looks like this::

    parser = common.parser("dynamics", __doc__)
    parser.add_argument("--steps", type=int, default=2000)
    run = common.Run("dynamics", parser.parse_args(arguments))
    ... run.device, run.smoke, run.seed, run.generator(stream) ...
    run.save(regimes=rows)
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import flashoptim_cpp
import torch

from bench import machine, results
from bench.command_line import command, short
from bench.results import Result
from bench.runner import note

ROOT: Final = machine.ROOT
RESULTS: Final = ROOT / "experiments" / "results"
OUT: Final = ROOT / "experiments" / "out"  # results of smoke runs, which are none
PEERS: Final = ("flashoptim", "bitsandbytes")

T = TypeVar("T")

_SOURCES: Final = ("experiments/*.py", "experiments/*/*.py", "demo/*.py")
_NO_SETTINGS: Final = ("out", "commit")


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every experiment has: ``--device --smoke --seed --out --commit``."""
    made = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = "cuda" if torch.cuda.is_available() and "cuda" in flashoptim_cpp.backends() else "cpu"
    made.add_argument("--device", default=default, help=f"cpu, cuda, cuda:1, … (here: {default})")
    made.add_argument(
        "--smoke", action="store_true", help="tiny, to see that it works; the figures mean nothing"
    )
    made.add_argument("--seed", type=int, default=0, help="of all random numbers (default: 0)")
    made.add_argument("--out", type=Path, help="the result file (default: in experiments/results)")
    made.add_argument("--commit", default="", help="name of the sources where there is no git")
    return made


class Run:
    """One run of an experiment: where, from which seed, and what comes out of it.

    Leaves the program with status 2 and one line if the device cannot be used.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.smoke = bool(arguments.smoke)
        self.seed = int(arguments.seed)
        self.device = usable_device(name, arguments.device)
        torch.manual_seed(self.seed)
        self.result: Result = results.head(
            name,
            self.device,
            command(f"experiments.{name}"),
            arguments.commit or machine.commit(*_SOURCES),
            {
                key: str(value) if isinstance(value, Path) else value
                for key, value in vars(arguments).items()
                if key not in _NO_SETTINGS
            },
        )
        folder = OUT if self.smoke else RESULTS
        self.path: Path = arguments.out or folder / f"{name}-{machine_name(self.device)}.json"
        self._begin = time.monotonic()

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begin

    def generator(
        self, stream: int = 0, device: torch.device | str | None = None
    ) -> torch.Generator:
        """Random numbers of the seed and of one purpose, on the device of the run or another."""
        made = torch.Generator(self.device if device is None else device)
        return made.manual_seed(1_000_003 * self.seed + stream)

    def note(self, message: str) -> None:
        """Tells on stderr what happens, with the time since the start."""
        note(f"[{self.seconds:6.1f} s] {message}")

    def attempt(self, label: str, package: str, call: Callable[[], T]) -> T | None:
        """What a call gives; None, and the reason in the result, if another package fails."""
        try:
            return call()
        except Exception as error:
            if package not in PEERS:
                raise
            reason = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            failure = {"label": label, "reason": reason}
            self.result.setdefault("failures", []).append(failure)
            self.note(f"{label} failed: {reason}")
            return None

    def save(self, **parts: Any) -> None:
        """Adds to the result and writes it; again and again, for a run may be stopped."""
        self.result |= {**parts, "seconds": round(self.seconds, 1)}
        results.write(self.path, self.result)

    def finish(self, **parts: Any) -> None:
        """Saves for the last time and says where."""
        self.save(**parts)
        print(f"written: {short(self.path)} ({self.seconds:.0f} s)")


def usable_device(name: str, wanted: str) -> torch.device:
    """The device that was asked for, made current."""
    device = torch.device(wanted)
    problem = ""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            problem = "torch finds no CUDA GPU on this machine; use --device cpu"
        elif (device.index or 0) >= torch.cuda.device_count():
            problem = f"there is no {device}; torch finds {torch.cuda.device_count()} GPUs"
        elif "cuda" not in flashoptim_cpp.backends():
            problem = "flashoptim_cpp was built without CUDA; build it with FLASHOPTIM_CUDA=ON"
    elif device.type != "cpu":
        problem = f"--device must be cpu or a CUDA device, not {device}"
    if problem:
        print(f"{name}: {problem}", file=sys.stderr)
        sys.exit(2)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


def machine_name(device: torch.device) -> str:
    """The GPU or processor as a part of a file name."""
    on_gpu = device.type == "cuda"
    return machine.slug(torch.cuda.get_device_name(device) if on_gpu else machine.cpu_name())


def peers(device: torch.device) -> frozenset[str]:
    """The other packages that are installed and can step tensors of the device."""
    if device.type != "cuda":
        return frozenset()
    return frozenset(name for name in PEERS if importlib.util.find_spec(name) is not None)

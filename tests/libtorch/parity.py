"""The same training with the Python package and with the LibTorch adapter, byte for byte.

`CASES` are run by the program of parity.cc, and here; `differences` names what is not the same.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import torch
from torch import Tensor

STEPS = 50
SAVE_AT = 30
DECAY_EVERY, DECAY = 12, 0.5

#: Parameters of a group: dtype, how often the gradient is absent, shape.
Parameters = tuple[tuple[str, int, tuple[int, ...]], ...]
MATRICES: Parameters = (
    ("bfloat16", 0, (24, 200)),
    ("float32", 3, (9, 70)),
    ("float16", 0, (4, 3, 5, 8)),
)
VECTORS: Parameters = (("bfloat16", 4, (96,)), ("float32", 0, (33,)), ("bfloat16", 0, ()))


@dataclass(frozen=True)
class Case:
    """An optimizer with two groups, the options of the second differing from the first's."""

    optimizer: str
    first: dict[str, Any]
    second: dict[str, Any]
    groups: tuple[Parameters, Parameters] = field(default=(MATRICES, VECTORS))


STOCHASTIC = {"stochastic_rounding": True, "seed": 7}
CASES = {
    "sgd": Case("SGD", {"lr": 0.05}, {"lr": 0.02, "momentum": 0.9, "dampening": 0.1}),
    "sgdw": Case(
        "SGDW",
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"lr": 0.02, "momentum": 0.8, "decouple_lr": True, "weight_decay": 1e-3},
    ),
    "adam": Case(
        "Adam",
        {"lr": 0.01, "weight_decay": 0.1, "beta1": 0.8},
        {"lr": 0.02, "amsgrad": True, "master_weight_bits": 32},
    ),
    "adamw": Case(
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1, "beta2": 0.95},
        {"lr": 0.02, "eps": 1e-6, "decouple_lr": True, "weight_decay": 1e-3, "quantize": False},
    ),
    "adamw-stochastic": Case(
        "AdamW",
        {"lr": 0.01, "master_weight_bits": 16, **STOCHASTIC},
        {"lr": 0.01, "softsign": True, "maximize": True, **STOCHASTIC},
    ),
    "lion": Case("Lion", {"lr": 0.01}, {"lr": 0.003, "weight_decay": 0.1, "beta1": 0.95}),
}


def case_text(case: Case, device: str, seed: int) -> str:
    """What the program reads."""
    words = [f"optimizer {case.optimizer} device {device} seed {seed} steps {STEPS}"]
    words.append(f"decay {DECAY_EVERY} {DECAY} save_at {SAVE_AT}")
    for options, parameters in zip((case.first, case.second), case.groups, strict=True):
        words.append("group")
        words += [f"option {name} {float(value)!r}" for name, value in options.items()]
        for dtype, absent, shape in parameters:
            sizes = " ".join(map(str, (len(shape), *shape)))
            words.append(f"parameter {dtype} {absent} {sizes}")
    return "\n".join(words) + "\n"


def run_program(case: Case, folder: Path, device: str = "cpu", seed: int = 0) -> dict[str, bytes]:
    """What the adapter leaves: every weight and state tensor by name."""
    file, out = folder / "case.txt", folder / "out"
    out.mkdir(parents=True)
    file.write_text(case_text(case, device, seed), encoding="utf-8")
    command = [os.environ["FLASHOPTIM_LIBTORCH_PARITY"], str(file), str(out)]
    # The torch of this process is the one that the program was compiled against.
    libraries = [str(Path(torch.__file__).parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def python_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a case as the Python package calls them."""
    named = dict(options)
    if named.pop("softsign", False):
        named["codec"] = "softsign"
    return named


def bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def run_package(case: Case, device: str = "cpu", seed: int = 0) -> dict[str, bytes]:
    """The same from the Python package, in one run."""
    torch.manual_seed(seed)
    params: list[Tensor] = []
    targets: list[Tensor] = []
    groups = []
    for options, parameters in zip((case.first, case.second), case.groups, strict=True):
        first = len(params)
        for dtype, _, shape in parameters:
            weight = torch.randn(shape).to(device).to(getattr(torch, dtype))
            params.append(weight.requires_grad_())
            targets.append(torch.randn(shape).to(device))
        named = python_options(options)
        betas = (0.9, 0.99 if case.optimizer == "Lion" else 0.999)
        changed = (named.pop("beta1", betas[0]), named.pop("beta2", betas[1]))
        if changed != betas:
            named["betas"] = changed
        groups.append({"params": params[first:], **named})
    optimizer = getattr(flash, f"Flash{case.optimizer}")(groups)
    absent = [absent for parameters in case.groups for _, absent, _ in parameters]
    decays = 0
    for step in range(STEPS):
        if step == SAVE_AT:
            decays = 0
        optimizer.zero_grad()
        for param, target, every in zip(params, targets, absent, strict=True):
            noise = torch.randn(target.shape).to(device)
            if every > 0 and step % every == 1:
                continue
            distance = param.float() - target - noise
            (distance * distance * 0.5).sum().backward()
        optimizer.step()
        # As LibTorch's StepLR counts, one call later than Python's.
        if decays > 0 and decays % DECAY_EVERY == 0:
            for group in optimizer.param_groups:
                group["lr"] *= DECAY
        decays += 1
    found = {}
    for index, param in enumerate(params):
        found[f"{index}.weight"] = bytes_of(param)
        for name, tensor in optimizer.state[param].items():
            found[f"{index}.{name}"] = bytes_of(tensor)
    return found


def differences(first: dict[str, bytes], second: dict[str, bytes]) -> list[str]:
    """Names of what only one has, or what is not the same in both."""
    return sorted(name for name in first.keys() | second if first.get(name) != second.get(name))

"""Files of the C++ library and of the Python package are each other's, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from c_interface import COptimizer
from common import RULES, STORAGES, same_bits
from flashoptim_cpp import FlashOptimizer, load_checkpoint, save_checkpoint
from flashoptim_cpp._files import OPTIONS, read_tensors
from torch import Tensor, nn

# What the second group has of its own.
SECOND = {"lr": 2e-3, "weight_decay": 0.0}
CASES = [(rule, storage) for rule in RULES for storage in STORAGES if storage != "decompressed"]


class Model(nn.Module):
    """All weight dtypes; a kernel whose dimensions lie in another order; an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(9, 70).bfloat16())
        kernel = torch.randn(4, 3, 5, 2).half().to(memory_format=torch.channels_last)
        self.kernel = nn.Parameter(kernel)
        self.bias = nn.Parameter(torch.randn(70))
        self.empty = nn.Parameter(torch.zeros(0, 4))

    def groups(self) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
        return (
            {"matrix": self.matrix, "kernel": self.kernel},
            {"bias": self.bias, "empty": self.empty},
        )


def make_optimizers(
    rule: str, storage: str, theirs: Model, ours: Model
) -> tuple[FlashOptimizer, COptimizer]:
    """Optimizers of the same options in Python and in C."""
    make, options = RULES[rule]
    options = {"lr": 1e-2, **options, **STORAGES[storage], "seed": 2**64 - 5}
    first, second = theirs.groups()
    python = make(
        [{"params": list(first.values())}, {"params": list(second.values()), **SECOND}], **options
    )
    for group in python.param_groups:
        group.setdefault("initial_lr", group["lr"])  # as torch's schedulers do
    name = type(python).__name__
    with torch.no_grad():
        c = COptimizer(
            name,
            [
                (group_options, {name: param.detach() for name, param in group.items()})
                for group_options, group in zip(
                    (options, {**options, **SECOND}), ours.groups(), strict=True
                )
            ],
        )
    return python, c


def step_both(
    python: FlashOptimizer, theirs: Model, c: COptimizer, steps: range, lr: float
) -> None:
    """The same gradients; the learning rate of the first group as a schedule would have it."""
    for step in steps:
        gradients: dict[str, Tensor] = {}
        for i, (name, param) in enumerate(theirs.named_parameters()):
            generator = torch.Generator().manual_seed(100 * step + i)
            values = torch.randn(param.shape, generator=generator)
            gradients[name] = torch.empty_like(param, dtype=torch.float32).copy_(values)
            param.grad = gradients[name].to(param.dtype)
        rate = lr / (1 + step)
        python.param_groups[0]["lr"] = rate
        c.set_lr(0, rate)
        python.step()
        c.step({name: param.grad for name, param in theirs.named_parameters()})


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    metadata, tensors = read_tensors(path)
    return json.loads(metadata[OPTIONS]), tensors


@pytest.mark.parametrize(("rule", "storage"), CASES)
def test_files_go_from_one_to_the_other(tmp_path: Path, rule: str, storage: str) -> None:
    theirs, ours = Model(), Model()
    ours.load_state_dict(theirs.state_dict())
    python, c = make_optimizers(rule, storage, theirs, ours)
    step_both(python, theirs, c, range(3), 1e-2)
    from_python, from_c = tmp_path / "python.safetensors", tmp_path / "c.safetensors"
    save_checkpoint(from_python, theirs, python)
    c.save(from_c)
    assert same_bits(contents(from_python), contents(from_c))

    # Into optimizers of other weights and learning rates, crosswise.
    other_theirs, other_ours = Model(), Model()
    other_python, other_c = make_optimizers(rule, storage, other_theirs, other_ours)
    other_python.param_groups[1]["lr"] = 7.0
    load_checkpoint(from_c, other_theirs, other_python)
    other_c.load(from_python)
    assert other_python.param_groups[1]["lr"] == SECOND["lr"]
    step_both(python, theirs, c, range(3, 5), 1e-2)
    step_both(other_python, other_theirs, other_c, range(3, 5), 1e-2)
    for model in (ours, other_theirs, other_ours):
        assert same_bits(theirs.state_dict(), model.state_dict())
    save_checkpoint(from_python, other_theirs, other_python)
    other_c.save(from_c)
    assert same_bits(contents(from_python), contents(from_c))


def test_a_refusal_has_the_message_of_the_library(tmp_path: Path) -> None:
    model = Model()
    _, c = make_optimizers("adamw", "default", Model(), model)
    with pytest.raises(RuntimeError, match=r"none\.safetensors: it cannot be opened"):
        c.load(tmp_path / "none.safetensors")

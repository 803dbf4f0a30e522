"""``python -m flashoptim_cpp convert`` on the states that other packages wrote (tests/fixtures)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import same_bits
from flashoptim_cpp import _convert
from flashoptim_cpp._files import read_tensors
from test_command_line import ok
from test_foreign_states import OFFICIAL, OURS, cases
from torch import nn

TORCH = {
    "FlashAdam": torch.optim.Adam,
    "FlashAdamW": torch.optim.AdamW,
    "FlashSGD": torch.optim.SGD,
}


def convert(*arguments: str | Path) -> None:
    assert _convert.convert([str(argument) for argument in arguments]) == 0


def ours(case: dict[str, Any]) -> str:
    """The class here that takes the place of the one that wrote the state."""
    name: str = case.get("optimizer", "FlashLion")
    return OURS.get(name, name)


class Model(nn.Module):
    """The weights of a fixture under names whose order is theirs."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        for i, weight in enumerate(case["weights"]):
            self.register_parameter(f"weight{i}", nn.Parameter(weight.clone()))


@pytest.mark.parametrize("case", cases(*OFFICIAL, "bitsandbytes", "lion_pytorch"))
def test_a_foreign_checkpoint_becomes_the_file_that_python_would_save(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    model, name = Model(case), ours(case)
    source, target = tmp_path / "run.pt", tmp_path / "run.safetensors"
    torch.save({"model": model.state_dict(), "optimizer": case["state_dict"]}, source)
    convert(source, target, "--optimizer", name.removeprefix("Flash").lower())

    optimizer = getattr(flash, name)(model.parameters())
    optimizer.load_state_dict(case["state_dict"])
    flash.save_checkpoint(tmp_path / "python.safetensors", model, optimizer)
    assert same_bits(read_tensors(target), read_tensors(tmp_path / "python.safetensors"))

    # The program decodes all of it, and describes it.
    ok("verify", target)
    shown = json.loads(ok("inspect", target, "--json"))
    assert shown["elements"] == sum(p.numel() for p in model.parameters() if p in optimizer.state)
    assert {p["name"] for p in shown["parameters"]} <= set(model.state_dict())
    for parameter in shown["parameters"]:
        assert parameter["nonfinite_weights"] == 0
        assert all(moment["nonfinite"] == 0 for moment in parameter["moments"])

    # Back: for this package the same bits, for torch what its optimizer loads and steps.
    convert(target, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert same_bits(dict(back["model"]), dict(model.state_dict()))
    again = getattr(flash, name)(model.parameters())
    again.load_state_dict(back["optimizer"])
    for param in model.parameters():
        assert same_bits(dict(again.state[param]), dict(optimizer.state[param]))
    if name in TORCH:
        convert(target, tmp_path / "torch.pt", "--torch")
        steps_in_torch(torch.load(tmp_path / "torch.pt", weights_only=True), name, case)


def steps_in_torch(checkpoint: dict[str, Any], name: str, case: dict[str, Any]) -> None:
    """torch's optimizer goes where the other package's did, but for our roundings."""
    model = Model(case).float()
    model.load_state_dict(checkpoint["model"])
    optimizer = TORCH[name](model.parameters())
    optimizer.load_state_dict(checkpoint["optimizer"])
    for param, gradient in zip(model.parameters(), case["gradients"], strict=True):
        param.grad = gradient.float()
    before = [param.detach().clone() for param in model.parameters()]
    optimizer.step()
    for param, old in zip(model.parameters(), before, strict=True):
        assert param.isfinite().all()
        assert param.numel() == 0 or not torch.equal(param, old)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"hello", "torch cannot read it"),
        (b"", "torch cannot read it"),
        ([1], "has no 'model'"),
        ({"model": {}, "optimizer": {}}, "'optimizer' is not the state dict of an optimizer"),
        ({"model": [1], "optimizer": {}}, "'model' is not a state dict of tensors"),
        ({"model": {"a": 1}, "optimizer": {}}, "'model' is not a state dict of tensors"),
        (
            {"model": {}, "optimizer": {"state": {}, "param_groups": [{"params": [0]}]}},
            "cannot be matched",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], contents: Any, message: str
) -> None:
    source, target = tmp_path / "run.pt", tmp_path / "run.safetensors"
    if isinstance(contents, bytes):
        source.write_bytes(contents)
    else:
        torch.save(contents, source)
    assert _convert.convert([str(source), str(target), "--optimizer", "adamw"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"flashoptim: {source}")
    assert message in error
    assert not target.exists()

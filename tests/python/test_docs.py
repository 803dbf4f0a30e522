"""The snippets of the documentation run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import pytest
import torch
from common import master, same_bits
from snippets import ROOT, python_blocks
from torch import Tensor, nn

MIGRATING = ROOT / "docs" / "migrating.md"
FIXTURES = ROOT / "tests" / "fixtures"


class Holder(nn.Module):
    """A model of the parameters of a fixture."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros_like(weight) for weight in weights)


def run(blocks: list[str], **names: Any) -> dict[str, Any]:
    assert blocks
    for block in blocks:
        exec(block, names)
    return names


def test_the_page_about_master_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(python_blocks(ROOT / "docs" / "weights.md"))
    weight = names["model"][0].weight
    assert torch.equal(master(weight, names["optimizer"]), weight.detach().float())


def test_the_page_about_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(python_blocks(ROOT / "docs" / "files.md"))
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]


def test_moving_from_torch() -> None:
    names = run(python_blocks(MIGRATING, "From torch"))
    model, optimizer = names["model"], names["optimizer"]
    assert model.weight.dtype == torch.bfloat16
    assert same_bits(master(model.weight, optimizer), names["weights"]["weight"])
    assert float(optimizer.state[model.weight]["step"]) == 1


def test_moving_to_torch() -> None:
    names = run(python_blocks(MIGRATING, "To torch"))
    weight, optimizer = names["plain_model"].weight, names["optimizer"]
    assert same_bits(weight.detach(), master(names["model"].weight, optimizer))
    assert names["plain"].state[weight]["exp_avg"].dtype == torch.float32
    names["plain_model"](torch.ones(4, 64)).sum().backward()
    names["plain"].step()


@pytest.mark.parametrize(
    ("section", "file", "case"),
    [
        ("From official flashoptim", "flashoptim-0.1.3", "adamw"),
        ("From official flashoptim", "flashoptim-0.1.4", "adamw"),
        ("From bitsandbytes", "bitsandbytes", "adamw"),
        ("From lion-pytorch", "lion_pytorch", "lion"),
    ],
)
def test_moving_from_another_package(
    section: str, file: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = torch.load(FIXTURES / f"{file}.pt", weights_only=True)["cases"][case]
    model = Holder(made["weights"])
    weights = dict(zip(model.state_dict(), made["weights"], strict=True))
    torch.save({"model": weights, "optimizer": made["state_dict"]}, "checkpoint.pt")
    names = run(python_blocks(MIGRATING, section), model=model)
    optimizer = names["optimizer"]
    assert isinstance(optimizer, flash.FlashOptimizer)
    assert set(optimizer.state) == set(model.parameters())
    for param, gradient in zip(model.parameters(), made["gradients"], strict=True):
        param.grad = gradient
    optimizer.step()


def test_a_section_that_is_not_there_is_not_an_empty_one() -> None:
    with pytest.raises(ValueError, match="no heading 'From nowhere'"):
        python_blocks(MIGRATING, "From nowhere")

"""Weights and state in safetensors files, beside the package `safetensors`."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from flashoptim_cpp import (
    FlashAdamW,
    FlashLion,
    FlashOptimizer,
    FlashSGDW,
    cast_model,
    load_checkpoint,
    save_checkpoint,
)
from flashoptim_cpp._files import read_tensors
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn


def make_model() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 70)
    )
    model.to(memory_format=torch.channels_last)
    cast_model(model, torch.bfloat16)
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8, generator=generator).to(dtype)).square().mean().backward()
        optimizer.step()


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def same_state(a: FlashOptimizer, b: FlashOptimizer) -> bool:
    left, right = a.state_dict()["state"], b.state_dict()["state"]
    return left.keys() == right.keys() and all(same(left[i], right[i]) for i in left)


@pytest.mark.parametrize("name", ["x.safetensors", "x.safetensors.zst", "x.safetensors.index.json"])
@pytest.mark.parametrize("make", [FlashAdamW, FlashLion, FlashSGDW])
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, name: str, make: type[FlashOptimizer]
) -> None:
    options = {"lr": 1e-2, "weight_decay": 0.1, "seed": 2**63 + 1, "stochastic_rounding": True}
    if make is FlashSGDW:
        options["momentum"] = 0.9
    model = make_model()
    optimizer = make(model.parameters(), **options)
    train(model, optimizer, 3, 1)
    shards = {"shard_bytes": 20_000} if name.endswith("json") else {}
    save_checkpoint(tmp_path / name, model, optimizer, **shards)

    other = make_model()
    resumed = (
        make(other.parameters(), momentum=0.9) if make is FlashSGDW else make(other.parameters())
    )
    load_checkpoint(tmp_path / name, other, resumed)
    assert same(model.state_dict(), other.state_dict())
    assert same_state(optimizer, resumed)
    train(model, optimizer, 2, 2)
    train(other, resumed, 2, 2)
    assert same(model.state_dict(), other.state_dict())
    assert same_state(optimizer, resumed)


def test_the_package_safetensors_reads_our_files(tmp_path: Path) -> None:
    model = make_model()
    optimizer = FlashAdamW(model.parameters())
    train(model, optimizer, 1, 1)
    save_checkpoint(tmp_path / "x.safetensors", model, optimizer)
    theirs = load_file(tmp_path / "x.safetensors")
    _, ours = read_tensors(tmp_path / "x.safetensors")
    assert same(theirs, ours)
    assert torch.equal(theirs["3.weight"], model[3].weight)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["flashoptim_format"] == "1"


def test_the_checksum_is_the_one_of_the_document(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    save_checkpoint(tmp_path / "x.safetensors", model, FlashAdamW(model.parameters()))
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        sums = file.metadata()["flashoptim_crc32"]
    data = model.weight.detach().numpy().tobytes()
    checksum = zlib.crc32(b"weight\nF32\n2,3\n" + data)
    assert f'"weight":"{checksum:08x}"' in sums


def test_we_read_files_of_the_package_safetensors(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5).bfloat16(),
        "b.c": torch.arange(7),
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "mask": torch.tensor([True, False]),
    }
    save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    metadata, read = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"format": "pt"}
    assert same(read, tensors)


def test_nothing_is_half_loaded(tmp_path: Path) -> None:
    model = make_model()
    optimizer = FlashAdamW(model.parameters())
    train(model, optimizer, 1, 1)
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, model, optimizer)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 4
    path.write_bytes(damaged)
    train(model, optimizer, 1, 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"tensor '.*': its checksum is"):
        load_checkpoint(path, model, optimizer)
    assert same(model.state_dict(), before)

    save_checkpoint(path, model, optimizer)
    with pytest.raises(ValueError, match=r"'0\.weight': the model has torch.float32"):
        load_checkpoint(path, model.float(), optimizer)
    model.bfloat16()
    with pytest.raises(
        ValueError, match="holds the state of 'adam' and the optimizer is a FlashLion"
    ):
        load_checkpoint(path, make_model(), FlashLion(make_model().parameters()))


def convert(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashoptim_cpp", "convert", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_torch_checkpoint_becomes_a_state_file_and_returns(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(300, 70), nn.BatchNorm1d(70), nn.Linear(70, 3))
    adamw = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(3):
        model(torch.randn(8, 300)).square().mean().backward()
        adamw.step()
    source, target, back = (tmp_path / name for name in ("a.pt", "a.safetensors", "b.pt"))
    torch.save({"model": model.state_dict(), "optimizer": adamw.state_dict()}, source)
    result = convert(str(source), str(target), "--optimizer", "adamw", "--codec", "none")
    assert result.returncode == 0, result.stderr
    result = convert(str(target), str(back), "--torch")
    assert result.returncode == 0, result.stderr
    checkpoint = torch.load(back, weights_only=True)
    assert same(checkpoint["model"], model.state_dict())
    # Buffers and parameters keep their names; states are those of torch.
    saved = adamw.state_dict()["state"]
    for number, state in checkpoint["optimizer"]["state"].items():
        for key in ("step", "exp_avg"):
            torch.testing.assert_close(state[key], saved[number][key], rtol=0, atol=1e-30)
    assert checkpoint["optimizer"]["param_groups"][0]["lr"] == 2e-3


def test_convert_says_what_it_needs(tmp_path: Path) -> None:
    torch.save({"weights": {}}, tmp_path / "a.pt")
    result = convert(str(tmp_path / "a.pt"), str(tmp_path / "a.safetensors"))
    assert (result.returncode, "--optimizer adamw" in result.stderr) == (1, True)
    result = convert(str(tmp_path / "a.pt"), str(tmp_path / "x.safetensors"), "--optimizer", "adam")
    assert (result.returncode, "has no 'model'" in result.stderr) == (1, True)
    assert not (tmp_path / "x.safetensors").exists()

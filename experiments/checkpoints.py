"""Size, time and exactness of saving a model with its optimizer, and of going on from it.

    python -m experiments.checkpoints                # two layers of Llama 3.1 8B with embeddings
    python -m experiments.checkpoints --layers 32 --ways flashoptim,torch.save --budget 300
    python -m experiments.checkpoints --smoke

Ours with 24-bit master weights beside torch's AdamW in fp32. Every file is written to the disk, not
only to the system's memory, before the clock stops; reading may come from that memory. The run that
was loaded and the one that was saved then take two more steps with the same gradients, and must
agree in every bit of weights and state.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import flashoptim_cpp
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer

from bench import shapes
from experiments import common
from experiments.llama_model import LLAMA_8B, SMALL, TINY, Llama, Shape

STEPS: Final = 2  # before saving, and after
ROOM: Final = 1.1  # of the disk, as a multiple of what is written
LLAMA_8B_PARAMETERS: Final = shapes.elements(shapes.llama(layers=32))

Call = Callable[[Path, nn.Module, Optimizer], None]


def _ours_save(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    assert isinstance(optimizer, flashoptim_cpp.FlashOptimizer)
    flashoptim_cpp.save_checkpoint(path / "run.safetensors", model, optimizer)


def _ours_load(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    assert isinstance(optimizer, flashoptim_cpp.FlashOptimizer)
    flashoptim_cpp.load_checkpoint(path / "run.safetensors", model, optimizer)


def _torch_save(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, path / "run.pt")


def _torch_load(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    saved = torch.load(path / "run.pt", map_location="cpu", mmap=True, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def _dcp_save(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    dcp_save(_state(model, optimizer), checkpoint_id=path, no_dist=True)


def _dcp_load(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    saved = _state(model, optimizer)
    dcp_load(saved, checkpoint_id=path, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
    )


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    weights, state = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": state}


@dataclass(frozen=True)
class Way:
    """A file format and what writes and reads it."""

    label: str
    ours: bool  # the optimizer
    save: Call
    load: Call


WAYS: Final = {
    "flashoptim": Way("ours: save_checkpoint (safetensors)", True, _ours_save, _ours_load),
    "torch.save": Way("ours: torch.save", True, _torch_save, _torch_load),
    "dcp": Way("ours: distributed checkpoint", True, _dcp_save, _dcp_load),
    "torch-fp32": Way("torch AdamW fp32: torch.save", False, _torch_save, _torch_load),
    "torch-fp32-dcp": Way("torch AdamW fp32: distributed checkpoint", False, _dcp_save, _dcp_load),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("checkpoints", __doc__)
    parser.add_argument("--layers", type=int, help="default: 2 on a GPU, else a small model's 8")
    parser.add_argument("--ways", default=",".join(WAYS), help="default: %(default)s")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to be measured; default: a new one"
    )
    parser.add_argument(
        "--budget", type=float, default=60, help="seconds after which nothing more is started"
    )
    parser.add_argument("--earlier", type=Path, help="a result whose rows of other ways are kept")
    chosen = parser.parse_args(arguments)
    run = common.Run("checkpoints", chosen)
    ways = chosen.ways.split(",")
    shape = TINY if chosen.smoke else LLAMA_8B if run.on_gpu else SMALL
    shape = shape.with_layers(chosen.layers or (shape.layers if not run.on_gpu else 2))
    rows: list[dict[str, Any]] = []
    if chosen.earlier:
        found = json.loads(chosen.earlier.read_text(encoding="utf-8"))["rows"]
        rows = [row for row in found if row["way"] not in ways]
    for ours in (True, False):
        names = [name for name in ways if WAYS[name].ours == ours]
        if names:
            rows += _of_optimizer(run, shape, names, ours, chosen.folder, chosen.budget)
            run.save(rows=sorted(rows, key=lambda row: list(WAYS).index(row["way"])))
    run.finish()
    for row in rows:
        said = row.get("reason") or f"{row['bytes'] / 1e9:.2f} GB, exact: {row['exact']}"
        run.note(f"{row['label']}: {said}")
    return 0 if all(row.get("exact", True) for row in rows) else 1


def _of_optimizer(
    run: common.Run,
    shape: Shape,
    names: Sequence[str],
    ours: bool,
    folder: Path | None,
    budget: float,
) -> list[dict[str, Any]]:
    model, optimizer = _make(run, shape, ours)
    _train(run, model, optimizer, 0)
    numel = sum(parameter.numel() for parameter in model.parameters())
    held = sum(tensor.nbytes for tensor in _tensors(model, optimizer))
    rows = []
    for name in names:
        head = {
            "way": name,
            "label": WAYS[name].label,
            "commit": run.result["commit"],
            "parameters": numel,
            "held_bytes_per_parameter": held / numel,
            "llama_8b_bytes": held / numel * LLAMA_8B_PARAMETERS,
        }
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=folder) as place:
            free = shutil.disk_usage(place).free
            if run.seconds > budget:
                rows.append(head | {"status": "skipped", "reason": "no time left"})
            elif held * ROOM > free:
                reason = f"needs {held / 1e9:.0f} GB on the disk, and {free / 1e9:.0f} are free"
                rows.append(head | {"status": "skipped", "reason": reason})
            else:
                measured = _measure(run, shape, WAYS[name], model, optimizer, Path(place))
                rows.append(head | {"status": "ok"} | measured)
        run.note(f"{WAYS[name].label}: {rows[-1]['status']}")
    return rows


def _measure(
    run: common.Run, shape: Shape, way: Way, model: nn.Module, optimizer: Optimizer, place: Path
) -> dict[str, Any]:
    begin = time.perf_counter()
    way.save(place, model, optimizer)
    files = [path for path in place.rglob("*") if path.is_file()]
    for path in files:
        _sync(path)
    saved = time.perf_counter()
    other_model, other = _make(run, shape, way.ours, seed=1)  # other weights, to be replaced
    _wait(run.device)
    loading = time.perf_counter()
    way.load(place, other_model, other)
    _wait(run.device)
    loaded = time.perf_counter()
    same = _equal(model, optimizer, other_model, other)
    _train(run, model, optimizer, STEPS)
    _train(run, other_model, other, STEPS)
    exact = same and _equal(model, optimizer, other_model, other)
    del other_model, other
    gc.collect()
    size = sum(path.stat().st_size for path in files)
    return {
        "bytes": size,
        "files": len(files),
        "bytes_per_parameter": size / sum(parameter.numel() for parameter in model.parameters()),
        "save_seconds": saved - begin,
        "load_seconds": loaded - loading,
        "equal_after_loading": same,
        "exact": exact,
    }


def _make(run: common.Run, shape: Shape, ours: bool, seed: int = 0) -> tuple[nn.Module, Optimizer]:
    dtype = torch.bfloat16 if ours else torch.float32
    model = Llama(shape, run.device, dtype, run.generator(seed))
    params = model.parameters()
    if ours:
        return model, flashoptim_cpp.FlashAdamW(params, lr=1e-4)
    return model, torch.optim.AdamW(params, lr=1e-4, fused=True)


def _train(run: common.Run, model: nn.Module, optimizer: Optimizer, first: int) -> None:
    """Steps with noise for gradients: a backward pass on a GPU need not be the same twice."""
    for step in range(first, first + STEPS):
        generator = run.generator(100 + step)
        for parameter in model.parameters():
            noise = torch.empty_like(parameter).normal_(std=1e-3, generator=generator)
            parameter.grad = noise
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    for parameter in model.parameters():
        yield parameter.detach()
        state = optimizer.state[parameter]
        yield from (state[key] for key in sorted(state) if isinstance(state[key], Tensor))


def _equal(model: nn.Module, optimizer: Optimizer, other: nn.Module, theirs: Optimizer) -> bool:
    pairs = zip(_tensors(model, optimizer), _tensors(other, theirs), strict=True)
    return all(
        one.dtype == two.dtype
        and torch.equal(one.reshape(-1).view(torch.uint8), two.reshape(-1).view(torch.uint8))
        for one, two in pairs
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())

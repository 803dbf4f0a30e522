"""A plain loop in the manner of torchtitan: distributed checkpoints, and resume to the bit.

python examples/torchtitan/train.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from flashoptim_cpp import FlashAdamW, FlashOptimizer
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim.lr_scheduler import LambdaLR

# Keys are names of parameters, not numbers: as torchtitan keeps them, for any number of ranks.
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def make_model() -> nn.Module:
    """Made without memory, cast, then given memory and values: nothing is ever there in fp32."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(64, 32), Block(32), Block(32), nn.Linear(32, 64))
    model.to(torch.bfloat16)
    model.to_empty(device="cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model


class TrainState(Stateful):
    """Everything that a checkpoint holds."""

    def __init__(self, model: nn.Module, optimizer: FlashOptimizer, schedule: LambdaLR) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=BY_NAME),
            "schedule": self.schedule.state_dict(),
            "step": torch.tensor(self.step),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_model_state_dict(self.model, state_dict["model"])
        set_optimizer_state_dict(
            self.model, self.optimizer, state_dict["optimizer"], options=BY_NAME
        )
        self.schedule.load_state_dict(state_dict["schedule"])
        self.step = int(state_dict["step"])


def batch(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(64, (8, 17), generator=generator).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def train(folder: Path, steps: int, resume: bool = False) -> dict[str, Tensor]:
    """Trains to a number of steps, and saves.

    Args:
        folder: where the checkpoint is saved, and where it is when resuming.
        steps: counted from the start of the first run.
        resume: go on from the checkpoint in `folder`.

    Returns:
        The model's weights in fp32.
    """
    model = make_model()
    optimizer = FlashAdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    state = TrainState(model, optimizer, schedule)
    if resume:
        dcp.load({"train": state}, checkpoint_id=folder, no_dist=True)

    device = next(model.parameters()).device
    while state.step < steps:
        tokens, targets = batch(state.step, device)
        loss = nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state.step += 1
        print(f"step {state.step}: loss {loss.item():.4f}")

    dcp.save({"train": state}, checkpoint_id=folder, no_dist=True)
    return optimizer.get_fp32_model_state_dict(model)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    train(where, steps=8)
    train(where, steps=16, resume=True)

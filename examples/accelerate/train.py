"""Training with accelerate: save, and resume to the bit.

python examples/accelerate/train.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from flashoptim_cpp import FlashAdamW, cast_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.LayerNorm(256), nn.Linear(256, 64))
    cast_model(model, torch.bfloat16)
    return model


def make_data() -> TensorDataset:
    tokens = torch.randint(64, (256, 9), generator=torch.Generator().manual_seed(1))
    return TensorDataset(tokens[:, :8], tokens[:, 8])


def train(folder: Path, steps: int, resume: bool = False) -> dict[str, Tensor]:
    """Trains to a number of steps, and saves.

    Args:
        folder: where the state is saved, and where it is when resuming.
        steps: counted from the start of the first run.
        resume: go on from what `folder` has.

    Returns:
        The model's weights in fp32.
    """
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = make_model()
    optimizer = FlashAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=50)
    loader = DataLoader(make_data(), batch_size=16)
    # Without mixed precision: the model is in 16 bits already.
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    done = 0
    if resume:
        accelerator.load_state(str(folder))
        done = schedule.scheduler.last_epoch

    batches = accelerator.skip_first_batches(loader, done)
    for _, (tokens, target) in zip(range(done, steps), batches, strict=False):
        loss = nn.functional.cross_entropy(model(tokens).float(), target)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        accelerator.print(f"loss {loss.item():.4f}")

    accelerator.save_state(str(folder))
    # accelerate wraps the optimizer; what is FlashAdamW's own is beneath.
    return optimizer.optimizer.get_fp32_model_state_dict(accelerator.unwrap_model(model))


if __name__ == "__main__":
    where = Path(sys.argv[1])
    train(where, steps=8)
    train(where, steps=16, resume=True)

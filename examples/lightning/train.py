"""Training with PyTorch Lightning: save, and resume to the bit.

python examples/lightning/train.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from flashoptim_cpp import FlashAdamW, cast_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """Predicts the ninth token of random sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Embedding(64, 32), nn.Flatten(), nn.LayerNorm(256), nn.Linear(256, 64)
        )
        cast_model(self.net, torch.bfloat16)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        tokens, target = batch
        loss = nn.functional.cross_entropy(self.net(tokens).float(), target)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = FlashAdamW(self.parameters(), lr=1e-2, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=50)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def train(folder: Path, epochs: int, resume: bool = False) -> dict[str, Tensor]:
    """Trains to a number of epochs, and saves.

    Whole epochs, because Lightning does not resume in the middle of a plain DataLoader.

    Args:
        folder: where the checkpoint is saved, and where it is when resuming.
        epochs: counted from the start of the first run.
        resume: go on from the checkpoint in `folder`.

    Returns:
        The model's weights in fp32.
    """
    torch.manual_seed(0)
    model = Model()
    tokens = torch.randint(64, (256, 9), generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(tokens[:, :8], tokens[:, 8]), batch_size=64)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        # Not "bf16-true" or "bf16-mixed": the model is in 16 bits already.
        precision="32-true",
        gradient_clip_val=1.0,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    path = folder / "last.ckpt"
    trainer.fit(model, loader, ckpt_path=str(path) if resume else None)
    trainer.save_checkpoint(path)
    return model.optimizers().optimizer.get_fp32_model_state_dict(model)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    train(where, epochs=2)
    train(where, epochs=4, resume=True)

"""Training with the Trainer of Hugging Face transformers: save, and resume to the bit.

python examples/transformers/train.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from flashoptim_cpp import FlashAdamW, cast_model
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset[dict[str, Tensor]]):
    """Random sequences."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(64, (256, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    # The frequencies of the rotary embedding are a buffer, and stay in fp32.
    cast_model(model, torch.bfloat16, full_precision_recast_layers=["*.rotary_emb"])
    return model


def train(folder: Path, steps: int, resume: bool = False) -> dict[str, Tensor]:
    """Trains to a number of steps, and saves.

    Args:
        folder: where checkpoints are saved, and where they are when resuming.
        steps: counted from the start of the first run.
        resume: go on from the last checkpoint in `folder`.

    Returns:
        The model's weights in fp32.
    """
    model = make_model()
    optimizer = FlashAdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        save_steps=steps,
        logging_steps=4,
        report_to=[],
        # Neither bf16=True nor fp16=True: the model is in 16 bits already.
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens(), optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=resume)
    return optimizer.get_fp32_model_state_dict(model)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    train(where, steps=8)
    train(where, steps=16, resume=True)

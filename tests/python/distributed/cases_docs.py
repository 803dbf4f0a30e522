"""The snippets of the pages about sharding and distributed checkpoints run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from common import same_bits
from ranks import case
from sharded import everything, local
from snippets import ROOT, python_blocks
from torch.distributed.tensor import DTensor


@case(2)
def snippets(directory: Path) -> None:
    os.chdir(directory)
    names: dict[str, Any] = {}
    pages = [python_blocks(ROOT / "docs" / page) for page in ("fsdp2.md", "checkpoints.md")]
    assert [len(blocks) for blocks in pages] == [2, 3]
    for block in pages[0]:
        exec(block, names)
    model, optimizer = names["model"], names["optimizer"]
    model(torch.ones(8, 64).bfloat16()).float().square().mean().backward()
    optimizer.step()  # with the hook
    assert all(isinstance(param, DTensor) for param in optimizer.state)
    saved = everything(model, optimizer)
    exec(pages[1][0], names)
    optimizer.zero_grad()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert not same_bits(saved, everything(model, optimizer))
    exec(pages[1][1], names)
    assert same_bits(saved, everything(model, optimizer))
    exec(pages[1][2], names)
    assert same_bits(saved, everything(model, optimizer))
    assert all(local(value).dtype == torch.float32 for value in names["weights"].values())

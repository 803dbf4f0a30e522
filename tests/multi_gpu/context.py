"""What the cases share: the group of processes, a GPT, and trees of tensors compared to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flashoptim_cpp as flash
import torch
import torch.distributed as dist
from model import GPT, GPTConfig
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

RULES = {
    "adamw": (flash.FlashAdamW, {"lr": 3e-4, "weight_decay": 0.1}),
    "lion": (flash.FlashLion, {"lr": 1e-4, "weight_decay": 0.1}),
}


@dataclass(frozen=True)
class Context:
    """One process of the group."""

    rank: int
    world: int
    device: torch.device
    steps: int
    config: GPTConfig
    batch: int
    directory: Path  # that all ranks share

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks in a row."""
        return init_device_mesh(self.device.type, (self.world,))

    def gpt(self, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
        """The same model on every rank."""
        torch.manual_seed(1)
        model: nn.Module = GPT(self.config).to(dtype).to(self.device)
        return model

    def sharded(self, dtype: torch.dtype = torch.bfloat16, **options: Any) -> nn.Module:
        """`fully_shard` of its blocks and of the whole."""
        model, mesh = self.gpt(dtype), self.mesh
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        return model

    def loss(self, model: nn.Module, step: int) -> Tensor:
        """Of a batch of random tokens that depends on the step and the rank."""
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        shape = (self.batch, self.config.context + 1)
        tokens = torch.randint(self.config.vocabulary, shape, generator=generator).to(self.device)
        loss: Tensor = model(tokens[:, :-1], tokens[:, 1:])
        return loss

    def backward(self, model: nn.Module, step: int) -> None:
        """Gradients of a step, in place of the last ones."""
        for param in model.parameters():
            param.grad = None
        self.loss(model, step).backward()

    def optimizer(self, model: nn.Module, rule: str, **options: Any) -> flash.FlashOptimizer:
        """One of `RULES`."""
        make, defaults = RULES[rule]
        return make(model.named_parameters(), **{**defaults, **options})

    def agree(self, tensors: Iterable[Tensor], what: str) -> None:
        """Fails unless all ranks hold the same bits."""
        digest = digest_of(tensors)
        digests: list[Any] = [None] * self.world
        dist.all_gather_object(digests, digest)
        assert digests == [digest] * self.world, f"{what}: ranks differ"


def digest_of(tensors: Iterable[Tensor]) -> str:
    """A hash of the bits of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.cpu().numpy().tobytes())
    return digest.hexdigest()


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its shards."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def named(model: nn.Module, optimizer: flash.FlashOptimizer) -> dict[str, Tensor]:
    """Weights and states by name, whole, on the host."""
    found = {}
    for name, param in model.named_parameters():
        found[name] = whole(param).cpu()
        for key, value in optimizer.state.get(param, {}).items():
            found[f"{name}.{key}"] = whole(value).cpu()
    return found


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], what: str) -> None:
    """Equality to the last bit, naming the first tensor that differs."""
    assert found.keys() == wanted.keys(), f"{what}: {found.keys() ^ wanted.keys()}"
    for name in found:
        assert digest_of([found[name]]) == digest_of([wanted[name]]), f"{what}: '{name}' differs"

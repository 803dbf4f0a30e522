"""The two training runs: the same network, data and schedule, and one line that differs."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from data import Corpus
from flashoptim_cpp import FlashAdamW, cast_model
from model import GPT, GPTConfig, weight_decay_groups
from torch import Tensor

WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
WARM_UP_SHARE = 0.1
FINAL_LR_SHARE = 0.05


@dataclass(frozen=True)
class Settings:
    """Everything that both runs have in common."""

    config: GPTConfig
    steps: int
    batch: int
    validation_windows: int
    lr: float
    seed: int
    device: torch.device
    autocast: bool  # matrix products in bfloat16; otherwise in float32


def torch_adamw(groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
    """The baseline: float32 weights and float32 moments."""
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def flash_adamw(groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
    """The replacement: 8-bit moments, 24-bit master weights."""
    return FlashAdamW(groups, lr=lr, betas=(0.9, 0.95))


def swapped_lines() -> tuple[str, str]:
    """The source lines in which the two runs differ, as they are executed."""
    lines = (inspect.getsource(make).splitlines()[-1] for make in (torch_adamw, flash_adamw))
    before, after = (line.strip().replace("return ", "optimizer = ") for line in lines)
    return before, after


@dataclass
class History:
    """What a run has measured so far."""

    train_loss: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    optimizer_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)


class Run:
    """A model, its optimizer and its learning-rate schedule."""

    def __init__(self, name: str, initial: GPT, settings: Settings, *, flash: bool) -> None:
        self.name = name
        self.settings = settings
        self.model = copy.deepcopy(initial).to(settings.device)
        if flash:
            cast_model(self.model, torch.bfloat16)
        groups = weight_decay_groups(self.model, WEIGHT_DECAY)
        self.optimizer = (flash_adamw if flash else torch_adamw)(groups, settings.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, learning_rate_factor(settings.steps)
        )
        self.history = History()

    def train_step(self, corpus: Corpus, step: int) -> None:
        """One forward, backward and optimizer step; gradients stay until the next one."""
        settings = self.settings
        tokens, targets = corpus.batch(settings.seed, step, settings.batch, settings.config.context)
        tokens, targets = tokens.to(settings.device), targets.to(settings.device)
        begin = self._now()
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss: Tensor = self.model(tokens, targets)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        before_optimizer = self._now()
        self.optimizer.step()
        end = self._now()
        self.schedule.step()
        self.history.train_loss.append(loss.item())
        self.history.optimizer_ms.append(1e3 * (end - before_optimizer))
        self.history.step_ms.append(1e3 * (end - begin))

    @torch.no_grad()
    def validate(self, corpus: Corpus, step: int) -> None:
        """Record the mean loss over the fixed validation windows."""
        settings = self.settings
        tokens, targets = corpus.validation_batch(
            settings.validation_windows, settings.config.context
        )
        losses = []
        for first in range(0, len(tokens), settings.batch):
            x, y = tokens[first : first + settings.batch], targets[first : first + settings.batch]
            with self._autocast():
                loss: Tensor = self.model(x.to(settings.device), y.to(settings.device))
            losses.extend([loss.item()] * len(x))
        self.history.validation.append((step, statistics.fmean(losses)))

    def save(self, path: Path) -> None:
        """Write a checkpoint the way any PyTorch script does."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }
        torch.save(state, path)

    def resume(self, path: Path) -> None:
        """Load a checkpoint written by ``save``."""
        state = torch.load(path, map_location=self.settings.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        device, enabled = self.settings.device.type, self.settings.autocast
        return torch.autocast(device, torch.bfloat16, enabled=enabled)

    def _now(self) -> float:
        """Seconds; waits for the device first, so that differences are the work's own time."""
        if self.settings.device.type == "cuda":
            torch.cuda.synchronize(self.settings.device)
        return time.perf_counter()


def learning_rate_factor(steps: int) -> Callable[[int], float]:
    """Linear warm-up, then half a cosine down to ``FINAL_LR_SHARE``."""
    warm_up = max(1, round(WARM_UP_SHARE * steps))

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        progress = min(1.0, (step - warm_up) / max(1, steps - warm_up))
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return FINAL_LR_SHARE + (1.0 - FINAL_LR_SHARE) * cosine

    return factor

"""A training run of GPT-2 on a text: what the language experiments do with each optimizer."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from experiments import text, variants
from experiments.from_demo import (
    CLIP_NORM,
    learning_rate_factor,
    measure_memory,
    weight_decay_groups,
)
from experiments.models import GPT2, GPT2_SMALL, GPT2_TINY
from experiments.schedule import DIVERGED, OK, SKIPPED, STOPPED
from experiments.variants import VARIANTS, Variant

SPIKE_WINDOW: Final = 50
SPIKE_DEVIATIONS: Final = 6.0
_SYNC_EVERY: Final = 10  # steps between looks at the loss and the clock
_WARM_UP: Final = 10  # steps that are not timed


@dataclass(frozen=True)
class Settings:
    """What the runs of all variants have in common, and the seed."""

    text: str
    seed: int
    steps: int
    batch: int
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    validations: int
    validation_windows: int
    smoke: bool
    compiled: bool
    start: str = ""  # a file with fp32 weights; otherwise they are drawn from the seed
    start_sha256: str = ""

    @property
    def rule_options(self) -> dict[str, Any]:
        """For the optimizer."""
        return {"lr": self.lr, "betas": self.betas}


Probe = Callable[[Variant, GPT2, Optimizer], dict[str, Any]]


def train(
    variant: Variant,
    settings: Settings,
    device: torch.device,
    end: float,
    *,
    save: str = "",
    probe_at: Sequence[int] = (),
    probe: Probe | None = None,
) -> dict[str, Any]:
    """Trains a model and returns what was measured, with a status.

    A failure of the compiler is recorded, and the run repeated without it.

    Args:
        variant: the optimizer.
        settings: everything else.
        device: where.
        end: of the time, as ``time.time()`` gives it: the run stops there.
        save: a file for the model's fp32 weights in the end.
        probe_at: steps that are given to ``probe`` to make.
        probe: makes the optimizer's step, and measures something around it.
    """
    if why := variant.missing(device):
        return {"status": SKIPPED, "error": why}
    compiled, problem = settings.compiled, ""
    while True:
        run = Training(variant, settings, device, compiled=compiled)
        try:
            run.first_step(probe if 0 in probe_at else None)
        except Exception as error:
            if not compiled:
                raise
            compiled, problem = False, f"{type(error).__name__}: {error}"[:500]
            torch._dynamo.reset()
            continue
        break
    status = run.go(end, probe_at, probe)
    if save and status == OK:
        weights = variants.master_weights(variant, run.model, run.optimizer)
        torch.save({name: value.cpu() for name, value in weights.items()}, save)
    measured = run.measured() | {"compiled": compiled, "status": status}
    return measured | ({"compiler_problem": problem} if problem else {})


class Training:
    """A model, its optimizer, its text, and the losses so far."""

    def __init__(
        self, variant: Variant, settings: Settings, device: torch.device, *, compiled: bool
    ) -> None:
        self.variant, self.settings, self.device = variant, settings, device
        config = GPT2_TINY if settings.smoke else GPT2_SMALL
        self.context = config.context
        self.text = _text(settings.text, device, settings.smoke)
        torch.manual_seed(settings.seed)
        with device:  # seconds faster than on the host
            self.model = GPT2(config)
        if settings.start:
            self.model.load_state_dict(_weights(settings.start))
        if compiled:
            self.model.compile_parts()
        self.optimizer = variants.begin(
            variant,
            self.model,
            lambda model: weight_decay_groups(model, settings.weight_decay),
            weight_decay=settings.weight_decay,
            **settings.rule_options,
        )
        factor = learning_rate_factor(settings.steps)
        self.schedule = LambdaLR(self.optimizer, factor)
        self.order = self.text.order(settings.seed, self.context)
        self.losses = torch.zeros(settings.steps, device=device)
        self.done = 0
        self.validation: list[tuple[int, float]] = []
        self.probes: list[dict[str, Any]] = []
        self.timed: tuple[float, int] | None = None
        self.tokens_per_second = 0.0

    def first_step(self, probe: Probe | None) -> None:
        """Validates and makes the first step; both compile what is compiled."""
        self.validate()
        self.step(probe)
        self.losses[:1].tolist()

    def go(self, end: float, probe_at: Sequence[int], probe: Probe | None) -> str:
        """The other steps, as long as there is time and the loss is finite; returns the status."""
        settings = self.settings
        parts = settings.validations
        validate_at = {i * settings.steps // parts for i in range(1, parts)}
        for step in range(1, settings.steps):
            if step % _SYNC_EVERY == 0:
                if not math.isfinite(float(self.losses[step - 1])):
                    return DIVERGED
                if time.time() > end:
                    return STOPPED
            if step == _WARM_UP:
                self._start_clock()
            if step in validate_at:
                self._stop_clock()
                self.validate()
                self._start_clock()
            self.step(probe if step in probe_at else None)
        self._stop_clock()
        self.validate()
        return OK

    def step(self, probe: Probe | None) -> None:
        """One step of training."""
        size = self.settings.batch
        places = torch.arange(self.done * size, (self.done + 1) * size, device=self.device)
        tokens, targets = text.windows(
            self.text.train, self.order[places % len(self.order)], self.context
        )
        loss = self._loss(tokens, targets)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        if probe:
            measured = probe(self.variant, self.model, self.optimizer)
            self.probes.append({"step": self.done, **measured})
        else:
            self.optimizer.step()
        self.schedule.step()
        self.losses[self.done] = loss.detach()
        self.done += 1
        if self.done < self.settings.steps:
            self.optimizer.zero_grad(set_to_none=True)

    def validate(self) -> None:
        """Records the mean loss over the validation windows.

        Gradients are not switched off, so that the compiled graph of training serves here too.
        """
        settings = self.settings
        places = self.text.validation_places(settings.validation_windows, self.context)
        total = torch.zeros((), device=self.device)
        for some in torch.split(places, settings.batch):
            loss = self._loss(*text.windows(self.text.validation, some, self.context))
            total += loss.detach() * len(some)
        self.validation.append((self.done, float(total) / len(places)))

    def measured(self) -> dict[str, Any]:
        """Everything, ready for a result file."""
        losses = [loss for loss in self.losses[: self.done].tolist() if math.isfinite(loss)]
        parameters = sum(p.numel() for p in self.model.parameters())
        found: dict[str, Any] = {
            "train_loss": [round(loss, 4) for loss in losses],
            "validation_loss": [[step, loss] for step, loss in self.validation],
            "final_validation_loss": self.validation[-1][1] if self.done else None,
            "spikes": spikes(losses),
            "parameters": parameters,
            "tokens": self.done * self.settings.batch * self.context,
            "tokens_per_second": round(self.tokens_per_second),
            "bytes_per_parameter": {
                kind: size / parameters
                for kind, size in asdict(measure_memory(self.model, self.optimizer)).items()
            },
            "data": self.text.about,
        }
        return found | ({"probes": self.probes} if self.probes else {})

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss: Tensor = self.model(tokens, targets)
        return loss

    def _start_clock(self) -> None:
        self._wait()
        self.timed = time.perf_counter(), self.done

    def _stop_clock(self) -> None:
        self._wait()
        if self.timed and self.done > self.timed[1]:
            begin, first = self.timed
            tokens = (self.done - first) * self.settings.batch * self.context
            self.tokens_per_second = tokens / (time.perf_counter() - begin)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def spikes(losses: Sequence[float]) -> int:
    """Steps whose loss lies far above those before it.

    "Far" is more than six robust standard deviations (1.4826 times the median absolute deviation)
    above the median of the 50 losses before.
    """
    count = 0
    for step in range(SPIKE_WINDOW, len(losses)):
        before = losses[step - SPIKE_WINDOW : step]
        middle = statistics.median(before)
        spread = 1.4826 * statistics.median(abs(loss - middle) for loss in before)
        count += losses[step] - middle > SPIKE_DEVIATIONS * spread
    return count


@cache
def _text(name: str, device: torch.device, smoke: bool) -> text.Text:
    return text.load(name, device, smoke=smoke)


@cache
def _weights(path: str) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(Path(path), weights_only=True)
    return weights


def job(variant: str, settings: Settings, **more: Any) -> dict[str, Any]:
    """A run as the scheduler takes it."""
    if variant not in VARIANTS:
        raise ValueError(f"there is no variant {variant!r}; there are {', '.join(VARIANTS)}")
    return {
        "key": f"{variant}/lr={settings.lr:g}/steps={settings.steps}/seed={settings.seed}",
        "variant": variant,
        "seed": settings.seed,
        "settings": {**asdict(settings), "betas": list(settings.betas)},
        **more,
    }


def settings_of(found: dict[str, Any]) -> Settings:
    """The settings of a job."""
    return Settings(**{**found["settings"], "betas": tuple(found["settings"]["betas"])})

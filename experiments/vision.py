"""A ResNet-18 that reads letters in typefaces it has not seen, trained with each optimizer.

    python -m experiments.vision --gpus 2
    python -m experiments.vision --smoke                   # a narrow network, few pictures

Pictures are those of ``experiments.data``: 62 characters in hundreds of typefaces, whole families
held out. BatchNorm keeps fp32 weights and statistics in all variants, as ``cast_model`` leaves it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from experiments import archive, common, suite, variants
from experiments.data_glyphs import CHARACTERS, SIDE
from experiments.from_demo import learning_rate_factor, weight_decay_groups
from experiments.models import ResNet18
from experiments.schedule import DIVERGED, OK, SKIPPED, STOPPED, Job
from experiments.variants import VARIANTS

REFERENCE: Final = {"sgd": "sgd/torch", "adamw": "adamw/torch"}
NAMES: Final = ("torch", "ours-24", "official")
RULES: Final[dict[str, dict[str, Any]]] = {
    "sgd": {"lr": 0.1, "weight_decay": 5e-4, "options": {"momentum": 0.9}},
    "adamw": {"lr": 1e-3, "weight_decay": 0.05, "options": {"betas": [0.9, 0.999]}},
}
_LOOK_EVERY: Final = 20  # steps
_VALIDATION_BATCH: Final = 2048


@dataclass(frozen=True)
class Settings:
    """What the runs of all variants of a rule have in common, and the seed."""

    seed: int
    epochs: int
    batch: int
    channels: int
    lr: float
    weight_decay: float
    options: dict[str, Any]
    smoke: bool


@dataclass(frozen=True)
class Glyphs:
    """Pictures as bytes ``[count, 1, 32, 32]``, and their classes."""

    train: Tensor
    train_classes: Tensor
    validation: Tensor
    validation_classes: Tensor
    about: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("vision", __doc__)
    suite.add_arguments(parser, budget=120)
    parser.add_argument("--epochs", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=512, help="pictures (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    runs = suite.Suite("vision", chosen, "accuracy", REFERENCE)
    jobs: list[Job] = []
    for seed in suite.numbers(chosen.seeds):
        for rule, choices in RULES.items():
            settings = Settings(
                seed=seed,
                epochs=4 if chosen.smoke else chosen.epochs,
                batch=64 if chosen.smoke else chosen.batch,
                channels=4 if chosen.smoke else 64,
                smoke=chosen.smoke,
                **choices,
            )
            for name in NAMES:
                variant = f"{rule}/{name}"
                if runs.wanted(variant):
                    key = f"{variant}/seed={seed}"
                    job = {"key": key, "variant": variant, "seed": seed}
                    jobs.append({**job, "settings": asdict(settings)})
    return runs.go(jobs, "experiments.vision:train")


def train(job: Job, device: torch.device, end: float) -> dict[str, Any]:
    """One run, in a process of its own device."""
    variant, settings = VARIANTS[job["variant"]], Settings(**job["settings"])
    if why := variant.missing(device):
        return {"status": SKIPPED, "error": why}
    torch.backends.cudnn.benchmark = True  # all batches have one shape
    data = load(device, settings.smoke)
    torch.manual_seed(settings.seed)
    with device:
        # Pictures are channels_last and weights are not, for the official package refuses those.
        model = ResNet18(len(CHARACTERS), settings.channels)
    optimizer = variants.begin(
        variant,
        model,
        lambda model: weight_decay_groups(model, settings.weight_decay),
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        **settings.options,
    )
    per_epoch = len(data.train) // settings.batch
    steps = settings.epochs * per_epoch
    schedule = LambdaLR(optimizer, learning_rate_factor(steps))
    generator = torch.Generator().manual_seed(settings.seed)
    losses = torch.zeros(steps, device=device)
    accuracies, status, begin = [], OK, time.perf_counter()
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(data.train), generator=generator).to(device)
        if step % _LOOK_EVERY == 1:
            if not math.isfinite(float(losses[step - 1])):
                status = DIVERGED
                break
            if time.time() > end:
                status = STOPPED
                break
        first = step % per_epoch * settings.batch
        chosen = order[first : first + settings.batch]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(pictures(data.train[chosen]))
        loss = F.cross_entropy(scores.float(), data.train_classes[chosen])
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
        if (step + 1) % per_epoch == 0:
            accuracies.append(validate(model, data))
    found = [round(loss, 4) for loss in losses[: step + 1].tolist() if math.isfinite(loss)]
    return {
        "status": status,
        "train_loss": found,
        "validation": [{"accuracy": a, "loss": loss} for a, loss in accuracies],
        "accuracy": accuracies[-1][0] if accuracies else None,
        "validation_loss": accuracies[-1][1] if accuracies else None,
        "training_seconds": time.perf_counter() - begin,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": data.about,
    }


def pictures(found: Tensor) -> Tensor:
    """Bytes as numbers around zero."""
    return (found.float() / 255 - 0.2).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def validate(model: torch.nn.Module, data: Glyphs) -> tuple[float, float]:
    """The share of the validation pictures that are read rightly, and the mean loss, in fp64."""
    model.eval()
    right = torch.zeros((), device=data.validation.device, dtype=torch.float64)
    total = torch.zeros_like(right)
    batches = zip(
        torch.split(data.validation, _VALIDATION_BATCH),
        torch.split(data.validation_classes, _VALIDATION_BATCH),
        strict=True,
    )
    for found, classes in batches:
        with torch.autocast(found.device.type, torch.bfloat16):
            scores = model(pictures(found)).float()
        right += (scores.argmax(1) == classes).sum()
        total += F.cross_entropy(scores, classes, reduction="sum").double()
    model.train()
    count = len(data.validation)
    return float(right) / count, float(total) / count


@cache
def load(device: torch.device, smoke: bool) -> Glyphs:
    """The pictures on a device; with ``smoke`` a few that torch draws itself: noisy stripes.

    Raises:
        ArchiveError: the archive is missing or damaged.
    """
    if smoke:
        return _stripes(device)
    found = archive.read(archive.path_of("glyphs"))
    tensors = {name: torch.from_numpy(array).to(device) for name, array in found.arrays.items()}
    return Glyphs(
        tensors["train_pictures"].unsqueeze(1),
        tensors["train_classes"].long(),
        tensors["validation_pictures"].unsqueeze(1),
        tensors["validation_classes"].long(),
        {**found.about, "sha256": found.sha256},
    )


def _stripes(device: torch.device) -> Glyphs:
    """Stripes as far apart as their class says."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(640) % 8
    phase = torch.arange(SIDE)[None, :] * (classes[:, None] + 1) * (math.pi / SIDE)
    rows = (phase.sin() + 1)[:, None, None, :].expand(-1, 1, SIDE, SIDE)
    noise = torch.rand(rows.shape, generator=generator)
    drawn = ((rows + noise) * 85).byte().to(device)
    classes = classes.to(device)
    return Glyphs(drawn[:512], classes[:512], drawn[512:], classes[512:], {"source": "stripes"})


if __name__ == "__main__":
    sys.exit(main())

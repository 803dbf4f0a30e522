"""Where training stays stable: learning rates far too large, and spikes in the gradients.

    python -m experiments.stability
    python -m experiments.stability --smoke

A small transformer on the sources of Python's standard library, byte by byte, without clipping;
for each pair of a learning rate and a spike some models that differ in their initial weights. The
gradients of three steps are multiplied by the spike. The result is the loss of the last tenth of
the steps, on text that was not seen before. Everybody computes in fp32; only what the optimizer
keeps differs.
"""

from __future__ import annotations

import importlib
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Final

import torch

from bench.contenders import OURS, TORCH
from experiments import common
from experiments.from_demo import load_corpus
from experiments.many_models import ManyModels, Size

RATES: Final = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
SPIKES: Final = (1.0, 1e2, 1e4, 1e6)
SPIKES_AT: Final = (0.3, 0.5, 0.7)  # of the steps
WARM_UP: Final = 0.1
NEAR: Final = 0.05  # a loss so much above the worst of torch's in fp32 counts as worse
UNIFORM: Final = math.log(256)  # the loss of taking every byte for as likely as any other


@dataclass(frozen=True)
class Way:
    """An optimizer."""

    label: str
    package: str
    module: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16


REFERENCE: Final = "torch fp32"
WAYS: Final = (
    Way(REFERENCE, TORCH, "torch.optim", "AdamW", {"fused": True}, torch.float32),
    Way("ours, 24 bits", OURS, OURS, "FlashAdamW", {"master_weight_bits": 24}),
    Way("ours, 32 bits", OURS, OURS, "FlashAdamW", {"master_weight_bits": 32}),
    Way("ours, softsign", OURS, OURS, "FlashAdamW", {"codec": "softsign"}),
    Way("official 0.1, 24 bits", "flashoptim", "flashoptim", "FlashAdamW"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("stability", __doc__)
    parser.add_argument("--steps", type=int, help="default: 300 on a GPU, else 200")
    parser.add_argument("--batch", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--context", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--width", type=int, help="default: 128 on a GPU, else 64")
    parser.add_argument("--draws", type=int, help="of initial weights; default: 3 on a GPU, else 1")
    parser.add_argument("--beta2", type=float, default=0.999, help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    run = common.Run("stability", chosen)
    if run.smoke:
        chosen.steps, chosen.batch, chosen.context, chosen.width = chosen.steps or 5, 1, 16, 32
    chosen.steps = chosen.steps or (300 if run.on_gpu else 200)
    chosen.draws = chosen.draws or (3 if run.on_gpu else 1)
    size = Size(width=chosen.width or (128 if run.on_gpu else 64))
    text = load_corpus()
    rates, spikes = (RATES[::3], SPIKES[::3]) if run.smoke else (RATES, SPIKES)
    points = list(product(rates, spikes))
    present = {OURS, TORCH} | common.peers(run.device)
    grids: list[dict[str, Any]] = []
    for way in WAYS:
        if way.package not in present:
            continue
        train = partial(_train, run, way, points, size, text, chosen)
        losses = run.attempt(way.label, way.package, train)
        if losses is None:
            continue
        grids.append({"way": way.label, "losses": losses})
        run.note(way.label)
        worse = compare(grids)
        run.save(rates=rates, spikes=spikes, grids=grids, worse=worse)
    run.finish()
    for row in run.result["worse"]:
        print(f"{row['way']}: worse than {REFERENCE} at {row['worse']} of {len(points)} points")
    return 0


def _train(
    run: common.Run,
    way: Way,
    points: Sequence[tuple[float, float]],
    size: Size,
    text: Any,
    chosen: Any,
) -> list[list[float]]:
    """The final losses of each point's models; infinite where they are not numbers."""
    points = [point for point in points for _ in range(chosen.draws)]
    models = ManyModels(len(points), chosen.draws, size, way.dtype, run.generator(1))
    make = getattr(importlib.import_module(way.module), way.name)
    optimizer = make(
        models.groups(), lr=1e-3, betas=(0.9, chosen.beta2), weight_decay=0.0, **way.options
    )
    spikes = torch.tensor([spike for _, spike in points], device=run.device)
    spiked = {int(share * chosen.steps) for share in SPIKES_AT}
    last = max(1, chosen.steps // 10)
    total = torch.zeros(len(points), device=run.device)
    for step in range(chosen.steps):
        warm = min(1.0, (step + 1) / (WARM_UP * chosen.steps))
        for group, (rate, _) in zip(optimizer.param_groups, points, strict=True):
            group["lr"] = rate * warm
        tokens, targets = text.batch(run.seed, step, chosen.batch, chosen.context)
        losses = models.losses(tokens.to(run.device), targets.to(run.device))
        models.backward(losses, spikes if step in spiked else torch.ones_like(spikes))
        optimizer.step()
        if step >= chosen.steps - last:
            total += losses.detach()
    final = (total / last).nan_to_num(math.inf, math.inf, math.inf)
    found: list[list[float]] = final.view(-1, chosen.draws).tolist()
    return found


def compare(grids: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At how many points the median of each is outside of what torch's models in fp32 reach."""
    reference = next(grid["losses"] for grid in grids if grid["way"] == REFERENCE)
    found = []
    for grid in grids:
        pairs = [
            (statistics.median(own), exact)
            for own, exact in zip(grid["losses"], reference, strict=True)
        ]
        worse = sum(own > (1 + NEAR) * max(exact) for own, exact in pairs)
        better = sum(min(exact) > (1 + NEAR) * own for own, exact in pairs)
        learned = sum(own < UNIFORM for own, _ in pairs)
        found.append(
            {
                "way": grid["way"],
                "worse": worse,
                "better": better,
                "learned": learned,
                "of": len(pairs),
            }
        )
    return found


if __name__ == "__main__":
    sys.exit(main())

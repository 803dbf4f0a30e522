"""Which choice of the format protects which regime: one choice changed at a time.

    python -m experiments.ablation
    python -m experiments.ablation --smoke

Moments: AdamW on the gradients of `experiments.dynamics`, in the simulation of
`experiments.simulation`. Unchanged it must give the updates of the real step bit for bit, which is
checked throughout the run. Weights: real optimizers, with 16, 24 and 32 bits of master weight, at
smaller and smaller learning rates.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

from experiments import common, weight_bits
from experiments.dynamics import LARGEST_ERROR, LARGEST_RATIO
from experiments.regimes import REGIMES, Gradients, Reference, Score
from experiments.simulation import AdamW, Choices
from experiments.steppers import BETA2S, CONTENDERS, READING_LR, Stepper

CHOICES: Final = (
    Choices(),
    Choices("linear codes of m", first="linear"),
    Choices("linear codes of v", second="linear"),
    Choices("linear codes of both", first="linear", second="linear"),
    Choices("v to nearest", stochastic=False),
    Choices("fp16 scales", scale=torch.float16),
    Choices("bf16 scales", scale=torch.bfloat16),
    Choices("groups of 32", group=32),
    Choices("groups of 128", group=128),
    Choices("groups of 256", group=256),
)
REAL: Final = ("adamw-root", "adamw-softsign", "adamw-torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("ablation", __doc__)
    parser.add_argument("--steps", type=int, help="default: 2000, with --smoke 8")
    parser.add_argument("--rows", type=int, help="of 1024 elements; default: 16 on a GPU, else 2")
    chosen = parser.parse_args(arguments)
    chosen.steps = chosen.steps or (8 if chosen.smoke else 2000)
    run = common.Run("ablation", chosen)
    chosen.rows = chosen.rows or (16 if run.on_gpu else 1 if chosen.smoke else 2)
    weights = weight_bits.measure(run, chosen.steps)
    run.save(weights=weights)
    rows, differing = moments(run, chosen.rows, chosen.steps)
    run.finish(moments=rows, updates_that_differ_from_the_step=differing)
    print(f"updates of the simulation that differ from the real step's: {differing}")
    return 0 if differing == 0 else 1


def moments(run: common.Run, rows: int, steps: int) -> tuple[list[dict[str, Any]], int]:
    """A row per choice, regime and beta2, and how many simulated updates were not the step's."""
    gradients = Gradients((rows, 1024), steps, run.generator(1))
    copies = len(BETA2S)
    reference = Reference(gradients.fp32, BETA2S)
    real = {key: Stepper(CONTENDERS[key], gradients, BETA2S, run.generator(2)) for key in REAL}
    like = gradients.fp32.repeat(copies, 1, 1)
    beta2s = [beta2 for beta2 in BETA2S for _ in REGIMES]
    simulated = {choices.name: AdamW(like, beta2s, choices, READING_LR) for choices in CHOICES}
    scores = {name: Score(len(like), steps, run.device) for name in (*real, *simulated)}
    differing = torch.zeros((), dtype=torch.int64, device=run.device)
    for step in range(steps):
        gradients.draw()
        exact = reference.adamw(gradients.fp32.double()).flatten(0, 1)
        for key, stepper in real.items():
            stepper.optimizer.step()
            update = stepper.take_update()
            scores[key].add(update, exact)
            if key == "adamw-root":
                of_step = update
        stacked = gradients.fp32.repeat(copies, 1, 1)
        for name, optimizer in simulated.items():
            update = optimizer.step(stacked)
            scores[name].add(update, exact)
            if name == CHOICES[0].name:
                differing += (update != of_step).sum()
        if step in (0, steps // 2):
            run.note(f"moments: step {step + 1} of {steps}")
    found = []
    for name, score in scores.items():
        for index, row in enumerate(score.rows()):
            copy, regime = divmod(index, len(REGIMES))
            found.append(
                {
                    "choice": CONTENDERS[name].label if name in real else name,
                    "simulated": name in simulated,
                    "regime": REGIMES[regime].name,
                    "beta2": BETA2S[copy],
                    "met": row["error"] <= LARGEST_ERROR
                    and row["largest"] <= LARGEST_RATIO * row["largest_fp64"],
                    **row,
                }
            )
    return found, int(differing)


if __name__ == "__main__":
    sys.exit(main())

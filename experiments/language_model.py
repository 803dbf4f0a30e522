"""GPT-2 trained from scratch on C sources with each optimizer: is the loss that of torch's fp32?

    python -m experiments.language_model --gpus 2 --budget 500
    python -m experiments.language_model --smoke           # a tiny model on this machine's Python

All runs of a seed begin with the same fp32 weights and see the same windows in the same order.
Runs are in the order of their importance, all variants of AdamW with the first seed first; what
the result file holds already is not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from experiments import common, suite, training
from experiments.from_demo import WEIGHT_DECAY
from experiments.models import GPT2_SMALL
from experiments.schedule import Job
from experiments.training import Settings
from experiments.variants import VARIANTS

REFERENCE: Final = {"adamw": "adamw/torch", "lion": "lion/plain"}
# Lion's updates are larger: a sixth of AdamW's rate, and six times the decay.
RULES: Final[dict[str, dict[str, Any]]] = {
    "adamw": {"lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": WEIGHT_DECAY},
    "lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 6 * WEIGHT_DECAY},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("language_model", __doc__)
    suite.add_arguments(parser, budget=500)
    parser.add_argument("--tokens", type=float, default=25e6, help="of each run (default: 25e6)")
    parser.add_argument("--batch", type=int, default=32, help="windows (default: %(default)s)")
    parser.add_argument("--rules", default="adamw,lion", help="default: %(default)s")
    parser.add_argument(
        "--save", default="", help="a file for the weights of adamw/torch with the first seed"
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    chosen = parser.parse_args(arguments)
    runs = suite.Suite("language_model", chosen, "final_validation_loss", REFERENCE)
    steps = 12 if chosen.smoke else round(chosen.tokens / (chosen.batch * GPT2_SMALL.context))
    jobs = []
    seeds = suite.numbers(chosen.seeds)
    for rule in chosen.rules.split(","):
        for seed in seeds:
            settings = Settings(
                text="code",
                seed=seed,
                steps=steps,
                batch=4 if chosen.smoke else chosen.batch,
                validations=2 if chosen.smoke else 8,
                validation_windows=8 if chosen.smoke else 256,
                smoke=chosen.smoke,
                compiled=runs.run.on_gpu and not chosen.no_compile,
                **RULES[rule],
            )
            for variant in VARIANTS:
                if variant.startswith(f"{rule}/") and runs.wanted(variant):
                    first = variant == "adamw/torch" and seed == seeds[0]
                    jobs.append(training.job(variant, settings, save=chosen.save if first else ""))
    # Weights that are to be saved have to be trained, unless they were saved before.
    again = [job["key"] for job in jobs if job["save"] and not Path(job["save"]).is_file()]
    return runs.go(jobs, "experiments.language_model:train", again)


def train(job: Job, device: torch.device, end: float) -> dict[str, Any]:
    """One run, in a process of its own device."""
    variant = VARIANTS[job["variant"]]
    return training.train(variant, training.settings_of(job), device, end, save=job["save"])


if __name__ == "__main__":
    sys.exit(main())

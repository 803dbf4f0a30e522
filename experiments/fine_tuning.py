"""Fine-tuning at low learning rates: where updates are smallest beside the weights.

    python -m experiments.language_model --gpus 2 --save gpt2.pt
    python -m experiments.fine_tuning --gpus 2 --start gpt2.pt
    python -m experiments.fine_tuning --smoke              # from a tiny model with random weights

A GPT-2 that was trained on C sources goes on with the kernel's documentation. Beside the loss, some
steps count how many elements of the update are too small for the weights that are stored.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from experiments import common, lost_updates, suite, training
from experiments.from_demo import WEIGHT_DECAY
from experiments.models import GPT2, GPT2_SMALL, GPT2_TINY
from experiments.schedule import Job
from experiments.training import Settings
from experiments.variants import VARIANTS

REFERENCE: Final = {"adamw": "adamw/torch"}
PROBES: Final = (0.1, 0.5, 0.95)  # of the steps: near the largest rate, in the middle, at the end


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the experiment; the result is the exit status."""
    parser = common.parser("fine_tuning", __doc__)
    suite.add_arguments(parser, budget=120)
    parser.add_argument("--start", default="", help="fp32 weights that language_model --save wrote")
    parser.add_argument("--tokens", type=float, default=2.5e6, help="of each run (default: 2.5e6)")
    parser.add_argument("--batch", type=int, default=16, help="windows (default: %(default)s)")
    parser.add_argument("--lrs", default="1e-6,1e-5", help="default: %(default)s")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    chosen = parser.parse_args(arguments)
    if not chosen.smoke and not Path(chosen.start).is_file():
        parser.error(
            f"--start {chosen.start}: no such file; make it with: "
            "python -m experiments.language_model --save FILE"
        )
    with tempfile.TemporaryDirectory() as folder:
        start = Path(chosen.start)
        if chosen.smoke:
            start = Path(folder) / "start.pt"
            torch.manual_seed(chosen.seed)
            torch.save(GPT2(GPT2_TINY).state_dict(), start)
        return _go(chosen, start)


def _go(chosen: Any, start: Path) -> int:
    runs = suite.Suite("fine_tuning", chosen, "final_validation_loss", REFERENCE)
    steps = 20 if chosen.smoke else round(chosen.tokens / (chosen.batch * GPT2_SMALL.context))
    digest = hashlib.sha256(start.read_bytes()).hexdigest()
    jobs = []
    for seed in suite.numbers(chosen.seeds):
        for lr in chosen.lrs.split(","):
            settings = Settings(
                text="documentation",
                seed=seed,
                steps=steps,
                batch=4 if chosen.smoke else chosen.batch,
                lr=float(lr),
                betas=(0.9, 0.95),
                weight_decay=WEIGHT_DECAY,
                validations=2,
                validation_windows=8 if chosen.smoke else 256,
                smoke=chosen.smoke,
                compiled=runs.run.on_gpu and not chosen.no_compile,
                start=str(start),
                start_sha256=digest,
            )
            for variant in VARIANTS:
                if variant.startswith("adamw/") and runs.wanted(variant):
                    jobs.append(training.job(variant, settings))
    return runs.go(jobs, "experiments.fine_tuning:tune")


def tune(job: Job, device: torch.device, end: float) -> dict[str, Any]:
    """One run, in a process of its own device."""
    settings = training.settings_of(job)
    return training.train(
        VARIANTS[job["variant"]],
        settings,
        device,
        end,
        # Runs of one seed are enough to count.
        probe_at=[round(share * settings.steps) for share in PROBES] if settings.seed == 0 else (),
        probe=lost_updates.step,
    )


if __name__ == "__main__":
    sys.exit(main())

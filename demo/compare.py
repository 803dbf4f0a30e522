"""The demo's course: two runs in lockstep, a resumed run, and the report."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flashoptim_cpp
import torch
from data import Corpus, load_corpus
from measure import bfloat16_is_fast, cpu_name, first_difference, measure_memory, snapshot
from model import GPT, GPTConfig
from plot import draw
from progress import Progress
from report import Result, device_name, summary, table, write_json
from train import Run, Settings, swapped_lines

FULL_STEPS, LEAST_STEPS = 400, 60
TRAINING_SECONDS = 250.0  # both runs and the resumed one; slower machines train fewer steps
VALIDATIONS = 10
CALIBRATION_STEPS = 4
LEARNING_RATE = 2e-3


def compare(steps: int | None, seed: int, out: Path, *, quick: bool) -> bool:
    """Run everything, write ``curves.png`` and ``summary.json`` into ``out``.

    Returns whether the resumed run equals the uninterrupted one to the bit.
    """
    begin = time.perf_counter()
    if quick:
        torch.set_num_threads(1)  # the tiny model's work is too little to share
    out.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus()
    settings = choose_settings(steps, seed, quick=quick)
    torch.manual_seed(seed)
    initial = GPT(settings.config)
    if steps is None and not quick:
        print("timing a few steps on this machine ...", flush=True)
        settings = replace(settings, steps=affordable_steps(initial, settings, corpus))
    parameters = sum(p.numel() for p in initial.parameters())
    print_header(settings, corpus, parameters)

    runs = make_runs(initial, settings)
    with tempfile.TemporaryDirectory() as folder:
        halfway = train(runs, corpus, Path(folder))
        torch_result, flash_result = (
            Result(
                history=run.history,
                memory=measure_memory(run.model, run.optimizer),
                checkpoint_bytes=path.stat().st_size,
                parameters=parameters,
            )
            for run, path in zip(runs, halfway.checkpoints, strict=True)
        )
        resumed = Run("resumed", initial, settings, flash=True)
        difference = resume(resumed, halfway, corpus)

    print("\n" + table(torch_result, flash_result))
    if difference is None:
        print(
            f"\nresumed from the checkpoint of step {halfway.step}, {halfway.further} steps more: "
            f"{len(halfway.reference)} weights, states\nand hyper-parameters equal to the bit "
            "to those of the uninterrupted run (torch.equal)"
        )
    else:
        print(f"\nthe resumed run DIFFERS from the uninterrupted one, first in {difference}")
    draw(out / "curves.png", torch_result, flash_result, title(settings, parameters))
    content = summary(
        torch_result,
        flash_result,
        settings,
        resume_bit_identical=difference is None,
        seconds=time.perf_counter() - begin,
    )
    write_json(out / "summary.json", content)
    print(f"\n{os.path.relpath(out / 'curves.png')}  {os.path.relpath(out / 'summary.json')}")
    return difference is None


def choose_settings(steps: int | None, seed: int, *, quick: bool) -> Settings:
    """Model, data and schedule for this machine."""
    on_gpu = torch.cuda.is_available() and "cuda" in flashoptim_cpp.backends()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    small = GPTConfig(context=64, layers=2, heads=2, width=64)
    return Settings(
        config=small if quick else GPTConfig(),
        steps=steps or (40 if quick else FULL_STEPS),
        batch=8,
        validation_windows=64,
        lr=LEARNING_RATE,
        seed=seed,
        device=device,
        autocast=bfloat16_is_fast(device),
    )


def make_runs(initial: GPT, settings: Settings) -> tuple[Run, Run]:
    """The baseline and its replacement, from the same initial weights."""
    return (
        Run("torch", initial, settings, flash=False),
        Run("flash", initial, settings, flash=True),
    )


def affordable_steps(initial: GPT, settings: Settings, corpus: Corpus) -> int:
    """As many steps as fit into ``TRAINING_SECONDS``, at most ``FULL_STEPS``."""
    runs = make_runs(initial, settings)
    for step in range(CALIBRATION_STEPS):
        for run in runs:
            run.train_step(corpus, step)
    seconds = sum(statistics.median(run.history.step_ms) for run in runs) / 1e3
    # Validation is a third of a training step per batch (no backward pass); the resumed run
    # is a twentieth of the training at most.
    per_validation = settings.validation_windows / settings.batch / 3
    steps = (TRAINING_SECONDS / seconds - (VALIDATIONS + 1) * per_validation) / 1.05
    return max(LEAST_STEPS, min(FULL_STEPS, int(steps) // 10 * 10))


@dataclass(frozen=True)
class Halfway:
    """What the training leaves for the resume check."""

    step: int  # at which both checkpoints were written
    further: int  # steps from there to the reference
    checkpoints: list[Path]  # one file per run
    reference: dict[str, Any]  # the flash run at step + further


def train(runs: tuple[Run, Run], corpus: Corpus, folder: Path) -> Halfway:
    """Train both runs in lockstep, so that they share batches and the machine's moods."""
    steps = runs[0].settings.steps
    half, further = steps // 2, max(5, steps // 10)
    checkpoints = [folder / f"{run.name}.pt" for run in runs]
    reference: dict[str, Any] = {}
    progress = Progress("training", steps)
    for step in range(steps):
        if step in {i * steps // VALIDATIONS for i in range(VALIDATIONS)}:
            for run in runs:
                run.validate(corpus, step)
        for run in runs:
            run.train_step(corpus, step)
        if step + 1 == half:
            for run, path in zip(runs, checkpoints, strict=True):
                run.save(path)
        if step + 1 == half + further:
            reference = snapshot(runs[1].model, runs[1].optimizer)
        progress.update(step + 1, losses(runs))
    for run in runs:
        run.validate(corpus, steps)
    return Halfway(half, further, checkpoints, reference)


def losses(runs: tuple[Run, Run]) -> str:
    """The current training losses for the progress bar."""
    return "  ".join(f"{run.name} {run.history.train_loss[-1]:.3f}" for run in runs)


def resume(resumed: Run, halfway: Halfway, corpus: Corpus) -> str | None:
    """Continue a fresh run from the file; the result names the first difference, if any."""
    resumed.resume(halfway.checkpoints[1])
    progress = Progress("resuming", halfway.further, lines=2)
    for done in range(halfway.further):
        resumed.train_step(corpus, halfway.step + done)
        progress.update(done + 1, f"flash {resumed.history.train_loss[-1]:.3f}")
    return first_difference(halfway.reference, snapshot(resumed.model, resumed.optimizer))


def print_header(settings: Settings, corpus: Corpus, parameters: int) -> None:
    """Say what is about to happen, and show the line that is swapped."""
    before, after = swapped_lines()
    products = "bfloat16" if settings.autocast else "float32 (no fast bfloat16 here)"
    print(
        f"text:    {corpus.files} files of Python's standard library, "
        f"{(len(corpus.train) + len(corpus.validation)) / 1e6:.1f} MB, as bytes\n"
        f"model:   GPT, {parameters / 1e6:.2f} M parameters, {settings.config.layers} layers; "
        f"matrix products in {products}\n"
        f"machine: {machine(settings)}, threads: {torch.get_num_threads()}, "
        f"torch {torch.__version__}\n"
        f"\nthe same training twice, {settings.steps} steps each; what is swapped:\n"
        f"  - {before}\n"
        f"  + {after}\n"
        "and the weights are made bfloat16: cast_model(model, torch.bfloat16)\n",
        flush=True,
    )


def machine(settings: Settings) -> str:
    """The processor that trains."""
    return cpu_name() if settings.device.type == "cpu" else device_name(settings.device)


def title(settings: Settings, parameters: int) -> str:
    """The headline of the picture."""
    return (
        f"GPT with {parameters / 1e6:.1f} M parameters, trained on Python's standard library "
        f"for {settings.steps} steps"
    )

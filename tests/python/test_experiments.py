"""The experiments: small runs end to end, what is drawn and written of them, and the simulation."""

from __future__ import annotations

import importlib
import json
import math
import os
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
# What makes an experiment, and the test fails for one that cannot be run in small.
EXPERIMENTS = sorted(
    path.stem
    for path in (ROOT / "experiments").glob("*.py")
    if "common.parser(" in path.read_text(encoding="utf-8") and path.stem != "common"
)


@pytest.fixture(autouse=True)
def from_the_top_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def module(name: str) -> ModuleType:
    return importlib.import_module(f"experiments.{name}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """With one thread: many wait for each other on a busy machine."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_the_experiments_are_found() -> None:
    known = {"dynamics", "ablation", "stability", "llama", "checkpoints"}
    assert known <= set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_runs_in_small_and_can_be_shown(name: str, tmp_path: Path) -> None:
    out = tmp_path / f"{name}-small.json"
    done = run(f"experiments.{name}", "--smoke", "--device", "cpu", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["benchmark"] == name
    assert result["command"].startswith(f"python -m experiments.{name} --smoke")
    for key in ("machine", "versions", "commit", "date", "settings", "seconds"):
        assert result[key], key
    shown = [b for b in module("render").blocks().values() if b[0] == name]
    assert shown, f"experiments/tables/{name}.py is missing"
    for _, show in shown:
        table = show(result)
        assert table.count("\n") >= 4
        assert "|" in table
    if name in module("plot").drawable():
        module("plot").draw(name, result, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_checkpoints_are_measured_in_parts(tmp_path: Path) -> None:
    results = [tmp_path / f"{name}-small.json" for name in ("first", "second")]
    common = ("experiments.checkpoints", "--smoke", "--device", "cpu", "--folder", str(tmp_path))
    options = (("--ways", "flashoptim,torch-fp32"), ("--ways", "dcp", "--earlier", str(results[0])))
    for out, chosen in zip(results, options, strict=True):
        done = run(*common, *chosen, "--out", str(out), "--commit", out.name)
        assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(results[1].read_text(encoding="utf-8"))["rows"]
    first, second = (path.name for path in results)
    commits = {row["way"]: row["commit"] for row in rows}
    assert list(commits.items()) == [("flashoptim", first), ("dcp", second), ("torch-fp32", first)]
    result = json.loads(results[1].read_text(encoding="utf-8"))
    assert f"2 of the 3 rows are of commit {first}." in module("tables.checkpoints").sizes(result)


def test_moments_are_the_same_with_16_bit_weights(tmp_path: Path) -> None:
    out = tmp_path / "dynamics.json"
    arguments = ("--smoke", "--rules", "adamw", "--device", "cpu", "--out", str(out))
    assert module("dynamics").main(arguments) == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    twins = [row["moments_of_twin"] for row in rows if "moments_of_twin" in row]
    assert len(twins) == 80  # two codecs, 24 and 32 bits, two beta2, ten regimes
    assert all(twins)


def test_a_device_that_is_not_there_is_refused_in_one_line() -> None:
    done = run("experiments.dynamics", "--smoke", "--device", "meta")
    assert done.returncode == 2
    assert done.stderr == "dynamics: --device must be cpu or a CUDA device, not meta\n"


def test_the_document_shows_the_results() -> None:
    done = run("experiments.render", "--check")
    assert done.returncode == 0, done.stderr


def simulated(choices: Any, steps: int = 60) -> tuple[int, float]:
    """Updates that differ from the real step's, and the error of the simulated ones."""
    regimes, steppers = module("regimes"), module("steppers")
    simulation = module("simulation")
    gradients = regimes.Gradients((2, 256), steps, torch.Generator().manual_seed(1))
    beta2s = steppers.BETA2S
    real = steppers.Stepper(
        steppers.CONTENDERS["adamw-root"], gradients, beta2s, torch.Generator().manual_seed(2)
    )
    reference = regimes.Reference(gradients.fp32, beta2s)
    stacked = gradients.fp32.repeat(len(beta2s), 1, 1)
    of_each = [beta2 for beta2 in beta2s for _ in regimes.REGIMES]
    ours = simulation.AdamW(stacked, of_each, choices, steppers.READING_LR)
    score = regimes.Score(len(stacked), steps, torch.device("cpu"))
    differing = 0
    for _ in range(steps):
        gradients.draw()
        real.optimizer.step()
        update = ours.step(gradients.fp32.repeat(len(beta2s), 1, 1))
        differing += int((update != real.take_update()).sum())
        score.add(update, reference.adamw(gradients.fp32.double()).flatten(0, 1))
    return differing, max(row["error"] for row in score.rows())


def test_the_simulation_gives_the_bits_of_the_step() -> None:
    differing, error = simulated(module("simulation").Choices())
    assert differing == 0
    assert 0 < error < 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"group": 32},
        {"first": "linear"},
        {"second": "linear"},
        {"scale": torch.float16},
        {"stochastic": False},
    ],
)
def test_every_choice_of_the_simulation_changes_updates(change: dict[str, Any]) -> None:
    differing, error = simulated(module("simulation").Choices(**change), steps=8)
    assert differing > 1000
    assert math.isfinite(error)


def test_fma_rounds_once() -> None:
    fma = module("simulation").fma
    rng = random.Random(0)

    def number() -> float:
        drawn = math.ldexp(rng.randrange(1 << 23, 1 << 24), rng.randrange(-60, -20))
        return rng.choice((-1, 1)) * drawn

    cases = [(number(), number(), number() * 2.0 ** rng.randrange(-20, 20)) for _ in range(3000)]
    # Sums a little beside the middle of two floats, which fp64 rounds into it.
    cases += [(1.0 + 2.0**-23, 2.0**-24, 1.0), (1.0, 1.0 + 2.0**-23, 2.0**-60)]
    cases += [(1.0 + 2.0**-12, 1.0 + 2.0**-12, sign * 2.0**-70) for sign in (-1, 1)]
    a, b, c = (torch.tensor(column, dtype=torch.float32) for column in zip(*cases, strict=True))
    got = fma(a.double(), b, c).tolist()
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert result == nearest_fp32(exact), (x, y, z)


def nearest_fp32(exact: Fraction) -> float:
    """Ties to even, for results inside the normal range."""
    if exact == 0:
        return 0.0
    exponent = math.frexp(float(exact))[1] - 24
    scaled = exact / Fraction(2) ** exponent
    return math.ldexp(float(round(scaled)), exponent)


def test_a_regime_outside_of_the_bounds_is_judged_so() -> None:
    row = {
        "package": "flashoptim_cpp",
        "rule": "adamw",
        "contender": "adamw-root",
        "regime": "noise",
        "beta2": 0.999,
        "error": 0.1,
        "largest": 1.0,
        "largest_fp64": 1.0,
    }
    judge = module("dynamics").judge
    rows = [row, row | {"error": 0.21}, row | {"error": math.nan}, row | {"largest": 2.1}]
    assert [target["met"] for target in judge(rows)] == [True, False, False, False]
    assert judge([row | {"package": "torch"}]) == []


def test_the_model_has_the_shapes_that_are_timed() -> None:
    model = module("llama_model")
    shapes = importlib.import_module("bench.shapes")
    tiny = model.TINY
    made = model.Llama(tiny, torch.device("cpu"), torch.bfloat16)
    expected = shapes.llama(
        tiny.layers, tiny.width, tiny.heads, tiny.kv_heads, tiny.hidden, tiny.vocabulary
    )
    assert sorted(tuple(p.shape) for p in made.parameters()) == sorted(expected)


def test_gradients_are_those_of_their_regimes() -> None:
    regimes = module("regimes")
    steps = 8
    gradients = regimes.Gradients((16, 1024), steps, torch.Generator().manual_seed(0))
    sizes = []
    for _ in range(steps):
        gradients.draw()
        sizes.append(gradients.fp32.double().square().mean((1, 2)).sqrt())
        assert torch.equal(gradients.fp32.bfloat16(), gradients.bf16)
    names = [regime.name for regime in regimes.REGIMES]
    of = {name: torch.stack(sizes)[:, index] for index, name in enumerate(names)}
    assert of["noise 1e-7"][0] == pytest.approx(1e-7, rel=0.05)
    assert of["drop 30x"][3] / of["drop 30x"][4] == pytest.approx(30, rel=0.05)
    assert of["spike 3000x"][steps // 4] > 300 * of["spike 3000x"][0]
    assert of["2 % sparse"][0] == pytest.approx(1e-4 * math.sqrt(0.02), rel=0.2)

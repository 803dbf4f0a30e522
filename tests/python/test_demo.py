"""The demo: a tiny run end to end, and what it says when something is missing."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

# One worker runs the demo once and holds all of these tests.
pytestmark = pytest.mark.xdist_group("demo")

DEMO = Path(__file__).resolve().parents[2] / "demo" / "run.py"

# Per parameter of a matrix: weight 2, gradient 2, correction 1, two codes 2, two fp32 scales per
# group of 64. The tiny model's rows are multiples of 64 long, its norms keep fp32 moments.
MATRIX_BYTES = 2 + 2 + 1 + 2 + 2 * 4 / 64
NORM_BYTES = 2 + 2 + 1 + 2 * 4
NORM_SHARE = 640 / 115_328


def run_demo(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | (environment or {}),
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "not" / "yet" / "there"
    done = run_demo("--quick", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


@pytest.fixture(scope="module")
def summary(quick: tuple[Path, str]) -> dict[str, Any]:
    content = json.loads((quick[0] / "summary.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_every_figure_is_given_for_both_runs(summary: dict[str, Any]) -> None:
    for key in ("bytes_per_param", "step_ms", "val_loss", "checkpoint_bytes_per_param"):
        assert summary[key].keys() == {"torch", "flash"}, key
        assert all(math.isfinite(value) and value > 0 for value in summary[key].values()), key
    for key in ("machine", "versions", "parameters", "steps", "device"):
        assert summary[key], key


def test_both_runs_learn_the_same(summary: dict[str, Any]) -> None:
    loss = summary["val_loss"]
    assert loss["torch"] < 4.0 < math.log(256)
    assert loss["flash"] == pytest.approx(loss["torch"], rel=0.02)


def test_measured_memory_is_what_the_format_says(summary: dict[str, Any]) -> None:
    expected = (1 - NORM_SHARE) * MATRIX_BYTES + NORM_SHARE * NORM_BYTES
    assert summary["bytes_per_param"]["torch"] == pytest.approx(16, abs=0.01)
    # Step counters may be tensors: a few bytes for each of 15 parameters.
    assert expected <= summary["bytes_per_param"]["flash"] < expected + 0.05


def test_the_checkpoint_is_smaller(summary: dict[str, Any]) -> None:
    size = summary["checkpoint_bytes_per_param"]
    # Everything but the gradients, and the archive's overhead on a tiny model.
    assert 12.0 < size["torch"] < 12.5
    assert 5.1 < size["flash"] < 5.8


def test_the_resumed_run_is_the_same_to_the_bit(summary: dict[str, Any]) -> None:
    assert summary["resume_bit_identical"] is True


def test_the_picture_is_a_png_of_readable_size(quick: tuple[Path, str]) -> None:
    data = (quick[0] / "curves.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 1200
    assert height >= 500


def test_the_output_shows_the_swapped_line_and_the_progress(quick: tuple[Path, str]) -> None:
    lines = quick[1].splitlines()
    assert any(line.strip().startswith("- optimizer = torch.optim.AdamW(") for line in lines)
    assert any(line.strip().startswith("+ optimizer = FlashAdamW(") for line in lines)
    assert sum(line.startswith("training") for line in lines) == 10
    assert "equal to the bit" in quick[1]


@pytest.mark.parametrize("module", ["torch", "matplotlib", "flashoptim_cpp"])
def test_a_missing_requirement_is_one_line_with_the_remedy(tmp_path: Path, module: str) -> None:
    # An editable install is found before PYTHONPATH: a module of the same name would not hide it.
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules[{module!r}] = None\n", encoding="utf-8"
    )
    paths = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    done = run_demo("--quick", environment={"PYTHONPATH": os.pathsep.join(paths)})
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert module in done.stderr.replace("PyTorch", "torch")
    assert "make demo" in done.stderr
    assert "pip install" in done.stderr


def test_an_unusable_output_folder_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run_demo("--quick", "--out", str(file))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(file) in done.stderr


@pytest.mark.parametrize("wrong", [("--steps", "3"), ("--steps", "many"), ("--seed", "-1")])
def test_a_wrong_argument_is_refused(wrong: tuple[str, str]) -> None:
    done = run_demo("--quick", *wrong)
    assert done.returncode == 2
    assert wrong[0] in done.stderr

"""Validation losses along training, and each run's final gap to fp32."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from experiments.plots import style

INKS: Final = (style.TORCH, style.FLASH, "#f08c00", "#7f4f24", style.OTHER)


def draw(result: Result) -> Figure:
    """Curves of the first rule, seeds on top of each other; then gaps of all rules."""
    made, (left, right) = style.figure(result, 12, 4.8, columns=2)
    rule = result["runs"][0]["variant"].split("/")[0]
    _curves(left, [run for run in result["runs"] if run["variant"].startswith(f"{rule}/")])
    _gaps(right, result)
    return made


def _curves(axes: Axes, runs: list[dict[str, Any]]) -> None:
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    inks = dict(zip(variants, INKS, strict=False))
    for run in runs:
        steps, losses = zip(*run["validation_loss"], strict=True)
        first = run["seed"] == min(other["seed"] for other in runs)
        label = run["variant"] if first else None
        axes.plot(steps, losses, color=inks[run["variant"]], linewidth=1.2, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_title("Validation loss, all seeds", fontsize=11)
    axes.legend(frameon=False)


def _gaps(axes: Axes, result: Result) -> None:
    reference = {
        (run["variant"].split("/")[0], run["seed"]): run["final_validation_loss"]
        for run in result["runs"]
        if run["variant"] in ("adamw/torch", "lion/plain")
    }
    names = list(dict.fromkeys(run["variant"] for run in result["runs"]))
    for run in result["runs"]:
        gap = run["final_validation_loss"] - reference[run["variant"].split("/")[0], run["seed"]]
        axes.plot(gap, names.index(run["variant"]), "o", color=style.FLASH, alpha=0.7)
    axes.axvline(0, color=style.TORCH, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("Final loss less that of fp32 with the same seed", fontsize=11)

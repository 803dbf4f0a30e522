"""Validation losses along training, and each run's final gap to fp32."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from experiments.language_model import REFERENCE
from experiments.plots import style

INKS: Final = (style.TORCH, style.FLASH, "#f08c00", "#7f4f24", style.OTHER)


def draw(result: Result) -> Figure:
    """Curves of the first rule, seeds on top of each other; then gaps of all rules."""
    made, (left, right) = style.figure(result, 12, 4.8, columns=2)
    runs = [run for run in result["runs"] if run["status"] == "ok"]
    _curves(left, [run for run in runs if _rule(run) == _rule(runs[0])])
    _gaps(right, runs)
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


def _gaps(axes: Axes, runs: list[dict[str, Any]]) -> None:
    reference = {
        (_rule(run), run["seed"]): run["final_validation_loss"]
        for run in runs
        if run["variant"] in REFERENCE.values()
    }
    names = list(dict.fromkeys(run["variant"] for run in runs))
    for run in runs:
        plain = reference.get((_rule(run), run["seed"]))
        if plain is not None:
            place = names.index(run["variant"])
            axes.plot(run["final_validation_loss"] - plain, place, "o", color=style.FLASH)
    axes.axvline(0, color=style.TORCH, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("Final loss less that of fp32 with the same seed", fontsize=11)


def _rule(run: dict[str, Any]) -> str:
    return str(run["variant"]).partition("/")[0]

"""Validation losses along training, and each run's final gap to fp32."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from experiments.language_model import REFERENCE
from experiments.plots import style
from experiments.variants import in_order

INKS: Final = {
    "torch": style.TORCH,
    "plain": style.TORCH,
    "ours-24": style.FLASH,
    "ours-24-nearest": "#f08c00",
    "ours-32": "#7f4f24",
    "official": style.OTHER,
}


def draw(result: Result) -> Figure:
    """Curves of the first rule, seeds on top of each other, by length; then gaps of all rules."""
    runs = [run for run in result["runs"] if run["status"] == "ok"]
    runs.sort(key=lambda run: (in_order(run["variant"]), run["seed"]))
    lengths = sorted({run["tokens"] for run in runs})
    made, axes = style.figure(result, 6 * (len(lengths) + 1), 4.8, columns=len(lengths) + 1)
    for place, tokens in enumerate(lengths):
        curves = [run for run in runs if run["tokens"] == tokens and _rule(run) == _rule(runs[0])]
        _curves(axes[place], curves, tokens)
    _gaps(axes[-1], runs)
    return made


def _curves(axes: Axes, runs: list[dict[str, Any]], tokens: int) -> None:
    for run in runs:
        steps, losses = zip(*run["validation_loss"], strict=True)
        first = run["seed"] == min(other["seed"] for other in runs)
        ink = INKS[run["variant"].partition("/")[2]]
        label = run["variant"] if first else None
        axes.plot(steps, losses, color=ink, linewidth=1.2, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    seeds = len({run["seed"] for run in runs})
    axes.set_title(
        f"Validation loss, {tokens / 1e6:.0f} M tokens, {seeds} seed{'s'[: seeds - 1]}", fontsize=11
    )
    axes.legend(frameon=False)


def _gaps(axes: Axes, runs: list[dict[str, Any]]) -> None:
    reference = {
        (_rule(run), run["seed"], run["tokens"]): run["final_validation_loss"]
        for run in runs
        if run["variant"] in REFERENCE.values()
    }
    names = list(dict.fromkeys(run["variant"] for run in runs))
    longest = max(run["tokens"] for run in runs)
    for run in runs:
        plain = reference.get((_rule(run), run["seed"], run["tokens"]))
        if plain is not None:
            mark = "D" if run["tokens"] == longest else "o"
            gap = run["final_validation_loss"] - plain
            axes.plot(gap, names.index(run["variant"]), mark, color=style.FLASH)
    axes.axvline(0, color=style.TORCH, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title(
        f"Final loss above fp32's (\N{BLACK DIAMOND} {longest / 1e6:.0f} M)", fontsize=11
    )


def _rule(run: dict[str, Any]) -> str:
    return str(run["variant"]).partition("/")[0]

"""Memory of a training step by kind, and tokens per second."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from experiments.plots import style

GIB = 1 << 30
SHADES = ("#5b7590", "#d9480f", "#f6ab82", "#d5dbe1")


def draw(result: Result) -> Figure:
    """Bars."""
    made, (left, right) = style.figure(result, 12, 4.6, columns=2)
    runs = [run for run in result["runs"] if run["status"] == "ok"]
    names = [f"{run['label']}\n{run['layers']} layers" for run in runs]
    _memory(left, runs, names)
    right.barh(names, [run["tokens_per_second"] for run in runs], color=style.OTHER)
    right.invert_yaxis()
    right.set_title("Tokens per second", fontsize=11)
    return made


def _memory(axes: Axes, runs: list[dict[str, Any]], names: list[str]) -> None:
    for place, run in enumerate(runs):
        of = run["memory"]
        if of is None:
            continue
        kinds = [of["weights"], of["states"], of["gradients"]]
        begin = 0.0
        for size, shade in zip([*kinds, of["peak"] - sum(kinds)], SHADES, strict=True):
            axes.barh(place, size / GIB, left=begin, color=shade)
            begin += size / GIB
        axes.text(begin, place, f" {begin:.0f}", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title("Peak memory, GiB: weights, states, gradients, activations", fontsize=11)

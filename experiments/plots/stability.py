"""Final losses by learning rate and spike."""

from __future__ import annotations

import math
from statistics import median

from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from bench.results import Result
from experiments.plots import style
from experiments.stability import UNIFORM


def draw(result: Result) -> Figure:
    """A heat map per optimizer, of medians."""
    grids = [(grid["way"], list(map(median, grid["losses"]))) for grid in result["grids"]]
    spikes, rates = result["spikes"], result["rates"]
    made, axes = style.figure(result, 3.6 * len(grids), 4.2, columns=len(grids))
    finite = [loss for _, losses in grids for loss in losses if math.isfinite(loss)]
    norm = Normalize(min(finite), UNIFORM, clip=True)
    columns = ["none" if spike == 1 else f"{spike:.0e}" for spike in spikes]
    step = len(spikes)
    for (way, losses), place in zip(grids, axes, strict=True):
        values = [losses[begin : begin + step] for begin in range(0, len(losses), step)]
        style.heat_map(place, values, [f"{rate:g}" for rate in rates], columns, norm, _loss)
        place.set_title(way, fontsize=11)
        place.set_xlabel("spike")
    axes[0].set_ylabel("learning rate")
    return made


def _loss(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "NaN"

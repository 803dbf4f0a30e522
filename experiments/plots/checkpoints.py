"""Sizes of checkpoints of Llama 3.1 8B."""

from __future__ import annotations

from matplotlib.figure import Figure

from bench.results import Result
from experiments.plots import style


def draw(result: Result) -> Figure:
    """Bars."""
    made, axes = style.figure(result, 8, 3.2)
    rows = result["rows"]
    sizes = [row["llama_8b_bytes"] / 1e9 for row in rows]
    colours = [style.FLASH if row["label"].startswith("ours") else style.TORCH for row in rows]
    bars = axes.barh([row["label"] for row in rows], sizes, color=colours)
    axes.bar_label(bars, fmt=" %.0f GB")
    axes.invert_yaxis()
    axes.set_title("A checkpoint of Llama 3.1 8B with its optimizer", fontsize=11)
    return made

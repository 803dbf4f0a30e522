"""What breaks when one choice of the format is changed."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from experiments.plots import style
from experiments.tables.dynamics import regime_of


def draw(result: Result) -> Figure:
    """A heat map of moments, and curves of weights over the learning rate."""
    made, (left, right) = style.figure(result, 14, 6.5, columns=2)
    rows = result["moments"]
    choices = list(dict.fromkeys(row["choice"] for row in rows))
    regimes = list(dict.fromkeys(map(regime_of, rows)))
    found = {(regime_of(row), row["choice"]): row["error"] for row in rows}
    values = [[found[regime, choice] for choice in choices] for regime in regimes]
    style.heat_map(left, values, regimes, choices, style.errors(), style.brief)
    left.set_title("Moments: relative L2 error of AdamW's updates", fontsize=11)
    _weights(right, result)
    return made


def _weights(axes: Axes, result: Result) -> None:
    for kind in dict.fromkeys(row["kind"] for row in result["weights"]):
        own = [row for row in result["weights"] if row["kind"] == kind]
        ours, dashed = kind.startswith("ours"), "to nearest" in kind
        axes.loglog(
            [row["lr"] for row in own],
            [max(row["displacement_error"], 1e-5) for row in own],
            label=kind,
            marker="o",
            lw=2 if ours else 1.2,
            ls="--" if dashed else "-" if ours else ":",
        )
    axes.set_xlabel("learning rate (weights of 0.02)")
    axes.set_ylabel("relative L2 error of the way of the weights")
    axes.grid(color="#e4e8ec")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("Weights: the smallest step that is not lost", fontsize=11)

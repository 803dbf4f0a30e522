"""Errors of AdamW's updates and weights: regimes by optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.results import Result
from experiments.plots import style
from experiments.tables.dynamics import regime_of


def draw(result: Result) -> Figure:
    """Two heat maps."""
    rows = [row for row in result["rows"] if row["rule"] == "adamw"]
    updates = [row for row in rows if "error" in row]
    walks = [row for row in rows if "error" not in row]
    made, (left, right) = style.figure(result, 13, 7.5, columns=2)
    _map(left, updates, "error", "AdamW's updates: relative L2 error against fp64")
    _map(right, walks, "displacement_error", "Way of the weights: relative L2 error")
    right.set_yticks([])
    return made


def _map(axes: Axes, rows: Sequence[dict[str, Any]], key: str, title: str) -> None:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    regimes = list(dict.fromkeys(map(regime_of, rows)))
    found = {(regime_of(row), row["label"]): row[key] for row in rows}
    values = [[found.get((regime, label)) for label in labels] for regime in regimes]
    style.heat_map(axes, values, regimes, labels, style.errors(), style.brief)
    axes.set_title(title, fontsize=11)

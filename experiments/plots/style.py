"""Colours, sizes and the heat map that pictures share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import matplotlib

from bench.results import Result

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

INK: Final = "#1f2933"
TORCH, FLASH, OTHER = "#9db0c3", "#d9480f", "#5b7590"
COLOURS: Final = "YlOrRd"
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


def figure(result: Result, width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """A figure with axes beside each other, which says on which machine it was measured."""
    matplotlib.rcParams.update(_STYLE)
    made, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
    machine = result["machine"]
    where = f"{machine.get('gpu', machine['cpu'])}, {result['date']}, commit {result['commit']}"
    made.supxlabel(where, fontsize=8, color=INK, x=0.99, ha="right")
    return made, axes


def heat_map(
    axes: Axes,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    norm: Normalize,
    show: Callable[[float], str],
) -> None:
    """Numbers on colours. What is not a finite number is drawn as the worst; None stays empty."""
    worst = float(norm.vmax or 1.0)
    finite = [
        [math.nan if x is None else x if math.isfinite(x) else worst for x in row] for row in values
    ]
    axes.imshow(finite, cmap=COLOURS, norm=norm, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            if value is not None:
                shade = float(norm(min(value, worst))) if math.isfinite(value) else 1.0
                ink = "white" if shade > 0.6 else INK
                axes.text(x, y, show(value), ha="center", va="center", color=ink, fontsize=8)


def errors() -> Normalize:
    """The scale of relative errors: from a per cent to twice as large as it should be."""
    return LogNorm(vmin=0.01, vmax=2.0, clip=True)


def brief(value: float) -> str:
    """Two significant digits."""
    if not math.isfinite(value):
        return "∞"
    return f"{value:.2g}" if value >= 1e-3 else "0"

"""The picture: both loss curves, and the memory of both runs in bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from report import Result

INK, GRID, AXIS = "#1f2933", "#e4e8ec", "#9aa5b1"
TORCH, FLASH = "#9db0c3", "#d9480f"
# From the bottom of a bar to its top: weights, gradients, optimizer state.
TORCH_SHADES = ("#5b7590", "#7f97ad", "#b4c3d1")
FLASH_SHADES = ("#b93c08", "#e5692e", "#f6ab82")
LABEL_COLOURS = ("white", "white", INK)
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": AXIS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
}
HEADING: dict[str, Any] = {"loc": "left", "fontsize": 13, "fontweight": "bold", "pad": 10}


def smooth(values: Sequence[float], span: int) -> list[float]:
    """Mean of the last ``span`` values at each place."""
    return [
        sum(values[max(0, i + 1 - span) : i + 1]) / min(i + 1, span) for i in range(len(values))
    ]


def draw(path: Path, torch_result: Result, flash_result: Result, title: str) -> None:
    """Write the picture to ``path``."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1,
            2,
            figsize=(12, 5.2),
            width_ratios=(1.9, 1),
            layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.04),
        )
        figure.suptitle(title, fontsize=14, color=INK)
        _curves(left, torch_result, flash_result)
        _memory(right, torch_result, flash_result)
        figure.savefig(path, dpi=150, facecolor="white")
        plt.close(figure)


def _curves(axes: Axes, torch_result: Result, flash_result: Result) -> None:
    """Training losses as lines, validation losses as dots; the baseline lies broad below."""
    runs = (
        (torch_result, "torch AdamW", TORCH, 7.0, 11.0, 1),
        (flash_result, "FlashAdamW", FLASH, 1.8, 5.5, 2),
    )
    for result, label, colour, width, marker, order in runs:
        losses = result.history.train_loss
        span = max(1, len(losses) // 40)
        at, validation = zip(*result.history.validation, strict=True)
        line: dict[str, Any] = {"color": colour, "lw": width, "solid_capstyle": "round"}
        dots: dict[str, Any] = {
            "marker": "o",
            "ms": marker,
            "mfc": colour,
            "mec": "white",
            "mew": 1.2,
        }
        axes.plot(range(1, len(losses) + 1), smooth(losses, span), zorder=order, **line)
        axes.plot(at, validation, ls="none", zorder=order + 2, **dots)
        # Never drawn: one entry of the legend for the line and its dots.
        axes.plot(
            [], [], label=f"{label}   final validation loss {validation[-1]:.3f}", **line, **dots
        )
    axes.set_xlabel("training step")
    axes.set_ylabel("loss, nats per byte")
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.margins(x=0.025)
    axes.legend(
        frameon=False,
        loc="upper right",
        handlelength=3.2,
        labelspacing=0.9,
        title="line: training, dots: validation",
        alignment="left",
    )
    one, two = torch_result.validation_loss, flash_result.validation_loss
    axes.set_title(f"Final losses within {abs(two / one - 1):.1%}", **HEADING)


def _memory(axes: Axes, torch_result: Result, flash_result: Result) -> None:
    """Measured bytes per parameter, stacked by kind."""
    bars = (("torch AdamW", torch_result, TORCH_SHADES), ("FlashAdamW", flash_result, FLASH_SHADES))
    for place, (_, result, shades) in enumerate(bars):
        bottom = 0.0
        kinds = result.memory_per_param().items()
        for (kind, size), shade, ink in zip(kinds, shades, LABEL_COLOURS, strict=True):
            axes.bar(place, size, 0.8, bottom=bottom, color=shade, edgecolor="white", lw=1.5)
            text = f"{kind.replace('_', ' ')}\n{size:.3g}"
            axes.text(place, bottom + size / 2, text, color=ink, ha="center", va="center")
            bottom += size
        total = f"{bottom:.2f} bytes"
        axes.text(
            place, bottom + 0.15, total, ha="center", va="bottom", fontsize=13, fontweight="bold"
        )
    axes.set_xticks(range(len(bars)), [name for name, _, _ in bars], fontsize=12)
    axes.set_ylabel("measured bytes per parameter")
    axes.set_ylim(0, 1.08 * max(result.bytes_per_param for _, result, _ in bars))
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    ratio = torch_result.bytes_per_param / flash_result.bytes_per_param
    axes.set_title(f"{ratio:.2g} times less memory", **HEADING)

"""The picture: both loss curves, and the memory of both runs in bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from report import Result

TORCH, FLASH = "#8fa3b8", "#d9480f"
TORCH_SHADES = ("#5f7a94", "#8fa3b8", "#c3cfda")
FLASH_SHADES = ("#c2410c", "#ea7a3b", "#f7b58d")
INK, FAINT = "#1f2933", "#d9dee3"
STYLE = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9aa5b1",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


def smooth(values: Sequence[float], span: int) -> list[float]:
    """Mean of the last ``span`` values at each place."""
    return [
        sum(values[max(0, i + 1 - span) : i + 1]) / min(i + 1, span) for i in range(len(values))
    ]


def draw(path: Path, torch_result: Result, flash_result: Result, title: str) -> None:
    """Write the picture to ``path``."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(12, 5), width_ratios=(2.2, 1), layout="constrained"
        )
        figure.suptitle(title, fontsize=14, fontweight="bold", x=0.012, ha="left")
        _curves(left, torch_result, flash_result)
        _memory(right, torch_result, flash_result)
        figure.savefig(path, dpi=150, facecolor="white")
        plt.close(figure)


def _curves(axes: Axes, torch_result: Result, flash_result: Result) -> None:
    runs = (
        (torch_result, "torch AdamW, fp32 masters", TORCH, 6.0, 11.0, 1),
        (flash_result, "FlashAdamW, 8-bit states", FLASH, 1.6, 5.0, 2),
    )
    for result, label, colour, width, marker, order in runs:
        losses = result.history.train_loss
        span = max(1, len(losses) // 40)
        steps = range(1, len(losses) + 1)
        axes.plot(
            steps, smooth(losses, span), color=colour, lw=width, zorder=order,
            solid_capstyle="round", label=f"{label}: training",
        )
        at, validation = zip(*result.history.validation, strict=True)
        axes.plot(
            at, validation, "o", color=colour, ms=marker, mec="white", mew=1.0,
            zorder=order + 2, label=f"{label}: validation {validation[-1]:.3f}",
        )
    axes.set_xlabel("training step")
    axes.set_ylabel("loss, nats per byte")
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.legend(frameon=False, loc="upper right")
    axes.set_title("Same loss", loc="left", fontsize=12)


def _memory(axes: Axes, torch_result: Result, flash_result: Result) -> None:
    bars = (
        ("torch\nAdamW", torch_result, TORCH_SHADES),
        ("Flash\nAdamW", flash_result, FLASH_SHADES),
    )
    for place, (_, result, shades) in enumerate(bars):
        bottom = 0.0
        for (kind, size), shade in zip(result.memory_per_param().items(), shades, strict=True):
            axes.bar(place, size, 0.62, bottom=bottom, color=shade, edgecolor="white")
            axes.text(
                place, bottom + size / 2, f"{kind.replace('_', ' ')}  {size:.1f}",
                ha="center", va="center", fontsize=10,
            )
            bottom += size
        axes.text(
            place, bottom + 0.2, f"{bottom:.2f} bytes",
            ha="center", va="bottom", fontsize=12, fontweight="bold",
        )
    axes.set_xticks(range(len(bars)), [name for name, _, _ in bars])
    axes.set_ylabel("bytes per parameter, measured")
    axes.set_ylim(0, 1.12 * torch_result.bytes_per_param)
    axes.grid(axis="y", color=FAINT, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    ratio = torch_result.bytes_per_param / flash_result.bytes_per_param
    axes.set_title(f"{ratio:.1f} times less memory", loc="left", fontsize=12)

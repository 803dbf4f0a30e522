"""Losses of fine-tuning, and updates that were lost."""

from __future__ import annotations

from typing import Any, Final

from bench.render import caption
from bench.results import Result
from bench.tables import Table
from experiments import gaps
from experiments.variants import in_order


def losses(result: Result) -> str:
    """By learning rate and variant."""
    return gaps.markdown(result, "validation loss, nats per token", digits=5)


def lost(result: Result) -> str:
    """How many elements of an update did not change the stored weight, and what arrived of it."""
    header = ("", "learning rate", "step", "updates lost", "of the update arrived")
    lines = tuple(
        (
            run["variant"],
            f"{run['settings']['lr']:g}",
            str(probe["step"]),
            f"{100 * probe['lost'] / max(1, probe['moved']):.2f} %",
            "–" if probe["arrived"] is None else f"{100 * probe['arrived']:.2f} %",
        )
        for run in sorted(result["runs"], key=_place)
        for probe in run.get("probes", [])
        if "lost" in probe
    )
    return f"{caption(result)}\n\n{Table(header, lines).markdown()}"


def _place(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["settings"]["lr"], in_order(run["variant"]), run["seed"]


BLOCKS: Final = {"losses": losses, "lost": lost}

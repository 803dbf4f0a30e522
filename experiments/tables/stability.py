"""Losses by learning rate and spike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from bench.render import caption
from bench.results import Result
from bench.tables import Table

KEYS: Final = ("learned", "worse", "better")


def summary(result: Result) -> str:
    """At how many points each learns, and at how many it is worse or better than torch in fp32."""
    lines = tuple((row["way"], *(_of(row, key) for key in KEYS)) for row in result["worse"])
    header = ("", "learned anything", "worse than torch fp32 by over 5 %", "better by over 5 %")
    return f"{caption(result)}\n\n{Table(header, lines).markdown()}"


def losses(result: Result) -> str:
    """A row per learning rate and optimizer, a column per spike."""
    spikes, rates = result["spikes"], result["rates"]
    lines = [
        (f"lr {rate:g}, {grid['way']}", *map(_loss, _row(grid["losses"], index, len(spikes))))
        for index, rate in enumerate(rates)
        for grid in result["grids"]
    ]
    header = ("", *("no spike" if spike == 1 else f"spike {spike:.0e}" for spike in spikes))
    return f"{caption(result)}\n\n{Table(header, tuple(lines)).markdown()}"


def _of(row: dict[str, Any], key: str) -> str:
    return f"{row[key]} of {row['of']}"


def _row(values: Sequence[Any], index: int, length: int) -> Sequence[Any]:
    return values[index * length : (index + 1) * length]


def _loss(values: Sequence[float]) -> str:
    value = statistics.median(values)
    return f"{value:.2f}" if math.isfinite(value) else "**NaN**"


BLOCKS: Final = {"": summary, "losses": losses}

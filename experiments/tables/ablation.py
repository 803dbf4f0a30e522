"""What each choice of the format protects."""

from __future__ import annotations

from typing import Final

from bench.render import caption
from bench.results import Result
from bench.tables import Table
from experiments.tables.dynamics import cell, number, regime_of


def moments(result: Result) -> str:
    """A row per choice: in how many regimes it is within the bounds, and what it breaks."""
    rows = result["moments"]
    lines = []
    for choice in dict.fromkeys(row["choice"] for row in rows):
        own = [row for row in rows if row["choice"] == choice]
        broken = [f"{regime_of(row)}: {cell(row)}" for row in own if not row["met"]]
        lines.append((choice, f"{len(own) - len(broken)} of {len(own)}", "; ".join(broken) or "–"))
    table = Table(("", "within bounds", "breaks"), tuple(lines))
    differing = result["updates_that_differ_from_the_step"]
    said = f"Simulated updates that differ in any bit from those of the real step: {differing}."
    return f"{caption(result)} {said}\n\n{table.markdown()}"


def weights(result: Result) -> str:
    """A row per kind of master weight, a column per learning rate."""
    rows = result["weights"]
    rates = list(dict.fromkeys(row["lr"] for row in rows))
    errors = {(row["kind"], row["lr"]): number(row["displacement_error"]) for row in rows}
    lines = tuple(
        (kind, *(errors[kind, rate] for rate in rates))
        for kind in dict.fromkeys(row["kind"] for row in rows)
    )
    header = ("master weight", *(f"lr {rate:.0e}" for rate in rates))
    return f"{caption(result)}\n\n{Table(header, lines).markdown()}"


BLOCKS: Final = {"moments": moments, "weights": weights}

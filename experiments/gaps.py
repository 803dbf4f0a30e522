"""The summary of a set of training runs as a table for documents."""

from __future__ import annotations

from bench.render import caption
from bench.results import Result
from bench.tables import Table


def markdown(result: Result, unit: str, digits: int = 4) -> str:
    """Mean, spread and gap of each variant; spreads are standard deviations over seeds."""
    header = ("", "learning rate", "seeds", unit, "gap to fp32", "spikes")
    lines = tuple(
        (
            row["variant"],
            f"{row['lr']:g}",
            str(len(row["seeds"])),
            _with_spread(row["mean"], row["spread"], digits, sign=""),
            _with_spread(row["gap"], row["gap_spread"], digits, sign="+"),
            str(row["spikes"]),
        )
        for row in result["summary"]
    )
    return f"{caption(result)}\n\n{Table(header, lines).markdown()}"


def _with_spread(value: float | None, spread: float | None, digits: int, sign: str) -> str:
    if value is None:
        return "–"
    return f"{value:{sign}.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")

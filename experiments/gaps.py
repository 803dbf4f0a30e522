"""The summary of a set of training runs as a table for documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.render import caption
from bench.results import Result
from bench.tables import Table
from experiments.variants import in_order


def markdown(result: Result, unit: str, digits: int = 4) -> str:
    """Mean, spread and gap of each variant; spreads are standard deviations over seeds."""
    texts = any(row["tokens"] for row in result["summary"])
    header = ("", "learning rate", *(["million tokens"] if texts else []), "seeds", unit)
    lines = tuple(
        (
            row["variant"],
            f"{row['lr']:g}",
            *([f"{row['tokens'] / 1e6:.1f}"] if texts else []),
            str(len(row["seeds"])),
            _with_spread(row["mean"], row["spread"], digits, sign=""),
            _with_spread(row["gap"], row["gap_spread"], digits, sign="+"),
            str(row["spikes"]),
        )
        for row in sorted(result["summary"], key=_place)
    )
    before = made_before(result, result["runs"], "runs")
    table = Table((*header, "gap to fp32", "spikes"), lines)
    return f"{caption(result)}{before}\n\n{table.markdown()}"


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    rule = row["variant"].partition("/")[0]
    return row["tokens"] or 0, rule, row["lr"], in_order(row["variant"])


def made_before(result: Result, records: Sequence[dict[str, Any]], what: str) -> str:
    """The commits of the records that an earlier result held already."""
    commits = [row["commit"] for row in records if row["commit"] != result["commit"]]
    if not commits:
        return ""
    known = ", ".join(sorted(set(commits)))
    return f" {len(commits)} of the {len(records)} {what} are of commit {known}."


def _with_spread(value: float | None, spread: float | None, digits: int, sign: str) -> str:
    if value is None:
        return "–"
    return f"{value:{sign}.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")

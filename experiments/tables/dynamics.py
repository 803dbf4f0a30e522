"""Errors of updates and of weights, by regime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.render import caption
from bench.results import Result
from bench.tables import Table

UNUSUAL: Final = 1.2  # largest updates beyond this multiple of fp64's are shown


def updates(result: Result, rule: str) -> str:
    """A row per regime: the error of each contender's updates."""
    rows = [row for row in result["rows"] if row["rule"] == rule and "error" in row]
    return _grid(result, rows, cell)


def displacements(result: Result) -> str:
    """A row per regime: how far AdamW's weights are from where fp64's are."""
    rows = [row for row in result["rows"] if row["rule"] == "adamw" and "error" not in row]
    return _grid(result, rows, lambda row: number(row["displacement_error"]))


def targets(result: Result) -> str:
    """How many regimes are within the bounds, and which are not."""
    judged = result["targets"]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for target in judged:
        groups.setdefault((target["rule"], target["contender"]), []).append(target)
    rows = []
    for (_, contender), members in groups.items():
        missed = [_where(member) for member in members if not member["met"]]
        met = f"{len(members) - len(missed)} of {len(members)}"
        rows.append((contender, met, "; ".join(missed) or "–"))
    table = Table(("rule and codec", "met", "missed"), tuple(rows))
    failed = [f"{one['label']} failed: {one['reason']}" for one in result.get("failures", ())]
    return "\n\n".join([caption(result), table.markdown(), *failed])


def cell(row: dict[str, Any]) -> str:
    """An error, and the largest update where that is out of the ordinary."""
    ratio = row["largest"] / row["largest_fp64"]
    extra = f" ({ratio:.1f}x)" if not ratio <= UNUSUAL else ""
    return number(row["error"]) + extra


def number(value: float) -> str:
    """Two significant digits, in bold where it is large."""
    text = f"{value:.2g}" if value >= 1e-3 else f"{value:.0e}"
    return f"**{text}**" if not value <= 0.2 else text


def regime_of(row: dict[str, Any]) -> str:
    """In words."""
    return row["regime"] if row["beta2"] is None else f"{row['regime']}, β2 {row['beta2']:g}"


def _where(target: dict[str, Any]) -> str:
    ratio = target["largest"] / target["largest_fp64"]
    return f"{regime_of(target)}: {target['error']:.2f}, {ratio:.1f}x"


def _grid(
    result: Result, rows: Sequence[dict[str, Any]], show: Callable[[dict[str, Any]], str]
) -> str:
    labels = list(dict.fromkeys(row["label"] for row in rows))
    regimes = dict.fromkeys(map(regime_of, rows))
    cells = {(regime_of(row), row["label"]): show(row) for row in rows}
    lines = tuple((regime, *(cells.get((regime, x), "–") for x in labels)) for regime in regimes)
    return f"{caption(result)}\n\n{Table(('', *labels), lines).markdown()}"


BLOCKS: Final = {
    "adamw": lambda result: updates(result, "adamw"),
    "lion": lambda result: updates(result, "lion"),
    "sgd": lambda result: updates(result, "sgd"),
    "displacement": displacements,
    "targets": targets,
}

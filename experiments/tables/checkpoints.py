"""Size and time of checkpoints."""

from __future__ import annotations

from typing import Any, Final

from bench.render import caption
from bench.results import Result
from bench.tables import Table
from experiments.gaps import made_before


def sizes(result: Result) -> str:
    """A row per file format."""
    header = (
        "", "GB", "bytes per parameter", "Llama 3.1 8B, GB", "saving, s", "loading, s",
        "GB/s saved", "goes on bit for bit",
    )  # fmt: skip
    lines = tuple((row["label"], *_cells(row)) for row in result["rows"])
    before = made_before(result, result["rows"], "rows")
    return f"{caption(result)}{before}\n\n{Table(header, lines).markdown()}"


def _cells(row: dict[str, Any]) -> list[str]:
    whole = f"{row['llama_8b_bytes'] / 1e9:.1f}"
    if row["status"] != "ok":
        return [row["reason"], f"{row['held_bytes_per_parameter']:.2f}", whole, *["–"] * 4]
    return [
        f"{row['bytes'] / 1e9:.2f}",
        f"{row['bytes_per_parameter']:.2f}",
        whole,
        f"{row['save_seconds']:.1f}",
        f"{row['load_seconds']:.1f}",
        f"{row['bytes'] / row['save_seconds'] / 1e9:.2f}",
        "yes" if row["exact"] else "**no**",
    ]


BLOCKS: Final = {"": sizes}

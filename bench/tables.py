"""Tables of a result, for terminals and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.contenders import CONTENDERS, OURS, TORCH
from bench.results import Result, median_ms

_METRIC_NAMES: Final = {"device": "device", "wall": "wall", "wall_sync": "wall, waiting"}
_NOTHING: Final = "–"
# Who is in a column of the table of cases: a package, and a part of the label.
_COLUMNS: Final = {
    "ours": (OURS, ""),
    "torch fused fp32": (TORCH, "fused, fp32"),
    "torch fused bf16": (TORCH, "fused, bf16"),
    "torch foreach fp32": (TORCH, "foreach, fp32"),
    "torch foreach bf16": (TORCH, "foreach, bf16"),
    "official": ("flashoptim", ""),
    "bitsandbytes": ("bitsandbytes", ""),
    "torchao": ("torchao", ""),
}


@dataclass(frozen=True)
class Table:
    """A header and rows; all columns but the first hold numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Aligned columns."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if index else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def markdown(self) -> str:
        """The same as a Markdown table."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [self.header, tuple(rule), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def title(case: Result) -> str:
    """What a case steps."""
    tensors = "1 tensor" if case["tensors"] == 1 else f"{case['tensors']} tensors"
    return f"{case['title']} ({tensors}, {case['parameters']:,} parameters)"


def of_case(case: Result) -> Table:
    """All contenders of a case with everything that was measured of them."""
    metrics = _metrics(case)
    header = ["", *(f"{_METRIC_NAMES[metric]}, ms" for metric in metrics), "min–max"]
    header += ["GB/s", "of copy", "moved B/param", "state B/param", "first step, ms"]
    rows = [_row(case, contender, metrics) for contender in _timed(case)]
    if case["copy"]:
        rows.append(_copy_row(case, metrics))
    return Table(tuple(header), tuple(rows))


def _row(case: Result, contender: Result, metrics: Sequence[str]) -> tuple[str, ...]:
    times = contender["ms"]
    counted = times[case["metric"]]
    return (
        contender["label"],
        *(milliseconds(times[metric]["median"]) for metric in metrics),
        f"{milliseconds(counted['min'])}–{milliseconds(counted['max'])}",
        f"{contender['gb_per_s']:,.1f}",
        per_cent(contender["of_copy"]),
        f"{contender['moved_bytes'] / case['parameters']:.2f}",
        f"{contender['state_bytes_per_parameter']:.3f}",
        milliseconds(contender["first_step_ms"]),
    )


def _copy_row(case: Result, metrics: Sequence[str]) -> tuple[str, ...]:
    copy = case["copy"]
    times = copy["ms"]
    timed_by = "device" if "device" in metrics else "wall"
    return (
        f"copy of {copy['moved_bytes'] / 2 / 2**20:,.0f} MiB",
        *(milliseconds(times["median"]) if metric == timed_by else "" for metric in metrics),
        f"{milliseconds(times['min'])}–{milliseconds(times['max'])}",
        f"{copy['gb_per_s']:,.1f}",
        per_cent(1.0),
        *[""] * 3,
    )


def left_out(case: Result) -> list[str]:
    """Contenders that were not timed, each with the reason; those not asked for are not named."""
    return [
        f"{contender['label']}: {contender['status']}: {contender['reason']}"
        for contender in case["contenders"]
        if contender["status"] != "ok" and contender["reason"] != "not asked for"
    ]


def of_targets(result: Result) -> Table:
    """One row per target: the value and whether it is met."""
    rows = tuple(
        (
            target["title"],
            target["target"],
            target_value(target),
            "yes" if target["met"] else "no",
        )
        for target in result["targets"]
    )
    return Table(("case", "target", "reached", "met"), rows)


def of_cases(result: Result) -> Table:
    """One row per case: the first metric of ours, and of what others have for the same rule."""
    rows = [
        (f"{case['title']} ({_METRIC_NAMES[case['metric']]})", *_medians(case))
        for case in result["cases"]
        if case["name"] != "variants"
    ]
    header = ("ms per step", *_COLUMNS, "torch fp32 / ours")
    kept = [i for i, _ in enumerate(header) if any(row[i] != _NOTHING for row in rows)]
    return Table(tuple(header[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows))


def _medians(case: Result) -> list[str]:
    rule = _rule(case["contenders"][0])
    contenders = [contender for contender in _timed(case) if _rule(contender) == rule]
    times: list[float | None] = []
    for package, ending in _COLUMNS.values():
        fitting = (c for c in contenders if c["package"] == package and ending in c["label"])
        found = next(fitting, None)
        times.append(None if found is None else median_ms(case, found["key"]))
    ours, theirs = times[:2]
    ratio = f"{theirs / ours:.2f}x" if ours and theirs else _NOTHING
    return [*map(milliseconds, times), ratio]


def _rule(contender: Result) -> str:
    return CONTENDERS[contender["key"]].rule


def machine_line(result: Result) -> str:
    """The machine, the software and the sources in a sentence."""
    machine, versions = result["machine"], result["versions"]
    if "gpu" in machine:
        hardware = f"{machine['gpu']}, driver {machine['driver']}, CUDA {versions.get('cuda')}"
    else:
        hardware = f"{machine['cpu']}, {_threads(machine['threads'])}, {machine['cpu_target']}"
    software = ", ".join(
        f"{name} {version}" for name, version in versions.items() if name not in ("cuda", "numpy")
    )
    return f"{hardware}; {software}; commit {result['commit']}, {result['date']}."


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def milliseconds(value: float | None) -> str:
    """Three or four significant digits."""
    if value is None:
        return _NOTHING
    digits = 3 if value < 1 else 2 if value < 100 else 0
    return f"{value:,.{digits}f}"


def per_cent(share: float | None) -> str:
    """A share in per cent."""
    return _NOTHING if share is None else f"{100 * share:.1f} %"


def target_value(target: dict[str, Any]) -> str:
    """What was reached, in the unit of the target."""
    value = target["value"]
    if value is None:
        return "not run"
    if target["kind"] == "of_copy":
        return per_cent(value)
    return f"{milliseconds(value)} ms" if target["kind"] == "ms" else f"{value:.2f}x"


def _timed(case: Result) -> list[Result]:
    return [contender for contender in case["contenders"] if contender["status"] == "ok"]


def _metrics(case: Result) -> list[str]:
    for contender in _timed(case):
        return list(contender["ms"])
    return []

"""A result file: what it holds, how targets are judged from it, where it is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from bench import machine
from bench.cases import Case, Target

FORMAT: Final = 1
Result = dict[str, Any]


def new(
    benchmark: str, device: torch.device, command: str, commit: str, settings: dict[str, Any]
) -> Result:
    """A result without cases."""
    return head(benchmark, device, command, commit, settings) | {"cases": []}


def head(
    name: str, device: torch.device, command: str, commit: str, settings: dict[str, Any]
) -> Result:
    """What every result file says of its making."""
    return {
        "format": FORMAT,
        "benchmark": name,
        "machine": machine.describe(device),
        "versions": machine.versions(),
        "commit": commit or machine.commit(),
        "date": machine.today(),
        "command": command,
        "settings": settings,
    }


def write(path: Path, result: Result) -> None:
    """Writes a result, replacing an older one at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(_rounded(result), indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def case_named(result: Result, name: str) -> Result | None:
    """A case of a result, if it was run."""
    return next((case for case in result["cases"] if case["name"] == name), None)


def contender(case: Result, key: str) -> Result | None:
    """A contender of a case, if it was timed."""
    found = (c for c in case["contenders"] if c["key"] == key and c["status"] == "ok")
    return next(found, None)


def median_ms(case: Result, key: str) -> float | None:
    """A contender's median of the case's first metric."""
    timed = contender(case, key)
    return None if timed is None else float(timed["ms"][case["metric"]]["median"])


def speed_ratio(result: Result, case_name: str, ours: str, theirs: str) -> float | None:
    """How many times faster one contender is than another; None if either was not timed."""
    case = case_named(result, case_name)
    if case is None:
        return None
    mine, other = median_ms(case, ours), median_ms(case, theirs)
    return None if mine is None or other is None else other / mine


def judge(result: Result, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The targets of cases that hold for this machine, each with its value and whether it is met.

    A target whose contender was not timed has no value and is not met.
    """
    gpu = str(result["machine"].get("gpu", ""))
    judged = []
    for case in cases:
        done = case_named(result, case.name)
        for target in case.targets:
            if target.gpu in gpu:
                value = None if done is None else _value(done, target)
                judged.append(
                    {
                        "case": case.name,
                        "title": case.title,
                        "contender": target.contender,
                        "target": target.text,
                        "kind": target.kind,
                        "limit": target.limit,
                        "value": value,
                        "met": value is not None and target.met(value),
                    }
                )
    return judged


def _value(case: Result, target: Target) -> float | None:
    timed = contender(case, target.contender)
    if timed is None:
        return None
    if target.kind == "ms":
        return median_ms(case, target.contender)
    if target.kind == "of_copy":
        return None if timed["of_copy"] is None else float(timed["of_copy"])
    if target.kind == "first":
        return float(timed["first_step_ms"] / timed["second_step_ms"])
    ours, theirs = median_ms(case, target.contender), median_ms(case, target.against)
    return None if ours is None or theirs is None else ours / theirs


def _rounded(value: Any) -> Any:
    """The same with six significant digits, which is more than was measured."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value

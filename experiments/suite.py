"""A set of training runs: which are left to do, where they are done, and one file of results.

A file that was begun before is continued: what it holds with the same settings is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from experiments import common, schedule
from experiments.schedule import OK, SKIPPED, Job, Record


def add_arguments(parser: argparse.ArgumentParser, budget: float) -> None:
    """The options of all sets of runs."""
    parser.add_argument(
        "--gpus", type=int, help="processes, each with a device (default: all GPUs)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=budget,
        metavar="SECONDS",
        help="time for all runs; the most important ones come first (default: %(default)g)",
    )
    parser.add_argument(
        "--seeds", default="0,1,2", help="of the runs, with commas (default: %(default)s)"
    )
    parser.add_argument(
        "--variants", default="", help="of the runs, with commas (default: all), as adamw/ours-24"
    )
    parser.add_argument(
        "--earlier", default="", help="a result to continue (default: that at --out, if any)"
    )


def numbers(text: str) -> list[int]:
    """Integers with commas between them."""
    return [int(part) for part in text.split(",")]


class Suite:
    """All runs of an experiment."""

    def __init__(
        self, name: str, arguments: argparse.Namespace, metric: str, reference: dict[str, str]
    ) -> None:
        """Reads what was done before.

        Args:
            name: of the experiment.
            arguments: of the command line.
            metric: what the runs are compared by.
            reference: for each rule, the variant that the others are compared with.
        """
        self.run = common.Run(name, arguments)
        self.metric, self._reference = metric, reference
        gpus = torch.cuda.device_count() if self.run.on_gpu else 1
        self._devices = schedule.devices(self.run.device, arguments.gpus or gpus)
        self._budget: float = arguments.budget
        self._wanted = set(filter(None, arguments.variants.split(",")))
        # A smoke run is to run everything.
        earlier = Path(arguments.earlier or ("" if self.run.smoke else self.run.path))
        self.records: list[Record] = []
        if earlier.is_file():
            self.records = json.loads(earlier.read_text(encoding="utf-8")).get("runs", [])

    def wanted(self, variant: str) -> bool:
        """Whether a variant was asked for."""
        return not self._wanted or variant in self._wanted

    def go(self, jobs: Sequence[Job], work: str, again: Container[str] = ()) -> int:
        """Does what is left to do; the result is the exit status.

        Args:
            jobs: all of them, in the order of their importance.
            work: as `schedule.run` takes it.
            again: keys of jobs that are done even if they are in the earlier result.
        """
        jobs = [as_written(job) for job in jobs]
        left = schedule.pending(jobs, [r for r in self.records if r["key"] not in again])
        self.run.note(f"{len(jobs)} runs, {len(left)} of them to do, on {', '.join(self._devices)}")
        self._save()
        schedule.run(left, work, self._devices, self._budget - self.run.seconds, self._done)
        self._save()
        print(table(self.run.result["summary"], self.metric))
        undone = schedule.pending(jobs, self.records)
        failed = [r for r in self.records if r["status"] not in (OK, SKIPPED)]
        for record in failed:
            self.run.note(f"{record['key']}: {record['status']}: {record.get('error', '')}")
        self.run.finish()
        skipped = {r["key"] for r in self.records if r["status"] == SKIPPED}
        return int(any(job["key"] not in skipped for job in undone))

    def _done(self, record: Record) -> None:
        made = {"commit": self.run.result["commit"], "date": self.run.result["date"]}
        self.records = schedule.merged(self.records, {**record, **made})
        self._save()
        value = record.get(self.metric)
        said = record.get("error") or ("" if value is None else f"{self.metric} {value:.4f}")
        speed = record.get("tokens_per_second")
        self.run.note(
            f"{record['key']} on {record['device']}: {record['status']} "
            f"in {record['seconds']:.0f} s  {said}" + (f"  {speed} tokens/s" if speed else "")
        )

    def _save(self) -> None:
        found = summary(self.records, self.metric, self._reference)
        self.run.save(metric=self.metric, summary=found, runs=self.records)


def as_written(job: Job) -> Job:
    """A job as a result file gives it back, where floats have six digits."""
    text = json.dumps(job)
    return cast(Job, json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}")))


def summary(
    records: Sequence[Record], metric: str, reference: dict[str, str]
) -> list[dict[str, Any]]:
    """For each variant and learning rate: mean and spread over seeds, and the gap.

    The gap is the mean difference from the reference of the same seed and settings.
    """
    done = [r for r in records if r["status"] == OK and r.get(metric) is not None]
    values = {(r["variant"], _alike(r), r["seed"]): float(r[metric]) for r in done}
    rows = []
    for variant, settings in dict.fromkeys((variant, alike) for variant, alike, _ in values):
        standard = reference[variant.partition("/")[0]]
        mine = [r for r in done if (r["variant"], _alike(r)) == (variant, settings)]
        found = [float(r[metric]) for r in mine]
        gaps = [
            float(r[metric]) - values[standard, settings, r["seed"]]
            for r in mine
            if (standard, settings, r["seed"]) in values
        ]
        rows.append(
            {
                "variant": variant,
                "lr": mine[0]["settings"]["lr"],
                "tokens": mine[0].get("tokens"),
                "seeds": [r["seed"] for r in mine],
                "mean": statistics.fmean(found),
                "spread": _spread(found),
                "gap": statistics.fmean(gaps) if gaps else None,
                "gap_spread": _spread(gaps),
                "spikes": sum(r.get("spikes", 0) for r in mine),
            }
        )
    return rows


def _alike(record: Record) -> str:
    """What runs have in common that differ in seed and variant only."""
    return json.dumps({**record["settings"], "seed": None}, sort_keys=True)


def table(rows: Sequence[dict[str, Any]], metric: str) -> str:
    """The summary as text."""
    head = f"{metric:28}{'lr':>9}{'seeds':>7}{'mean':>10}{'± seeds':>10}{'gap':>10}{'± seeds':>10}"
    lines = [head, "-" * len(head)]
    for row in rows:
        gap = "–" if row["gap"] is None else f"{row['gap']:+.5f}"
        lines.append(
            f"{row['variant']:28}{row['lr']:9.2g}{len(row['seeds']):7}{row['mean']:10.5f}"
            f"{_text(row['spread']):>10}{gap:>10}{_text(row['gap_spread']):>10}"
        )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> float | None:
    """Standard deviation, of two values or more."""
    return statistics.stdev(values) if len(values) > 1 else None


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.5f}"

"""Training runs over several processes: what is done, repeated, survived and summed up."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import results
from experiments import schedule, suite
from experiments.training import spikes


def job(key: str, **settings: Any) -> dict[str, Any]:
    return {"key": key, "variant": "adamw/torch", "seed": 0, "settings": settings}


def work(job: dict[str, Any], device: torch.device, end: float) -> dict[str, Any]:
    """Done in the processes."""
    what = job["settings"]["what"]
    if what == "raise":
        raise ValueError("no such thing")
    if what == "die":
        os._exit(7)
    if what == "sleep":
        while time.time() < end:
            time.sleep(0.05)
        return {"status": schedule.STOPPED}
    return {"status": schedule.OK, "pid": os.getpid(), "device": str(device)}


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> str:
    """The work as processes find it."""
    here = Path(__file__).resolve()
    folders = [str(here.parent), str(here.parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
    return f"{here.stem}:work"


def run(whats: list[str], work: str, count: int, seconds: float) -> dict[str, dict[str, Any]]:
    records: dict[str, dict[str, Any]] = {}
    jobs = [job(f"{i}-{what}", what=what) for i, what in enumerate(whats)]
    devices = schedule.devices(torch.device("cpu"), count)
    schedule.run(jobs, work, devices, seconds, lambda r: records.update({r["key"]: r}))
    return records


def test_others_go_on_when_one_fails_and_when_a_process_dies(importable: str) -> None:
    records = run(["raise", "good", "die", "good"], importable, 1, 300)
    assert {key: r["status"] for key, r in records.items()} == {
        "0-raise": "failed",
        "1-good": "ok",
        "2-die": "failed",
        "3-good": "ok",
    }
    assert records["0-raise"]["error"] == "ValueError: no such thing"
    assert records["2-die"]["error"] == "the process ended with status 7"
    # A failed process makes room for a new one.
    assert records["1-good"]["pid"] != records["3-good"]["pid"]


def test_two_processes_share_the_runs_until_the_time_is_up(importable: str) -> None:
    records = run(["sleep", "good", "good"], importable, 2, 45)
    assert records["0-sleep"]["status"] == "stopped"
    assert records["1-good"]["pid"] == records["2-good"]["pid"]


def test_what_is_done_with_the_same_settings_is_not_done_again() -> None:
    done = job("a", lr=1) | {"status": schedule.OK}
    assert schedule.pending([job("a", lr=1), job("b", lr=1)], [done]) == [job("b", lr=1)]
    assert schedule.pending([job("a", lr=2)], [done]) == [job("a", lr=2)]
    failed = job("a", lr=1) | {"status": schedule.FAILED}
    assert schedule.pending([job("a", lr=1)], [failed]) == [job("a", lr=1)]
    assert schedule.merged([done], failed) == [done]
    assert schedule.merged([failed], done) == [done]


def test_a_job_is_known_again_in_a_result_file(tmp_path: Path) -> None:
    wanted = suite.as_written(job("a", weight_decay=6 * 0.1, betas=(0.9, 0.99), name="x"))
    results.write(tmp_path / "result.json", {"runs": [wanted | {"status": schedule.OK}]})
    read = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert schedule.pending([wanted], read) == []


def test_gaps_are_between_runs_of_one_seed_and_one_setting() -> None:
    def record(variant: str, seed: int, lr: float, loss: float) -> dict[str, Any]:
        settings = {"lr": lr, "seed": seed}
        made = {"variant": variant, "seed": seed, "settings": settings, "status": "ok"}
        return made | {"loss": loss, "spikes": 1}

    records = [
        record("adamw/torch", 0, 1.0, 3.0),
        record("adamw/torch", 1, 1.0, 4.0),
        record("adamw/ours-24", 0, 1.0, 3.5),
        record("adamw/ours-24", 1, 1.0, 4.25),
        record("adamw/ours-24", 1, 2.0, 9.0),
    ]
    rows = suite.summary(records, "loss", {"adamw": "adamw/torch"})
    assert [(row["variant"], row["lr"], row["gap"]) for row in rows] == [
        ("adamw/torch", 1.0, 0.0),
        ("adamw/ours-24", 1.0, 0.375),
        ("adamw/ours-24", 2.0, None),
    ]
    assert rows[1]["seeds"] == [0, 1]
    assert rows[1]["spikes"] == 2


def test_a_spike_is_far_above_what_was_before() -> None:
    losses = [5.0 - 0.01 * step + 0.02 * (step % 3) for step in range(120)]
    assert spikes(losses) == 0
    losses[80] += 3.0
    assert spikes(losses) == 1

"""Writes down how a run of the CUDA tests ended: on what, of which commit, test by test.

Usage: record.py REPORTS RESULTS
    REPORTS  folder with tests.xml (JUnit) and, for each tool of compute-sanitizer, TOOL.status and
             TOOL.log, or TOOL.skipped with the reason
    RESULTS  folder for cuda-GPU.json
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMED_OUT = 124
_SHOWN_LINES = 30
#: What compute-sanitizer says where it cannot work, whatever is run under it.
UNSUPPORTED = "Device not supported"


def output_of(*command: str) -> str:
    """What a command prints, or "" if it fails or is not there."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def commit() -> str:
    """COMMIT, or what git says; "-dirty" if something tracked was changed."""
    if given := os.environ.get("COMMIT"):
        return given
    head = output_of("git", "rev-parse", "HEAD")
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return (head or "unknown") + ("-dirty" if changed else "")


def environment() -> dict[str, str]:
    """On what the tests ran."""
    import flashoptim_cpp
    import torch

    on_gpu = torch.cuda.is_available()
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "gpu": torch.cuda.get_device_name(0) if on_gpu else "none",
        "driver": driver.splitlines()[0] if driver else "none",
        "torch": torch.__version__,
        "cuda_of_torch": str(torch.version.cuda),
        "python": sys.version.split()[0],
        "cpu_targets": ", ".join(flashoptim_cpp._C.cpu_targets()),
        "flashoptim_cpp": flashoptim_cpp.__version__,
        "commit": commit(),
        "command": "make test-cuda",
    }


@dataclass
class Tests:
    """Outcomes of the tests by file, and messages of those that failed."""

    outcomes: dict[str, dict[str, str]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def counts(self) -> dict[str, int]:
        """Tests by outcome."""
        found = Counter(
            outcome for outcomes in self.outcomes.values() for outcome in outcomes.values()
        )
        return {name: found[name] for name in ("passed", "failed", "skipped")}


def read_tests(path: Path) -> Tests:
    """Reads a JUnit report; one that is absent or cut off counts as a failure."""
    tests = Tests()
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        tests.outcomes["tests"] = {"run": "failed"}
        tests.messages["run"] = f"the tests did not end: {error}"
        return tests
    for suite in root.iter("testsuite"):
        tests.seconds += float(suite.get("time", "0"))
    for case in root.iter("testcase"):
        file, name = case.get("classname", "").split(".")[-1], case.get("name", "")
        problems = [*case.findall("failure"), *case.findall("error")]
        outcome = "passed"
        if problems:
            outcome = "failed"
            tests.messages[f"{file}::{name}"] = problems[0].get("message", "")[:2000]
        elif case.find("skipped") is not None:
            outcome = "skipped"
        # An error in a test's teardown is a second entry of its name.
        known = tests.outcomes.setdefault(file, {})
        if known.get(name) != "failed":
            known[name] = outcome
    return tests


def read_sanitizers(reports: Path) -> dict[str, dict[str, str]]:
    """Outcome and last words of each tool; prints the first ones of those that failed."""
    found = {}
    for path in sorted(reports.glob("*.skipped")):
        found[path.stem] = {"outcome": "skipped", "summary": path.read_text().strip()}
    for path in sorted(reports.glob("*.status")):
        status = int(path.read_text())
        log = path.with_suffix(".log").read_text(errors="replace")
        said = re.findall(r"^=+ ((?:ERROR|RACECHECK) SUMMARY.*)$", log, re.MULTILINE)
        summary = said[-1] if said else f"exit status {status}"
        outcome = "passed" if status == 0 and ", 0 results differ" in log else "failed"
        if UNSUPPORTED in log:
            outcome, summary = "skipped", UNSUPPORTED
        elif status == TIMED_OUT:
            summary = "ran out of time"
        found[path.stem] = {"outcome": outcome, "summary": summary}
        if outcome == "failed":
            print(f"\n{path.stem}:\n" + "\n".join(log.splitlines()[:_SHOWN_LINES]))
    return dict(sorted(found.items()))


def slug(gpu: str) -> str:
    """A GPU's name as a part of a file's name: "NVIDIA H200" is "h200"."""
    words = re.findall(r"[a-z0-9]+", gpu.lower())
    return "-".join(word for word in words if word != "nvidia")


def main(arguments: list[str]) -> int:
    reports, results = Path(arguments[0]), Path(arguments[1])
    tests, sanitizers = read_tests(reports / "tests.xml"), read_sanitizers(reports)
    counts = tests.counts()
    record: dict[str, Any] = {
        **environment(),
        "counts": counts,
        "seconds": round(tests.seconds, 1),
        "sanitizers": sanitizers,
        "failures": tests.messages,
        "tests": tests.outcomes,
    }
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"cuda-{slug(record['gpu'])}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    ok = counts["failed"] == 0 and counts["passed"] > 0
    ok = ok and all(tool["outcome"] != "failed" for tool in sanitizers.values())
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"\n{record['gpu']}: {words} ({record['seconds']} s)")
    for tool, verdict in sanitizers.items():
        print(f"{tool}: {verdict['outcome']}: {verdict['summary']}")
    print(f"written: {path}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

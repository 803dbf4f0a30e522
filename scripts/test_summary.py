"""Prints one line per test stage and the total, from the JUnit reports of CTest and pytest.

Usage: test_summary.py REPORT_FOLDER [STAGE EXIT_STATUS SECONDS]...
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

STAGES = ("install", "libtorch", "asan", "tsan", "fuzz", "python")
REPORT_OF_STAGE = {"cpp": "dev"} | {stage: stage for stage in STAGES}


@dataclass
class Counts:
    """Cases of one report by outcome."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return text + f", {self.skipped} skipped" if self.skipped else text


def read_report(path: Path) -> Counts:
    """Counts the cases of a JUnit file; a file that is absent or cut off holds none."""
    counts = Counts()
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        return counts
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
        elif case.find("skipped") is not None:
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def main(arguments: list[str]) -> int:
    reports, verdicts = Path(arguments[0]), arguments[1:]
    total = Counts()
    print("\n=== summary ===")
    for stage, status, seconds in zip(verdicts[0::3], verdicts[1::3], verdicts[2::3], strict=True):
        ok = status == "0"
        if stage in REPORT_OF_STAGE:
            counts = read_report(reports / f"{REPORT_OF_STAGE[stage]}.xml")
            if not ok and counts.failed == 0:
                counts.failed = 1  # did not build, or broke down before it could report
        else:
            counts = Counts(passed=int(ok), failed=int(not ok))
        total.add(counts)
        print(f"{stage:<9}{'ok' if ok else 'FAILED':<8}{counts} ({seconds} s)")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

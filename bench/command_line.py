"""What the two benchmark programs have in common."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine, results, runner, tables
from bench.cases import Case, select
from bench.measure import Clock
from bench.runner import Budget, Options


def add_arguments(parser: argparse.ArgumentParser, rounds: int, budget: float) -> None:
    """Adds the options that both have."""
    parser.add_argument("--cases", default="", help="names of cases, with commas (default: all)")
    parser.add_argument("--rounds", type=_positive, default=rounds, help=f"default: {rounds}")
    parser.add_argument(
        "--budget",
        type=float,
        default=budget,
        metavar="SECONDS",
        help=f"time after which nothing more is started (default: {budget:g})",
    )
    parser.add_argument("--quick", action="store_true", help="tiny tensors; the times mean nothing")
    parser.add_argument("--out", type=Path, help="the result file (default: in bench/results)")
    parser.add_argument("--commit", default="", help="name of the sources where there is no git")


def options(arguments: argparse.Namespace, **fields: Any) -> Options:
    """How to time; quick runs take one round of short samples."""
    if arguments.quick:
        fields |= {"seconds_per_sample": 0.001, "copy_bytes": 1 << 16}
        return Options(rounds=min(2, arguments.rounds), **fields)
    return Options(rounds=arguments.rounds, **fields)


def chosen_cases(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, known: Sequence[Case]
) -> list[Case]:
    """The cases to run; ends the program if one is not known."""
    try:
        cases = select(known, arguments.cases)
    except ValueError as error:
        parser.error(str(error))
    return [case.quick() for case in cases] if arguments.quick else cases


def settings(options: Options) -> dict[str, Any]:
    """The options as a result keeps them."""
    return asdict(options) | {"peers": sorted(options.peers)}


def command(module: str) -> str:
    """The command that was given, as it is given from the top folder.

    Without ``--out`` and ``--commit``: they say nothing of what was measured.
    """
    given = iter(sys.argv[1:])
    kept = []
    for argument in given:
        if argument in ("--out", "--commit"):
            next(given, None)
        elif not argument.startswith(("--out=", "--commit=")):
            kept.append(argument)
    return " ".join(["python", "-m", module, *kept])


def output(arguments: argparse.Namespace, name: str) -> Path:
    """Where the result goes. Quick ones are no results and stay out of the way."""
    if arguments.out is not None:
        return Path(arguments.out)
    folder = machine.ROOT / "bench" / "out" if arguments.quick else machine.RESULTS
    return folder / f"{name}.json"


def run_cases(
    cases: Sequence[Case],
    clock: Clock,
    options: Options,
    budget_seconds: float,
    result: results.Result,
    path: Path,
) -> None:
    """Runs cases while there is time; writes the result after each, for it may be stopped."""
    budget = Budget(budget_seconds, len(cases))
    for case in cases:
        if budget.spent:
            runner.note(f"{case.title}: no time left")
            continue
        result["cases"].append(runner.run(case, clock, options, budget))
        result["targets"] = results.judge(result, cases)
        results.write(path, result)
    result["targets"] = results.judge(result, cases)
    results.write(path, result)


def print_cases(result: results.Result) -> None:
    """Prints a table per case."""
    for case in result["cases"]:
        print(f"\n{tables.title(case)}")
        print(tables.of_case(case).text())
        for line in tables.left_out(case):
            print(f"  {line}")


def short(path: Path) -> str:
    """A path as seen from the current folder where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value

"""Draws the result files: a picture per experiment, of the GPU's result where there is one.

python -m experiments.plot               # all, into docs/images
python -m experiments.plot dynamics

`experiments.plots.NAME.draw` makes a figure of a result.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.command_line import short
from bench.render import load
from bench.results import Result
from experiments import common, plots


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws; the result is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.plot", description="Draw results.")
    parser.add_argument("names", nargs="*", help="experiments (default: all that have a result)")
    parser.add_argument("--results", type=Path, default=common.RESULTS, help="folder to read")
    parser.add_argument("--images", type=Path, default=common.ROOT / "docs" / "images")
    chosen = parser.parse_args(arguments)
    known = drawable()
    for name in chosen.names or known:
        if name not in known:
            parser.error(f"no plot '{name}'; there are {', '.join(known)}")
        results = load(chosen.results, name)
        if not results:
            print(f"{name}: no result in {short(chosen.results)}", file=sys.stderr)
            continue
        chosen.images.mkdir(parents=True, exist_ok=True)
        path = chosen.images / f"{name.replace('_', '-')}.png"
        draw(name, preferred(results), path)
        print(f"drawn: {short(path)}")
    return 0


def drawable() -> list[str]:
    """The experiments that can be drawn."""
    modules = (module.name for module in pkgutil.iter_modules(plots.__path__))
    return [name for name in modules if name != "style"]


def preferred(results: Sequence[Result]) -> Result:
    """A GPU's result, or else the first."""
    return next((result for result in results if "gpu" in result["machine"]), results[0])


def draw(name: str, result: Result, path: Path) -> None:
    """Writes one picture."""
    figure = importlib.import_module(f"{plots.__name__}.{name}").draw(result)
    figure.savefig(path, dpi=110, facecolor="white")


if __name__ == "__main__":
    sys.exit(main())

"""Puts tables of the result files into docs/numerics.md.

python -m experiments.render            # rewrites it
python -m experiments.render --check    # only says whether it is up to date

Between `<!-- experiments:NAME -->` and `<!-- experiments:end -->` stands a block that is made here.
Each module of `experiments.tables` makes those of the results of its own name: its `BLOCKS` maps
the rest of a block's name to a function of a result. `ablation`'s `weights` is `ablation-weights`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Final

from bench import render
from bench.results import Result
from experiments import common, tables


def blocks() -> dict[str, tuple[str, Callable[[Result], str]]]:
    """All blocks, by name."""
    found: dict[str, tuple[str, Callable[[Result], str]]] = {}
    for module in pkgutil.iter_modules(tables.__path__):
        parts = importlib.import_module(f"{tables.__name__}.{module.name}").BLOCKS
        for part, show in parts.items():
            name = "-".join(filter(None, (module.name.replace("_", "-"), part)))
            found[name] = (module.name, show)
    return found


EXPERIMENTS: Final = render.Source(
    "experiments",
    ("docs/numerics.md",),
    common.RESULTS,
    blocks(),
    "python -m experiments.{}",
)

if __name__ == "__main__":
    sys.exit(render.main(source=EXPERIMENTS))

"""Train a small GPT twice, with torch's AdamW and with FlashAdamW, and compare.

python demo/run.py            # about five minutes on two CPU cores
python demo/run.py --quick    # a few seconds, only to see that everything works
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

MINIMUM_TORCH = (2, 4)
ROOT = Path(__file__).resolve().parent.parent


class MissingRequirementError(Exception):
    """Something has to be installed first; the message says how."""


def main() -> int:
    """Run the demo; the result is the exit status."""
    arguments = parse_arguments()
    try:
        check_requirements()
        # Only now: these modules import what has just been checked.
        from compare import compare
        from data import CorpusError
    except MissingRequirementError as error:
        return stop(str(error))
    try:
        same = compare(arguments.steps, arguments.seed, arguments.out, quick=arguments.quick)
    except (CorpusError, OSError) as error:
        return stop(str(error))
    except KeyboardInterrupt:
        return stop("interrupted", status=130)
    return 0 if same else stop("the resumed run differs from the uninterrupted one")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Train a small GPT twice, with torch's AdamW and with FlashAdamW, and compare."
    )
    parser.add_argument(
        "--steps", type=step_count, help="training steps (default: 400, fewer on slow machines)"
    )
    parser.add_argument("--seed", type=seed_number, default=0, help="seed of weights and batches")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent / "out",
        help="folder for curves.png and summary.json (default: demo/out)",
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    return parser.parse_args()


def step_count(text: str) -> int:
    """At least 10 steps: the resume check needs two halves, the medians some timings."""
    steps = int(text)
    if steps < 10:
        raise argparse.ArgumentTypeError("at least 10 steps are needed")
    return steps


def seed_number(text: str) -> int:
    """A seed that fits wherever PyTorch takes one."""
    seed = int(text)
    if not 0 <= seed < 1 << 32:
        raise argparse.ArgumentTypeError("the seed must be in 0 ... 4294967295")
    return seed


def check_requirements() -> None:
    """Import everything that the demo needs from elsewhere.

    Raises:
        MissingRequirementError: one cannot be imported or is too old.
    """
    python = _short(Path(sys.executable))
    needed = (
        ("torch", "PyTorch", "torch"),
        ("matplotlib", "matplotlib", "matplotlib"),
        ("flashoptim_cpp", "the flashoptim_cpp package", _short(ROOT)),
    )
    for module, name, source in needed:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingRequirementError(
                f"{name} cannot be imported ({error}); run `make demo`, "
                f"or install it with: {python} -m pip install {source}"
            ) from error
    found = importlib.import_module("torch").__version__
    if tuple(int(part) for part in found.split(".")[:2]) < MINIMUM_TORCH:
        wanted = ".".join(map(str, MINIMUM_TORCH))
        raise MissingRequirementError(
            f"PyTorch {found} is too old; update it with: "
            f"{python} -m pip install --upgrade 'torch>={wanted}'"
        )


def stop(message: str, status: int = 1) -> int:
    """Say in one line why there is no result."""
    print(f"demo: {message}", file=sys.stderr)
    return status


def _short(path: Path) -> str:
    """``path`` as seen from the current folder where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


if __name__ == "__main__":
    sys.exit(main())
